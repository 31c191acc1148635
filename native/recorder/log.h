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

#include "xprof_py/shard_format.h"

struct xpr_log {
    /* The thread's side. `generation` says for which capture the log is set up; 0 or an old one: for none that runs. */
    _Alignas(64) _Atomic uint64_t head; /* slots appended so far */
    uint64_t seen_tail;                 /* what the thread last read of `tail` */
    uint64_t capacity, mask;            /* slots; 0 where there was no memory for a ring */
    struct xpr_event *ring;
    _Atomic uint32_t generation;
    uint32_t index; /* of the thread in the shard */
    bool sampled;   /* the stack sampler knows the thread */
    bool greeted;   /* the caller's hook for new threads has run; not where the first event came through trace.h */
    _Atomic uint64_t accepted, dropped_ring;
    atomic_bool dead; /* the thread has ended */

    /* The drainer's side. */
    _Alignas(64) _Atomic uint64_t tail; /* slots taken so far */
    _Atomic uint64_t written, dropped_budget, dropped_error;
    uint64_t reported_drops;
    uint64_t mapped_bytes;
    struct xpr_log *next; /* under the recorder's lock */
};

/* The calling thread's log, NULL before its first event. */
extern _Thread_local struct xpr_log *xpr_this_log __attribute__((tls_model("initial-exec")));

/* Wakes the drainer early; called when a ring is half full. Never blocks. */
void xpr_recorder_wake(void);

/* Appends one event of n slots. False: the ring was full and the event is counted as dropped. Owner thread only. */
static inline bool xpr_log_append(struct xpr_log *log, const struct xpr_event *slots, unsigned n) {
    uint64_t head = atomic_load_explicit(&log->head, memory_order_relaxed);
    if (__builtin_expect(head + n - log->seen_tail > log->capacity, 0)) {
        log->seen_tail = atomic_load_explicit(&log->tail, memory_order_acquire);
        if (head + n - log->seen_tail > log->capacity) {
            uint64_t dropped = atomic_load_explicit(&log->dropped_ring, memory_order_relaxed);
            atomic_store_explicit(&log->dropped_ring, dropped + 1, memory_order_relaxed);
            return false;
        }
    }
    for (unsigned i = 0; i < n; i++) log->ring[(head + i) & log->mask] = slots[i];
    uint64_t accepted = atomic_load_explicit(&log->accepted, memory_order_relaxed);
    atomic_store_explicit(&log->accepted, accepted + 1, memory_order_relaxed);
    atomic_store_explicit(&log->head, head + n, memory_order_release);
    /* A loop of empty spans can fill a ring between two of the drainer's rounds. */
    if (__builtin_expect((head ^ (head + n)) & (log->capacity >> 1), 0)) xpr_recorder_wake();
    return true;
}

#endif
