/* Chrome trace JSON read by several threads: what comes out is what one xpr_chrome makes of the same text, in every row,
 * number and place.
 *
 *     xpr_chrome_cut_stretch      one thread, in order: cuts what a stretch holds where an event seems to begin
 *     xpr_chrome_read_stretch     any thread, each stretch once: as if an event of the list did begin there
 *     xpr_chrome_join             one thread, in order: proves it, or reads the stretch again
 *
 * A stretch is a scanner that holds its text. The proof: the scanner of all that lies before comes out exactly where
 * the stretch begins, between two events. From there on nothing else is known or remembered of what lies before that
 * could change a row. So damage, what only looks like an event, and what lies beside the list of events cost time alone.
 *
 * Ownership: a stretch is freed by whoever made it, joined or not. Threading: one thread at a time for each stretch.
 * Cost: beside reading, a copy of the columns, and the different strings of each stretch once more.
 */
#ifndef XPROF_PY_DECODE_CHROME_SLICES_H
#define XPROF_PY_DECODE_CHROME_SLICES_H

#include "decode/chrome_json.h"

typedef struct {
    xpr_chrome chrome;
    bool guessed; /* an event seems to begin there */
    bool read;    /* as far as it goes */
} xpr_chrome_stretch;

/* The first one, of a text of which nothing is known; bytes are added with xpr_chrome_hold. */
void xpr_chrome_begin_stretch(xpr_chrome_stretch *stretch);
/* Where a stretch that was not read yet holds an event's beginning at its byte `wanted` or later: what is behind goes into
 * *next, which was begun and is new or joined. Where it holds none in twice as much it is cut anywhere, and the next one
 * is for the join alone. Returns 1; 0 where no cut is to be made; -1 where memory is out. */
int xpr_chrome_cut_stretch(xpr_chrome_stretch *stretch, size_t wanted, xpr_chrome_stretch *next);
void xpr_chrome_read_stretch(xpr_chrome_stretch *stretch);
/* `whole` goes on with the stretch, read or not: returns as xpr_chrome_feed. *proven: what the stretch had read is used. */
int xpr_chrome_join(xpr_chrome *whole, xpr_chrome_stretch *stretch, bool *proven, xpr_decode_error *error);
void xpr_chrome_free_stretch(xpr_chrome_stretch *stretch);

#endif
