/* One thread's log: a ring of 32-byte slots between the thread (the only writer) and the drainer (the only reader).
 *
 * Ownership: a log belongs to its thread until the thread ends, then to the drainer, which frees it once it is empty.
 * Appending takes no lock and, as a rule, makes no call: one store with release order publishes a whole event. A full ring drops the
 * newest event and counts it. Cost: about 1 ns. */
#ifndef XPROF_PY_RECORDER_LOG_H
#define XPROF_PY_RECORDER_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "xprof_py/rings_format.h"

struct xpr_log {
    /* The thread's side; what every event touches fills one cache line. `generation` says for which capture the log is set
     * up; 0 or an old one: for none that runs. */
    _Alignas(64) _Atomic uint64_t *head; /* slots appended so far: in the ring's header, or `own_head` */
    uint64_t limit;                      /* a head beyond it must ask for room, or wake the drainer (xpr_log_make_room) */
    uint64_t mask;                       /* slots - 1 */
    struct xpr_event *ring;
    struct xpr_open_spans *open; /* in the ring's header, or `own_open` */
    _Atomic uint64_t more_slots; /* of those appended the second and further ones of their events */
    _Atomic uint32_t generation;
    uint32_t index;      /* of the thread in the shard */
    uint32_t greeted_in; /* the capture in which the caller's hook for new threads has run; not yet where all came through trace.h */
    bool sampled;        /* the stack sampler knows the thread */

    uint64_t capacity; /* slots; 0 where there was no memory for a ring */
    _Atomic uint64_t dropped_ring;
    uint64_t cpu_tick; /* when the thread's CPU clock was last read, 0: never; and what it said (xpr_cpu_clock_begin) */
    int64_t cpu_ns;
    atomic_bool dead; /* the thread has ended */
    _Atomic uint64_t begun_in_c, ended_in_c; /* spans of trace.h that are not noted; their sums over all threads differ by those open */
    struct xpr_ring_header *_Atomic kept; /* the header of a ring in a file, which outlives the process; NULL: plain memory */

    /* The drainer's side. */
    _Alignas(64) _Atomic uint64_t tail; /* slots taken so far */
    _Atomic uint64_t written, dropped_budget, dropped_error;
    uint64_t reported_drops;
    uint64_t touched; /* slots of the ring whose memory the drainer has seen to */
    void *mapping;
    uint64_t mapped_bytes;
    struct xpr_log *next; /* under the recorder's lock */
    _Atomic uint64_t own_head;
    struct xpr_open_spans own_open;
};

/* The calling thread's log, NULL before its first event. */
extern _Thread_local struct xpr_log *xpr_this_log __attribute__((tls_model("initial-exec")));

/* Wakes the drainer early. Never blocks. */
void xpr_recorder_wake(void);

/* The slow part of appending: looks how far the drainer is and sets a new limit; wakes it as a half of the ring fills, since a
 * loop of empty spans can fill a ring between two of its rounds. False: no room; the event is counted as dropped. */
bool xpr_log_make_room(struct xpr_log *log, uint64_t head, unsigned n);

/* Slots are written word by word: open spans are read while their thread goes on, and a slot that was stored in parts of
 * other sizes than it is loaded in would wait for its own stores. */
typedef uint64_t __attribute__((may_alias)) xpr_slot_word;

static inline void xpr_copy_slot(struct xpr_event *to, const struct xpr_event *from) {
    const xpr_slot_word *in = (const xpr_slot_word *)from;
    xpr_slot_word *out = (xpr_slot_word *)to;
#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; i++) __atomic_store_n(out + i, __atomic_load_n(in + i, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
}

/* The third word of a slot: an event of one slot; its schema may be added in bits 48-63. */
static inline uint64_t xpr_event_word(uint32_t name, uint8_t kind) { return name | (uint64_t)kind << 32 | (uint64_t)1 << 40; }

/* Events that entered the ring. */
static inline uint64_t xpr_log_accepted(const struct xpr_log *log) {
    uint64_t more = atomic_load(&log->more_slots); /* first: it must not run ahead of the head */
    return atomic_load(log->head) - more;
}

/* Appends one event of n slots. False: the ring was full and the event is counted as dropped. Owner thread only. */
static inline bool xpr_log_append(struct xpr_log *log, const struct xpr_event *slots, unsigned n) {
    uint64_t head = atomic_load_explicit(log->head, memory_order_relaxed);
    if (__builtin_expect(head + n > log->limit, 0) && !xpr_log_make_room(log, head, n)) return false;
    for (unsigned i = 0; i < n; i++) xpr_copy_slot(&log->ring[(head + i) & log->mask], &slots[i]);
    atomic_store_explicit(log->head, head + n, memory_order_release);
    uint64_t more = atomic_load_explicit(&log->more_slots, memory_order_relaxed);
    atomic_store_explicit(&log->more_slots, more + n - 1, memory_order_release);
    return true;
}

/* The fast way for an event of one slot: whether a slot is free at *head, and then its filling. word: xpr_event_word, with the
 * schema if there is a value. */
static inline bool xpr_log_has_slot(const struct xpr_log *log, uint64_t *head) {
    *head = atomic_load_explicit(log->head, memory_order_relaxed);
    return __builtin_expect(*head < log->limit, 1);
}

static inline void xpr_log_fill_slot(struct xpr_log *log, uint64_t head, uint64_t start, uint64_t duration, uint64_t word,
                                     uint64_t value) {
    xpr_slot_word *slot = (xpr_slot_word *)&log->ring[head & log->mask];
    slot[0] = start;
    slot[1] = duration;
    slot[2] = word;
    slot[3] = value;
    atomic_store_explicit(log->head, head + 1, memory_order_release);
}

static inline bool xpr_log_append_one(struct xpr_log *log, uint64_t start, uint64_t duration, uint64_t word, uint64_t value) {
    uint64_t head;
    if (!xpr_log_has_slot(log, &head) && !xpr_log_make_room(log, head, 1)) return false;
    xpr_log_fill_slot(log, head, start, duration, word, value);
    return true;
}

/* The rare cases of the two functions below: other threads left spans of this one, spans end in another order than they
 * began, or there are more than are kept. xpr_log_place_open: whether there is place for one more. */
bool xpr_log_place_open(struct xpr_open_spans *open);
void xpr_log_take_out(struct xpr_open_spans *open, uint64_t start);

/* Notes that the thread entered a span, so that it can be told which one it is in: by a snapshot, by the stop, and by what a
 * killed process leaves. Three stores. word: xpr_event_word. Owner thread only, and only where xpr_log_can_enter. */
static inline bool xpr_log_can_enter(const struct xpr_log *log) {
    return __builtin_expect(atomic_load_explicit(&log->open->count, memory_order_relaxed) != XPR_MAX_OPEN_SPANS, 1);
}

static inline void xpr_log_enter_plain(struct xpr_log *log, uint64_t start, uint64_t word) {
    struct xpr_open_spans *open = log->open;
    uint32_t count = atomic_load_explicit(&open->count, memory_order_relaxed);
    xpr_slot_word *slot = (xpr_slot_word *)&open->spans[count]; /* its duration is open from the beginning */
    __atomic_store_n(slot, start, __ATOMIC_RELAXED);
    __atomic_store_n(slot + 2, word, __ATOMIC_RELAXED);
    atomic_store_explicit(&open->count, count + 1, memory_order_release);
}

/* The same for any span. Of its arguments only the first, `value`, if word has a schema. False: there was no place to note it. */
static inline bool xpr_log_enter(struct xpr_log *log, uint64_t start, uint64_t word, uint64_t value) {
    if (!xpr_log_can_enter(log) && !xpr_log_place_open(log->open)) return false;
    uint32_t count = atomic_load_explicit(&log->open->count, memory_order_relaxed);
    if (word >> 48) __atomic_store_n((xpr_slot_word *)&log->open->spans[count] + 3, value, __ATOMIC_RELAXED);
    xpr_log_enter_plain(log, start, word);
    return true;
}

/* Notes that the thread left the span that it entered at `start`: the last one, as a rule. After the event was appended,
 * so that what a kill finds is there once or twice, and never not at all. Owner thread only. */
static inline void xpr_log_leave(struct xpr_log *log, uint64_t start) {
    struct xpr_open_spans *open = log->open;
    uint32_t count = atomic_load_explicit(&open->count, memory_order_relaxed);
    /* The slot of span `count - 1`; of none it is what stands before the spans, which then begins with 0 and no start. */
    if (__builtin_expect(((const xpr_slot_word *)open)[4 * (size_t)count] == start, 1))
        atomic_store_explicit(&open->count, count - 1, memory_order_release);
    else
        xpr_log_take_out(open, start);
}

#endif
