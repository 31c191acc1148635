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

/* Notes that the thread entered a span, so that it can be told which one it is in: by a snapshot, and by what a killed process
 * leaves. The event: one slot, of which the duration is set here. Owner thread only; about 1 ns. */
static inline void xpr_log_enter(struct xpr_log *log, struct xpr_event span) {
    uint32_t count = atomic_load_explicit(&log->open->count, memory_order_relaxed);
    span.duration = XPR_DURATION_OPEN;
    if (__builtin_expect(count < XPR_MAX_OPEN_SPANS, 1)) log->open->spans[count] = span;
    atomic_store_explicit(&log->open->count, count + 1, memory_order_release);
}

/* Takes out span i of those that are noted, counted from 1; 0: one past XPR_MAX_OPEN_SPANS, or none. */
static inline void xpr_log_take_out(struct xpr_open_spans *open, uint32_t i) {
    uint32_t count = atomic_load_explicit(&open->count, memory_order_relaxed);
    uint32_t kept = count < XPR_MAX_OPEN_SPANS ? count : XPR_MAX_OPEN_SPANS;
    if (!i && count <= XPR_MAX_OPEN_SPANS) return;
    for (; i && i < kept; i++) open->spans[i - 1] = open->spans[i];
    atomic_store_explicit(&open->count, count - 1, memory_order_release);
}

static inline uint32_t xpr_log_noted(const struct xpr_log *log) {
    uint32_t count = atomic_load_explicit(&log->open->count, memory_order_relaxed);
    return count < XPR_MAX_OPEN_SPANS ? count : XPR_MAX_OPEN_SPANS;
}

/* Notes that the thread left the span that began at `start`: the last one, as a rule. One that it did not enter is passed over. */
static inline void xpr_log_leave(struct xpr_log *log, uint64_t start) {
    uint32_t i = xpr_log_noted(log);
    while (i && log->open->spans[i - 1].start != start) i--;
    xpr_log_take_out(log->open, i);
}

/* The same for the last span of a kind, where its start is not at hand. */
static inline void xpr_log_leave_last(struct xpr_log *log, uint8_t kind) {
    uint32_t i = xpr_log_noted(log);
    while (i && log->open->spans[i - 1].kind != kind) i--;
    xpr_log_take_out(log->open, i);
}

#endif
