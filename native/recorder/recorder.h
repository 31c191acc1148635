/* The recorder: one capture at a time, from xpr_recorder_start to xpr_recorder_finish.
 *
 * Threads record into their own logs (log.h); a drainer thread of our own appends them to the shard about every 50 ms.
 * The drainer needs nothing of Python, holds no lock while it writes, and has every signal blocked. A write that fails
 * costs events, which are counted, and nothing else. In the child of a fork the recorder is off and nothing is drained;
 * the child may start a capture of its own. */
#ifndef XPROF_PY_RECORDER_RECORDER_H
#define XPROF_PY_RECORDER_RECORDER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "recorder/clock.h"
#include "recorder/log.h"
#include "recorder/strings.h"

/* The number of the capture that runs, 0: none. The only thing an annotation looks at while nothing records. */
extern _Atomic uint32_t xpr_active;

static inline uint32_t xpr_recording(void) { return atomic_load_explicit(&xpr_active, memory_order_relaxed); }

struct xpr_report {
    bool recording;                     /* events are being taken */
    bool finished;                      /* the shard is complete and closed */
    uint64_t accepted;                  /* events that entered a ring, or were open at the stop */
    uint64_t written;                   /* events in the file */
    uint64_t dropped_ring, dropped_budget, dropped_error;
    uint64_t open_not_recorded;         /* spans of trace.h that were open at the stop and have no event in the shard */
    uint64_t forgotten;                 /* written events that have left a flight recorder's window since */
    uint64_t threads, bytes, write_errors;
    int last_errno;                     /* of the last failed write, 0: none failed */
    uint64_t rings_in_memory;           /* threads whose last moments a killed process loses */
    int rings_errno;                    /* why, 0: there are none */
    bool removed;                       /* the file had lost its name when it was closed */
    struct xpr_string_counts strings;
};

/* Creates the shard at path (an existing file is emptied) and starts the drainer. ring_bytes is rounded up to a power of two.
 * 0; EBUSY while a capture runs or is still being finished; else the errno that says why the file or the thread could
 * not be made, with nothing left behind but, at most, an empty file. */
int xpr_recorder_start(const char *path, uint64_t budget_bytes, uint64_t ring_bytes);

struct xpr_recorder_options {
    uint64_t budget_bytes, ring_bytes;
    bool rings_in_memory; /* not in a file, although a killed process then loses its last moments */
    int64_t window_ns; /* 0: all of the capture is kept; else a flight recorder (flight.h) that keeps so much */
};
int xpr_recorder_begin(const char *path, const struct xpr_recorder_options *options);

/* Sets the calling thread's log up for the capture `generation`. thread_name: UTF-8, NULL for the system's.
 * NULL: that capture is over, or there is no memory (one event is then counted as lost). */
struct xpr_log *xpr_log_begin(uint32_t generation, const char *thread_name);

/* The calling thread's log if it is set up for the capture, else NULL: then call xpr_log_begin. */
static inline struct xpr_log *xpr_log_here(uint32_t generation) {
    struct xpr_log *log = xpr_this_log;
    if (__builtin_expect(log != NULL, 1) &&
        __builtin_expect(atomic_load_explicit(&log->generation, memory_order_relaxed) == generation, 1))
        return log;
    return NULL;
}

/* Notes that the calling thread left a span that thread `thread` (by its index in the shard) entered. Takes the recorder's
 * lock: it is not what spans do as a rule. */
void xpr_log_left_elsewhere(uint32_t thread, uint32_t generation, uint64_t start);

/* Stops taking events. Returns the number of the capture, 0 if none ran. Never blocks. */
uint32_t xpr_recorder_off(void);

/* Between off and finish: adds an event of another thread (by its index in the shard) that was open at the stop. */
void xpr_recorder_add_open(uint32_t thread, const struct xpr_event *slots, unsigned n);

/* After off: adds what only the caller counted, lets the drainer finish the shard and waits for it, at most timeout_ns.
 * report->finished tells whether it was done in time; if not, the drainer goes on alone. */
void xpr_recorder_finish(int64_t timeout_ns, uint64_t reentered, uint64_t hook_errors, struct xpr_report *report);

/* The state of the running capture, else of the last one. */
void xpr_recorder_report(struct xpr_report *report);

#endif
