/* The recorder's clock. Reading it costs about 9 ns with a trusted counter and 22 ns without. Thread-safe. */
#ifndef XPROF_PY_RECORDER_CLOCK_H
#define XPROF_PY_RECORDER_CLOCK_H

#include <stdint.h>
#include <time.h>

#include "xprof_py/shard_format.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

/* XPR_CLOCK_*; set once by xpr_clock_choose before the first capture, constant afterwards. */
extern uint32_t xpr_clock_kind;

/* Chooses the clock, the first time only: the counter where the kernel itself trusts it, else CLOCK_MONOTONIC. */
void xpr_clock_choose(void);

/* The three clocks read together; the least uncertain of several tries, about 1 us in all. */
struct xpr_clock_record xpr_clock_sample(void);

static inline int64_t xpr_clock_read_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline uint64_t xpr_clock_now(void) {
#if defined(__x86_64__)
    /* Plain rdtsc: rdtscp or a fence doubles the cost for an order that spans of microseconds do not need. */
    if (__builtin_expect(xpr_clock_kind == XPR_CLOCK_TSC, 1)) return __rdtsc();
#elif defined(__aarch64__)
    if (__builtin_expect(xpr_clock_kind == XPR_CLOCK_CNTVCT, 1)) {
        uint64_t ticks;
        __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
        return ticks;
    }
#endif
    return (uint64_t)xpr_clock_read_ns(CLOCK_MONOTONIC);
}

#endif
