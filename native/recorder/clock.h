/* The recorder's clock. Reading it costs about 9 ns with a trusted counter and 22 ns without. Thread-safe. */
#ifndef XPROF_PY_RECORDER_CLOCK_H
#define XPROF_PY_RECORDER_CLOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "xprof_py/shard_format.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

/* XPR_CLOCK_*; set once by xpr_clock_choose before the first capture, constant afterwards. */
extern uint32_t xpr_clock_kind;

/* Nanoseconds of a tick, good to about 0.1 %: for intervals of microseconds. Set with the kind. */
extern double xpr_clock_ns_per_tick;

/* Chooses the clock, the first time only: the counter where the kernel itself trusts it, else CLOCK_MONOTONIC. Takes a fifth
 * of a millisecond the first time. */
void xpr_clock_choose(void);

/* The three clocks read together; the least uncertain of several tries, about 1 us in all. */
struct xpr_clock_record xpr_clock_sample(void);

static inline int64_t xpr_clock_read_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Whether the clock is a counter of the processor, which one instruction reads. */
static inline bool xpr_clock_is_counter(void) {
#if defined(__x86_64__)
    return __builtin_expect(xpr_clock_kind == XPR_CLOCK_TSC, 1);
#elif defined(__aarch64__)
    return __builtin_expect(xpr_clock_kind == XPR_CLOCK_CNTVCT, 1);
#else
    return false;
#endif
}

static inline uint64_t xpr_clock_counter(void) {
#if defined(__x86_64__)
    /* Plain rdtsc: rdtscp or a fence doubles the cost for an order that spans of microseconds do not need. */
    return __rdtsc();
#elif defined(__aarch64__)
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    return 0;
#endif
}

static inline uint64_t xpr_clock_now(void) {
    return xpr_clock_is_counter() ? xpr_clock_counter() : (uint64_t)xpr_clock_read_ns(CLOCK_MONOTONIC);
}

#endif
