/* What gaps of a device were late for: the pieces of host work in a stretch of each, summed by cause and step, and of
 * each sum the evidence with most time.
 *
 * Ownership: inputs are borrowed and unchanged; the result owns its memory until xpr_shares_free.
 * Failure: -1 when memory is out; the result is empty then.
 * Cost: O(n log n) in the pieces of each gap. Threading: pure; any number of threads.
 */
#ifndef XPROF_PY_KERNELS_SHARES_H
#define XPROF_PY_KERNELS_SHARES_H

#include <stddef.h>
#include <stdint.h>

/* Pieces of a thread's time, disjoint and in order. `function` is what evidence is added up by, `text` what is shown. */
typedef struct {
    const int64_t *start_ps, *end_ps, *cause, *step, *function, *text, *event, *stack;
} xpr_host_pieces;

/* Gap i is shared by the pieces [first[i], behind[i]) as far as they lie in [since_ps[i], until_ps[i]), which all of
 * them meet. `first_step`: the step of the first of them from since_ps on, where it may be another than at its start. */
typedef struct {
    const int64_t *first, *behind, *since_ps, *until_ps, *first_step;
    size_t count;
} xpr_late_gaps;

/* By gap, cause and step. Of each the function with most length, of that the text, of that the event and stack: the
 * least of equal ones. */
enum { XPR_SHARE_GAP, XPR_SHARE_CAUSE, XPR_SHARE_STEP, XPR_SHARE_LENGTH, XPR_SHARE_TEXT, XPR_SHARE_EVENT,
       XPR_SHARE_STACK, XPR_SHARE_COLUMNS };
typedef struct {
    int64_t *columns[XPR_SHARE_COLUMNS];
    size_t count, capacity;
} xpr_shares;

int xpr_share_out(const xpr_host_pieces *pieces, const xpr_late_gaps *gaps, xpr_shares *out);
void xpr_shares_free(xpr_shares *shares);

#endif
