/* One XSpace decoded by several threads: what comes out is what xpr_xspace_decode makes of the same bytes, in every row
 * and number.
 *
 *     xpr_xspace_cut      one thread: all but the lines, where the lines' events lie, the cuts between them
 *     xpr_xspace_read     any threads at once, each slice once
 *     xpr_xspace_join     one thread, when all slices have been read
 *
 * A slice is a stretch of the file's events, lines and planes crossed. Events are counted before they are read, so that
 * slices write into the columns of the whole; stats and texts are a slice's own until they are joined. What a slice
 * alone cannot read (damage, ids that nothing describes) is read by one thread from the beginning, in xpr_xspace_join:
 * errors and added names are then those of xpr_xspace_decode.
 *
 * Ownership: the caller's buffer must stay unchanged until the join. xpr_xspace_slices_free frees at any moment.
 * Cost: beside decoding, the lengths of all events are read once more, by one thread; a copy of the slices' stats.
 */
#ifndef XPROF_PY_DECODE_XSPACE_SLICES_H
#define XPROF_PY_DECODE_XSPACE_SLICES_H

#include "decode/xspace.h"

typedef struct xpr_xspace_slices xpr_xspace_slices;

/* Cut into `wanted` slices of about as many bytes each; NULL where memory is out. */
xpr_xspace_slices *xpr_xspace_cut(const uint8_t *bytes, size_t length, size_t wanted);
/* How many there are: at most `wanted`, 0 where the bytes cannot be cut. */
size_t xpr_xspace_slice_count(const xpr_xspace_slices *slices);
void xpr_xspace_read(xpr_xspace_slices *slices, size_t index);
/* As xpr_xspace_decode. */
int xpr_xspace_join(xpr_xspace_slices *slices, xpr_xspace *space, xpr_decode_error *error);
void xpr_xspace_slices_free(xpr_xspace_slices *slices);

#endif
