/* The collector of device activity: one CUPTI session of this process, into the shard that is being recorded.
 *
 * A thread of its own makes every call into CUPTI but those that a range or CUPTI itself makes on the program's threads, so
 * a library that hangs costs the collection and not the program: starting and stopping wait no longer than they are told.
 * It subscribes before anything else: shared with others where CUPTI can (13.3 and later, by the calls that end in _v2), else
 * alone; where another tool holds CUPTI it says which, if CUPTI tells, and collects nothing.
 * Between sessions nothing is subscribed or enabled, so that other profilers work there.
 * In the child of a fork, where CUDA does not work either, nothing is called and no session can be started. */
#ifndef XPROF_PY_DEVICE_CUPTI_H
#define XPROF_PY_DEVICE_CUPTI_H

#include "device/cupti_load.h"
#include "xprof_py/shard_format.h"

struct xpr_cupti_options {
    const char *const *candidates; /* see xpr_cupti_load; used during the call only */
    uint32_t buffer_bytes;         /* of one buffer, 1 KiB to 64 MiB */
    uint32_t buffers;              /* most that exist at once: in CUPTI's hands or full and not parsed yet */
    int64_t flush_ns;              /* how often CUPTI is asked for what is finished */
    int64_t start_timeout_ns;
    bool whole_graphs; /* one activity for a graph's execution instead of one for each node: cheaper, and without ops */
    bool only_check;   /* subscribe, let go, and say how that went */
};

enum { XPR_CUPTI_NOTES_BYTES = 1024 };

struct xpr_cupti_report {
    bool ran;   /* a session was started */
    bool ended; /* and it is over */
    char path[XPR_CUPTI_PATH_BYTES];
    char why[XPR_CUPTI_WHY_BYTES];     /* it could not be started, or did not end; empty: all went well */
    char holder[CT_HOLDER_BYTES];      /* who holds CUPTI, or held it first; empty: nobody, or not told */
    char notes[XPR_CUPTI_NOTES_BYTES]; /* what was asked of CUPTI and refused, one a line */
    bool os_threads;                   /* calls tell their thread */
    int64_t clock_offset_ns;           /* CUPTI's clock less CLOCK_REALTIME at the start, within clock_width_ns */
    int64_t clock_width_ns;            /* -1: not known */
    uint64_t activities, calls, graph_nodes;
    uint64_t ranges_refused; /* pushed ranges that CUPTI did not take, or nested too deep */
    uint64_t late_ranges, cut_buffers, no_memory;
    uint64_t flushes;
    struct xpr_collector_record totals;
};

/* Starts a session. False: report->why says why not. report->path, version and so on say what was found, in both cases. */
bool xpr_cupti_start(const struct xpr_cupti_options *options, struct xpr_cupti_report *report);

/* Flushes, ends the session and gives CUPTI back. False: that was not done in time and goes on behind; report->why says so. */
bool xpr_cupti_stop(int64_t timeout_ns, struct xpr_cupti_report *report);

#endif
