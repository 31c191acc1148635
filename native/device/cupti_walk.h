/* From CUPTI's buffers to the shard's records.
 *
 * Ownership: the walk owns its tables; a batch that it fills is its caller's. Threads: one. Cost: about 30 ns a record beside
 * the library's own walk. Memory is bounded: NAME_SLOTS names and RANGE_SLOTS ranges are remembered, others asked again. */
#ifndef XPROF_PY_DEVICE_CUPTI_WALK_H
#define XPROF_PY_DEVICE_CUPTI_WALK_H

#include "device/cupti_load.h"
#include "recorder/device_records.h"

enum { XPR_MAX_CALL_NUMBER = 2048 };

struct xpr_cupti_walk {
    const struct xpr_cupti *cupti;
    ct_subscriber subscriber; /* of the second family; NULL: the first one is used */
    uint32_t session;         /* external ids of other sessions are not ours */
    bool os_threads;          /* calls name the thread as the system does */
    bool every_call;          /* the library does not tell the names of calls: all are kept */
    uint8_t wanted[2][XPR_MAX_CALL_NUMBER / 8]; /* calls to keep, by XPR_CALL_* - 1 */
    uint32_t *call_names[2]; /* string id + 1, 0: not asked yet */
    struct name_slot *names;
    struct range_slot *ranges;

    uint64_t activities, calls;
    uint64_t unknown_kinds, clamped, buffers;
    uint64_t no_memory;    /* records */
    uint64_t cut_buffers;  /* that the library could not walk to their end */
    uint64_t late_ranges;  /* told after the call that they belong to: the call has none, what it launched may */
};

/* Gets the tables. False: no memory. */
bool xpr_cupti_walk_open(struct xpr_cupti_walk *walk, const struct xpr_cupti *cupti, uint32_t session);
void xpr_cupti_walk_close(struct xpr_cupti_walk *walk);

/* Chooses the calls to keep: those that start device work or wait for it. */
void xpr_cupti_choose_calls(struct xpr_cupti_walk *walk);
static inline bool xpr_cupti_wants_call(const struct xpr_cupti_walk *walk, unsigned api, uint32_t number) {
    return number < XPR_MAX_CALL_NUMBER && walk->wanted[api - 1][number / 8] >> (number % 8) & 1;
}

/* Adds what a buffer holds to the batch. */
void xpr_cupti_walk_buffer(struct xpr_cupti_walk *walk, uint8_t *buffer, size_t valid, struct xpr_device_batch *batch);

#endif
