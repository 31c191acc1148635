/* The arguments of a shard's events as columns, in two passes over the slots: how many there are, then what they are.
 *
 * Ownership: inputs are borrowed; the result owns its memory until xpr_shard_args_free.
 * Failure: -1 when memory is out; the result is empty then.
 * Threading: pure; any number of threads.
 */
#ifndef XPROF_PY_DECODE_SHARD_ARGS_H
#define XPROF_PY_DECODE_SHARD_ARGS_H

#include <stddef.h>
#include <stdint.h>

#include "decode/shard.h"

/* What events say of themselves: schema s has `counts[s]` arguments, whose keys are keys[at[s]], ... and whose kinds lie in
 * kinds[s], four bits each. XPR_NO_SUCH_SCHEMA: there is none, or one with more arguments than any event has. */
struct xpr_arg_schemas {
    const uint8_t *counts;
    const uint32_t *at, *keys;
    const uint64_t *kinds;
    size_t schemas, key_places; /* lengths of the first two and of the third */
    size_t key_ids;             /* every key is below */
};
#define XPR_NO_SUCH_SCHEMA 0xFFu
#define XPR_MOST_KEY_IDS (1u << 24)
#define XPR_MOST_ARGS_OF_SLOTS 43u /* 1 + 3 * 14: an event has at most 15 slots */

/* Rows in the order of the events and, within one, of its schema. */
struct xpr_shard_args {
    size_t count;
    int64_t *event; /* its row */
    uint32_t *key;  /* row among the keys that occur, ascending */
    uint8_t *kind;  /* XPR_ARG_* */
    int64_t *value; /* of a text: row among the texts that occur, ascending by id; with odd_texts the id itself */
    size_t key_ids, text_ids;
    uint8_t *key_used, *text_used;
    uint64_t odd_texts;     /* texts whose id is `text_ids` or more */
    uint64_t without_schema; /* events whose schema is not there or wants more slots: they have no arguments here */
};

/* first: the number of each event's first slot (xpr_shard_events), all below the runs' slots together. */
int xpr_decode_shard_args(const struct xpr_slot_run *runs, size_t run_count, const uint32_t *first, size_t events,
                          const struct xpr_arg_schemas *schemas, size_t text_ids, struct xpr_shard_args *args);
void xpr_shard_args_free(struct xpr_shard_args *args);

#endif
