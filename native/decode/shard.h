/* The events of a shard (shard_format.h) as sorted columns, in one pass over their slots.
 *
 * Ownership: inputs are borrowed; the result owns its memory until xpr_shard_events_free.
 * Failure: -1 when memory is out, or for more than 2^32 - 1 slots; the result is empty then.
 * Cost: threads write events as they end, so a span comes after those inside it and is put before them: every row is moved
 *       once for each span around it. A line whose rows would be moved more than XPR_MOST_MOVES times in the mean, spans of
 *       many tasks that overlap, is left as it was written and flagged.
 * Threading: pure; any number of threads.
 */
#ifndef XPROF_PY_DECODE_SHARD_H
#define XPROF_PY_DECODE_SHARD_H

#include <stddef.h>
#include <stdint.h>

enum { XPR_MOST_MOVES = 64 };

/* Slots of one thread, at any alignment. Slots are numbered over all runs in their order. */
struct xpr_slot_run {
    const uint8_t *bytes;
    size_t slots;
    size_t line; /* of the events that begin here */
};

/* Ticks to picoseconds: piece i from ticks[i] on, the first and the last extended. `pieces` rates; as many points, or one more. */
struct xpr_tick_map {
    const uint64_t *ticks;
    const int64_t *at_ps;
    const double *ps_per_tick;
    size_t points, pieces;
};

/* Rows of line 0, 1, ... one after the other, each line by (start, duration descending, later written first). */
struct xpr_shard_events {
    size_t count;
    int64_t *start_ps;
    int64_t *duration_ps; /* INT64_MAX: open */
    uint32_t *first;      /* number of the event's first slot */
    uint32_t *name;       /* row among the used names, ascending by id; with odd_names the id itself */
    uint8_t *kind;
    size_t lines, names;
    uint64_t *line_rows;
    uint8_t *line_unsorted, *name_used; /* of each line; of each name's id */
    uint64_t broken;    /* events whose slots are not all there: left out */
    uint64_t open, with_arguments;
    uint64_t odd_names; /* events whose name's id is `names` or more */
    int64_t end_ps;     /* the latest; INT64_MIN without events */
};

int xpr_decode_shard_events(const struct xpr_slot_run *runs, size_t run_count, size_t lines, struct xpr_tick_map map,
                            size_t names, struct xpr_shard_events *events);
void xpr_shard_events_free(struct xpr_shard_events *events);

/* A column for free(); NULL: no memory. Large ones ask for large pages: a page fault for every 4 KiB takes as long as all the rest. */
void *xpr_new_column(size_t rows, size_t width);

/* The checksum of a structure of `words` 64-bit words, of which word `own` is taken as 0. */
uint64_t xpr_shard_checksum(const uint8_t *bytes, size_t words, size_t own);

#endif
