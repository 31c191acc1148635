/* NVTX events on their way into the recorder's rings: ranges that nest on a thread, ranges that end anywhere, marks.
 *
 * Threads: any. A thread keeps its open ranges in a stack of its own, one for all domains; a pop takes the innermost range of
 * its domain. Cost: without a capture two loads and a branch. Losses: ranges that were open as the capture began are not
 * recorded, as with trace.h; one that finds no memory shows as open at the stop. Nothing locks. */
#ifndef XPROF_PY_DEVICE_NVTX_RANGES_H
#define XPROF_PY_DEVICE_NVTX_RANGES_H

#include "device/nvtx_names.h"

/* What an event says of itself; `message`: of one that has a text and nothing else. */
struct xpr_nvtx_said {
    struct xpr_nvtx_domain *domain; /* NULL: the default one */
    const struct xpr_nvtx_attributes *attributes;
    const char *message;
    const struct xpr_nvtx_payload *payloads;
    size_t payload_count;
};

void xpr_nvtx_push(uint32_t capture, const struct xpr_nvtx_said *said);
/* `said`: arguments that come with the end are counted as left out. */
void xpr_nvtx_pop(uint32_t capture, struct xpr_nvtx_domain *domain, size_t payload_count);
void xpr_nvtx_mark(uint32_t capture, const struct xpr_nvtx_said *said);
/* 0: not recorded. */
uint64_t xpr_nvtx_start(uint32_t capture, const struct xpr_nvtx_said *said);
void xpr_nvtx_end(uint32_t capture, uint64_t range, size_t payload_count);

#endif
