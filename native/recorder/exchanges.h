/* Exchanges of time stamps with other hosts, on their way from the prober (native/probe) to the shard.
 *
 * Ownership: what is added is copied. Threads: every function locks, nothing blocks on I/O under the lock; one prober
 * adds, the drainer takes. Memory is bounded: exchanges that nobody takes are dropped and counted. */
#ifndef XPROF_PY_RECORDER_EXCHANGES_H
#define XPROF_PY_RECORDER_EXCHANGES_H

#include <stdbool.h>
#include <stdint.h>

#include "recorder/strings.h"
#include "xprof_py/shard_format.h"

enum { XPR_MAX_WAITING_EXCHANGES = 4096, XPR_MAX_PROBE_ADDRESS_BYTES = 256 };

/* Forgets the capture before and takes records from now on. */
void xpr_exchanges_reset(void);
/* Takes no more; what is added afterwards is ignored. */
void xpr_exchanges_clear(void);

void xpr_add_probe(uint32_t id, uint64_t session, const char *address);
void xpr_add_exchange(const struct xpr_exchange_record *exchange);
/* The prober's totals at its end; `written` and `dropped` are filled in on the way to the shard. */
void xpr_set_prober_totals(const struct xpr_prober_record *totals);

/* The totals with the exchanges that were dropped here. False: no prober ran in this capture, or it has not ended. */
bool xpr_prober_totals(struct xpr_prober_record *totals);

/* Moves the records added since the last call into the two runs (the caller frees them). */
void xpr_exchanges_take(struct xpr_bytes *probes, struct xpr_bytes *exchanges);

/* For fork: the lock held across it. */
void xpr_exchanges_lock(void);
void xpr_exchanges_unlock(void);
void xpr_exchanges_after_fork_child(void);

#endif
