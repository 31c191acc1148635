/* The CPU time that a thread uses in a step. Only its owner thread calls these for a log.
 *
 * A thread's CPU clock can be read by a system call alone (about 370 ns), so it is read as rarely as it says something:
 *   - a step that begins within XPR_CPU_CLOCK_SHARED_NS of the last reading goes on from that one, as if the thread had run
 *     since. If it had not, the step's CPU time is too small by what it waited there, at most XPR_CPU_CLOCK_SHARED_NS;
 *   - of a step that is shorter than XPR_CPU_CLOCK_LEAST_NS it is not told at all: -1. */
#ifndef XPROF_PY_RECORDER_CPU_CLOCK_H
#define XPROF_PY_RECORDER_CPU_CLOCK_H

#include <stdint.h>

#include "recorder/clock.h"
#include "recorder/log.h"

enum { XPR_CPU_CLOCK_SHARED_NS = 10000, XPR_CPU_CLOCK_LEAST_NS = 100000 };

static inline void xpr_cpu_clock_read(struct xpr_log *log) {
    log->cpu_ns = xpr_clock_read_ns(CLOCK_THREAD_CPUTIME_ID);
    log->cpu_tick = xpr_clock_now();
}

/* The thread's CPU clock, ns, as a step begins at *start (ticks), which is set. */
static inline int64_t xpr_cpu_clock_begin(struct xpr_log *log, uint64_t *start) {
    *start = xpr_clock_now();
    double since_ns = (double)(*start - log->cpu_tick) * xpr_clock_ns_per_tick;
    if (log->cpu_tick && since_ns <= XPR_CPU_CLOCK_SHARED_NS) return log->cpu_ns + (int64_t)since_ns;
    xpr_cpu_clock_read(log);
    *start = log->cpu_tick;
    return log->cpu_ns;
}

/* The CPU time, ns, of a step that lasted `duration` ticks and began at begun_ns of the CPU clock; -1: not told. */
static inline int64_t xpr_cpu_clock_end(struct xpr_log *log, int64_t begun_ns, uint64_t duration) {
    if ((double)duration * xpr_clock_ns_per_tick < XPR_CPU_CLOCK_LEAST_NS) return -1;
    xpr_cpu_clock_read(log);
    return log->cpu_ns > begun_ns ? log->cpu_ns - begun_ns : 0;
}

#endif
