/* The ranges that are open on each thread, told to CUPTI as external correlation ids so that a launch knows its range.
 *
 * An external id is session << 32 | string id: what an earlier session left on a thread's stack in CUPTI is told from ours.
 * Threads: any thread pushes and pops; on and off are the collector's. Cost: two uncontended atomic adds and CUPTI's own. */
#ifndef XPROF_PY_DEVICE_CUPTI_RANGES_H
#define XPROF_PY_DEVICE_CUPTI_RANGES_H

#include "device/cupti_load.h"

/* Takes ranges from now on (ranges.h). subscriber: of the second family, NULL for the first. */
void xpr_cupti_ranges_on(const struct xpr_cupti *cupti, ct_subscriber subscriber, uint32_t session);
/* Takes no more, and waits for calls under way: then CUPTI can be let go of. */
void xpr_cupti_ranges_off(void);

/* String id of the innermost range open on this thread, XPR_NO_STRING: none. */
uint32_t xpr_cupti_range_here(void);

/* Ranges of the last session that CUPTI did not take. */
uint64_t xpr_cupti_ranges_refused(void);

void xpr_cupti_ranges_after_fork_child(void);

#endif
