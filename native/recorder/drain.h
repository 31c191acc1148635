/* Inside the recorder: the state of a capture and the thread that empties the logs into the shard. */
#ifndef XPROF_PY_RECORDER_DRAIN_H
#define XPROF_PY_RECORDER_DRAIN_H

#include <pthread.h>

#include "recorder/device_records.h"
#include "recorder/exchanges.h"
#include "recorder/flight.h"
#include "recorder/power_rows.h"
#include "recorder/recorder.h"
#include "recorder/rings.h"
#include "recorder/samples.h"
#include "recorder/shard_writer.h"

enum xpr_state { XPR_IDLE, XPR_STARTING, XPR_RECORDING, XPR_FINISHING };

/* Totals of the threads that have ended. */
struct xpr_gone {
    uint64_t accepted, written, dropped_ring, dropped_budget, dropped_error;
    int64_t open_in_c; /* spans of trace.h that began there, less those that ended there */
};

struct xpr_open_event {
    uint32_t thread, count;
    struct xpr_event slots[XPR_MAX_SLOTS];
};

struct xpr_capture {
    pthread_mutex_t lock; /* never held while writing */
    pthread_cond_t done;  /* with `lock`: the shard is finished */
    pthread_mutex_t wake_lock;
    pthread_cond_t wake;  /* with `wake_lock`; both conditions wait by CLOCK_MONOTONIC */
    atomic_bool wake_wanted, stop;

    /* Under the lock. */
    enum xpr_state state;
    uint32_t generation, threads;
    struct xpr_log *logs;         /* of all threads that ever recorded and live, and of ended ones not yet empty */
    struct xpr_bytes new_threads; /* xpr_thread_record, not yet written */
    struct xpr_bytes open_events; /* xpr_open_event */
    struct xpr_gone gone;
    uint64_t reentered, hook_errors;
    bool removed, finished;
    struct xpr_string_counts string_counts; /* once finished: the table itself is gone then */

    /* Set at the start, then the drainer's alone. */
    uint64_t ring_bytes;
    uint64_t rings_in_memory; /* under the lock, as the next one */
    int rings_errno;
    struct xpr_writer writer;
    struct xpr_bytes strings, schemas, thread_records; /* taken, not yet written: a failed write must not lose them */
    struct xpr_bytes frames, stacks; /* as well */
    uint64_t samples_written, samples_dropped;
    struct xpr_bytes probes;
    uint64_t exchanges_written, exchanges_dropped;
    uint64_t device_written, device_dropped_budget, device_dropped_error;
    uint64_t power_written, power_dropped;
    uint64_t noted_at_stop; /* open spans that only the logs knew of, now among open_events */
    bool over_budget;
    uint32_t clock_samples;
    int64_t last_clock_ns, clock_interval_ns;
    struct xpr_flight flight;
};

/* Where events, samples and the clock go: the shard, or a flight recorder's segment. */
static inline struct xpr_writer *xpr_events_writer(struct xpr_capture *c) {
    return c->flight.window_ns ? &c->flight.segment : &c->writer;
}

/* Lets go of an ended thread's log. In use: its ring, in a file, is given to the next thread. */
void xpr_free_log(struct xpr_log *log, bool in_use);

/* The spans that a thread is in, while it goes on; at most XPR_MAX_OPEN_SPANS of them. With the capture's lock held. head: of
 * the log at a moment between. False: they changed all the while. */
bool xpr_open_spans_of(const struct xpr_log *log, struct xpr_event *spans, uint32_t *count, uint64_t *head);

/* Writes the first clock sample. 0 or errno. */
int xpr_drain_prepare(struct xpr_capture *c);

/* Reads the clocks into the file of the events. */
bool xpr_drain_clock(struct xpr_capture *c, bool insist);

/* What the end says of these totals. */
struct xpr_end_record xpr_end_of(const struct xpr_capture *c, const struct xpr_report *totals);

/* The drainer thread. */
void *xpr_drain(void *capture);

/* The totals so far; with the lock held. */
void xpr_capture_totals(struct xpr_capture *c, struct xpr_report *report);

#endif
