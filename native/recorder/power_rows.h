/* What devices drew and how fast they ran, on its way from the power sampler (native/device/power.h) to the shard.
 *
 * Ownership: what is added is copied. Threads: every function locks, nothing blocks on I/O under the lock; one sampler adds,
 * the drainer takes. Memory is bounded: rows that nobody takes are dropped and counted. */
#ifndef XPROF_PY_RECORDER_POWER_ROWS_H
#define XPROF_PY_RECORDER_POWER_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "recorder/strings.h"
#include "xprof_py/shard_format.h"

enum { XPR_MAX_WAITING_POWER_ROWS = 8192 };

/* Forgets the capture before and takes rows from now on. */
void xpr_power_rows_reset(void);
/* Takes no more; what is added afterwards is ignored. */
void xpr_power_rows_clear(void);

/* Which capture takes rows at this moment. What comes with another one's number is ignored: a sampler that was stuck in the
 * driver may come back when its capture is long over. */
uint64_t xpr_power_rows_capture(void);

void xpr_add_power_row(uint64_t capture, const struct xpr_power_record *row);
/* The sampler's totals at its end; `written` and `dropped` are filled in on the way to the shard. */
void xpr_set_power_totals(uint64_t capture, const struct xpr_power_totals_record *totals);

/* The totals with the rows that were dropped here. False: no sampler ran in this capture, or it has not ended. */
bool xpr_power_totals(struct xpr_power_totals_record *totals);

/* Moves the rows added since the last call into `rows` (the caller frees it). */
void xpr_power_rows_take(struct xpr_bytes *rows);

/* For fork: the lock held across it. */
void xpr_power_rows_lock(void);
void xpr_power_rows_unlock(void);
void xpr_power_rows_after_fork_child(void);

#endif
