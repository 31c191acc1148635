/* The events of an XSpace on one time axis, in one pass over their columns.
 *
 * Ownership: the caller owns every array. Threading: no state. Cost: one pass, no scratch. */
#ifndef XPROF_PY_KERNELS_PLACE_EVENTS_H
#define XPROF_PY_KERNELS_PLACE_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const int32_t *line;     /* a row of line_base_ps */
    const int32_t *metadata; /* a row of name_of_metadata */
    int64_t *start_ps;       /* offsets within the line; becomes times since the origin */
    int64_t *duration_ps;    /* a negative one becomes 0 */
    int32_t *name;           /* filled */
    size_t count;
    const int64_t *line_base_ps;
    size_t lines;
    const int32_t *name_of_metadata;
    size_t metadata_count;
} xpr_events_to_place;

typedef struct {
    size_t negative;  /* how many durations were */
    bool in_order;    /* every line's events are sorted by start, of equal ones the longest first */
    int64_t end_ps;   /* the latest end; the least int64 without events */
} xpr_placed_events;

/* Sums that leave 64 bits wrap. Returns 0; or -1, with the columns half done, where an event's
 * line or metadata is no row. */
int xpr_place_events(const xpr_events_to_place *events, xpr_placed_events *placed);

/* Whether all values are above -limit and below limit. */
bool xpr_all_within(const int64_t *values, size_t count, int64_t limit);

#endif
