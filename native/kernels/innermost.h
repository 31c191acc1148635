/* What decides at every moment of a thread: its nested and overlapping spans flattened into a sequence of pieces.
 *
 * Ownership: inputs are borrowed and unchanged; the result owns its memory until xpr_pieces_free.
 * Failure: -1 when memory is out; the result is empty then.
 * Cost: O(spans + pieces); each span is looked at once, pieces outside `keep` are never written.
 * Threading: pure; any number of threads.
 */
#ifndef XPROF_PY_KERNELS_INNERMOST_H
#define XPROF_PY_KERNELS_INNERMOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rows [first, first + count) of the event columns: one line, sorted by start, then longest first. What a row says is
 * what its name says, or special_says for the few of special_rows (ascending). Rows that say less than 0 and rows
 * without a length are no spans. */
typedef struct {
    const int64_t *start_ps;
    const int64_t *duration_ps;
    const int32_t *name;
    size_t first;
    size_t count;
    const int8_t *name_says;
    const int64_t *special_rows;
    const int8_t *special_says;
    size_t special_count;
} xpr_line_spans;

/* Spans from elsewhere, sorted in the same way; at one place in the order they come after those of the line. */
typedef struct {
    const int64_t *start_ps;
    const int64_t *end_ps;
    const int64_t *event;
    const int8_t *says;
    size_t count;
} xpr_more_spans;

/* Disjoint intervals in order: pieces are clipped to them. */
typedef struct {
    const int64_t *start_ps;
    const int64_t *end_ps;
    size_t count;
} xpr_keep;

typedef struct {
    int64_t *start_ps;
    int64_t *end_ps;
    int64_t *event;
    int8_t *says;
    size_t count;
    size_t capacity;
} xpr_pieces;

/* At every moment the innermost open span that says `strong` or more decides; without one, the innermost span.
 * Of spans of one interval the one that says most is the innermost. Neighbouring pieces of one decider are one piece. With `join_alike` those that say the same are, whoever decides,
 * unless XPR_SAYS_ALONE is set in what they say. */
enum { XPR_SAYS_ALONE = 0x40 };
int xpr_innermost(const xpr_line_spans *line, const xpr_more_spans *more, const xpr_keep *keep, int8_t strong,
                  bool join_alike, xpr_pieces *pieces);
void xpr_pieces_free(xpr_pieces *pieces);

#endif
