/* What a collector of device activity found, on its way to the shard.
 *
 * Ownership: a batch that is added belongs to this room, a batch that is taken to the taker. Threads: every function locks,
 * nothing blocks on I/O or copies under the lock; one collector adds, the drainer takes. Memory is bounded: batches that
 * nobody takes are dropped, and their records counted. */
#ifndef XPROF_PY_RECORDER_DEVICE_RECORDS_H
#define XPROF_PY_RECORDER_DEVICE_RECORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "recorder/strings.h"
#include "xprof_py/shard_format.h"

enum { XPR_MAX_WAITING_DEVICE_BYTES = 128 << 20 };

struct xpr_device_batch {
    struct xpr_device_batch *next;
    struct xpr_bytes devices, activities, calls, graph_nodes; /* records of those chunks */
};

/* NULL without memory. */
struct xpr_device_batch *xpr_device_batch_new(void);
void xpr_device_batch_free(struct xpr_device_batch *batch);
/* Records that are counted as written or lost: devices are none. */
uint64_t xpr_device_batch_records(const struct xpr_device_batch *batch);

/* Forgets the capture before and takes batches from now on. */
void xpr_device_records_reset(void);
/* Takes no more; what is added afterwards is thrown away. */
void xpr_device_records_clear(void);

/* The number of the capture that takes batches, 0: none. A collector that outlives its capture adds to no later one. */
uint32_t xpr_device_records_capture(void);

/* Takes the batch over, also where it is dropped. */
void xpr_add_device_batch(uint32_t capture, struct xpr_device_batch *batch);

/* A session of the collector begins: what it counts is added to what earlier ones of the capture did. */
void xpr_collector_begins(uint32_t capture);
/* What the session counted so far; `written` and the drops on the way are filled in later. */
void xpr_set_collector_totals(uint32_t capture, const struct xpr_collector_record *totals);
/* With the records that were dropped here. False: no collector ran in this capture. */
bool xpr_collector_totals(struct xpr_collector_record *totals);

/* The batches added since the last call, in order, NULL: none. */
struct xpr_device_batch *xpr_device_records_take(void);

/* For fork: the lock held across it. */
void xpr_device_records_lock(void);
void xpr_device_records_unlock(void);
void xpr_device_records_after_fork_child(void);

#endif
