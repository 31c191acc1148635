/* One thread's log: a ring of 32-byte slots between the thread (the only writer) and the drainer (the only reader).
 *
 * Ownership: a log belongs to its thread until the thread ends, then to the drainer, which frees it once it is empty.
 * Appending takes no lock and makes no call: one store with release order publishes a whole event. A full ring drops the
 * newest event and counts it. Cost: about 1 ns. */
#ifndef XPROF_PY_RECORDER_LOG_H
#define XPROF_PY_RECORDER_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "xprof_py/rings_format.h"

struct xpr_log {
    /* The thread's side. `generation` says for which capture the log is set up; 0 or an old one: for none that runs. */
    _Alignas(64) _Atomic uint64_t *head; /* slots appended so far: in the ring's header, or `own_head` */
    uint64_t seen_tail;                  /* what the thread last read of `tail` */
    uint64_t capacity, mask;            /* slots; 0 where there was no memory for a ring */
    struct xpr_event *ring;
    _Atomic uint32_t generation;
    uint32_t index; /* of the thread in the shard */
    bool sampled;   /* the stack sampler knows the thread */
    bool greeted;   /* the caller's hook for new threads has run; not where the first event came through trace.h */
    _Atomic uint64_t accepted, dropped_ring;
    atomic_bool dead; /* the thread has ended */
    struct xpr_open_spans *open;  /* in the ring's header, or `own_open` */
    _Atomic uint64_t begun_in_c, ended_in_c; /* spans of trace.h; their sums over all threads differ by those that are open */
    struct xpr_ring_header *_Atomic kept; /* the header of a ring in a file, which outlives the process; NULL: plain memory */

    /* The drainer's side. */
    _Alignas(64) _Atomic uint64_t tail; /* slots taken so far */
    _Atomic uint64_t written, dropped_budget, dropped_error;
    uint64_t reported_drops;
    void *mapping;
    uint64_t mapped_bytes;
    struct xpr_log *next; /* under the recorder's lock */
    _Atomic uint64_t own_head;
    struct xpr_open_spans own_open;
};

/* The calling thread's log, NULL before its first event. */
extern _Thread_local struct xpr_log *xpr_this_log __attribute__((tls_model("initial-exec")));

/* Wakes the drainer early; called when a ring is half full. Never blocks. */
void xpr_recorder_wake(void);

/* Appends one event of n slots. False: the ring was full and the event is counted as dropped. Owner thread only. */
static inline bool xpr_log_append(struct xpr_log *log, const struct xpr_event *slots, unsigned n) {
    uint64_t head = atomic_load_explicit(log->head, memory_order_relaxed);
    if (__builtin_expect(head + n - log->seen_tail > log->capacity, 0)) {
        log->seen_tail = atomic_load_explicit(&log->tail, memory_order_acquire);
        if (head + n - log->seen_tail > log->capacity) {
            uint64_t dropped = atomic_load_explicit(&log->dropped_ring, memory_order_relaxed);
            atomic_store_explicit(&log->dropped_ring, dropped + 1, memory_order_relaxed);
            struct xpr_ring_header *kept = atomic_load_explicit(&log->kept, memory_order_relaxed);
            if (kept) atomic_store_explicit(&kept->dropped_ring, dropped + 1, memory_order_relaxed);
            return false;
        }
    }
    for (unsigned i = 0; i < n; i++) log->ring[(head + i) & log->mask] = slots[i];
    uint64_t accepted = atomic_load_explicit(&log->accepted, memory_order_relaxed);
    atomic_store_explicit(&log->accepted, accepted + 1, memory_order_relaxed);
    atomic_store_explicit(log->head, head + n, memory_order_release);
    /* A loop of empty spans can fill a ring between two of the drainer's rounds. */
    if (__builtin_expect((head ^ (head + n)) & (log->capacity >> 1), 0)) xpr_recorder_wake();
    return true;
}

/* Open spans are read while their thread goes on (xpr_open_spans_of), so they are stored word by word. */
typedef uint64_t __attribute__((may_alias)) xpr_slot_word;

static inline void xpr_copy_slot(struct xpr_event *to, const struct xpr_event *from) {
    for (unsigned i = 0; i < 4; i++) {
        uint64_t word = __atomic_load_n((const xpr_slot_word *)from + i, __ATOMIC_RELAXED);
        __atomic_store_n((xpr_slot_word *)to + i, word, __ATOMIC_RELAXED);
    }
}

static inline void xpr_log_take_out(struct xpr_open_spans *open, uint64_t start) {
    uint32_t count = atomic_load_explicit(&open->count, memory_order_relaxed);
    uint32_t i = count;
    while (i && open->spans[i - 1].start != start) i--;
    if (__builtin_expect(!i, 0)) {
        open->more -= open->more > 0;
        return;
    }
    for (; __builtin_expect(i < count, 0); i++) xpr_copy_slot(&open->spans[i - 1], &open->spans[i]);
    atomic_store_explicit(&open->count, count - 1, memory_order_release);
}

static inline bool xpr_log_is_behind(const struct xpr_open_spans *open) {
    return atomic_load_explicit(&open->left_count, memory_order_relaxed) !=
           atomic_load_explicit(&open->left_taken, memory_order_relaxed);
}

/* Takes out what other threads left. Not inlined: it is rare. */
__attribute__((noinline, unused)) static void xpr_log_catch_up(struct xpr_open_spans *open) {
    uint32_t put = atomic_load_explicit(&open->left_count, memory_order_acquire);
    uint32_t taken = atomic_load_explicit(&open->left_taken, memory_order_relaxed);
    if (put - taken > XPR_MAX_LEFT) {
        open->more = 0;
        atomic_store_explicit(&open->count, 0, memory_order_release);
    } else {
        for (; taken != put; taken++)
            xpr_log_take_out(open, atomic_load_explicit(&open->left[taken % XPR_MAX_LEFT], memory_order_relaxed));
    }
    atomic_store_explicit(&open->left_taken, put, memory_order_release);
}

/* Notes that the thread entered a span, so that it can be told which one it is in: by a snapshot, by the stop, and by what a
 * killed process leaves. Of its arguments only the first, `value`, if the schema has one. Owner thread only; about 1 ns. */
static inline void xpr_log_enter(struct xpr_log *log, uint64_t start, uint32_t name, uint8_t kind, uint16_t schema,
                                 uint64_t value) {
    struct xpr_open_spans *open = log->open;
    if (__builtin_expect(xpr_log_is_behind(open), 0)) xpr_log_catch_up(open);
    uint32_t count = atomic_load_explicit(&open->count, memory_order_relaxed);
    if (__builtin_expect(count == XPR_MAX_OPEN_SPANS, 0)) {
        open->more++;
        return;
    }
    xpr_slot_word *words = (xpr_slot_word *)&open->spans[count];
    __atomic_store_n(words, start, __ATOMIC_RELAXED);
    __atomic_store_n(words + 1, XPR_DURATION_OPEN, __ATOMIC_RELAXED);
    __atomic_store_n(words + 2, name | (uint64_t)kind << 32 | (uint64_t)1 << 40 | (uint64_t)schema << 48, __ATOMIC_RELAXED);
    __atomic_store_n(words + 3, value, __ATOMIC_RELAXED);
    atomic_store_explicit(&open->count, count + 1, memory_order_release);
}

/* Notes that the thread left the span that it entered at `start`: the last one, as a rule. After the event was appended,
 * so that what a kill finds is there once or twice, and never not at all. Owner thread only. */
static inline void xpr_log_leave(struct xpr_log *log, uint64_t start) {
    struct xpr_open_spans *open = log->open;
    if (__builtin_expect(xpr_log_is_behind(open), 0)) xpr_log_catch_up(open);
    xpr_log_take_out(open, start);
}

#endif
