/* Where a compiled program keeps its values: BufferAssignmentProto (HloProto field 3) and the module's schedule, as rows
 * of xpr_hlo.
 *
 * Ownership, threading and failure as in hlo.h; a function that returns false has set the wire's failure.
 * Ids stay those of the file: what they stand for may come later in it, or not at all.
 */
#ifndef XPROF_PY_DECODE_HLO_BUFFERS_H
#define XPROF_PY_DECODE_HLO_BUFFERS_H

#include "decode/hlo.h"
#include "decode/wire.h"

void xpr_hlo_init_buffers(xpr_hlo *hlo);
bool xpr_hlo_read_buffer_assignment(xpr_hlo *hlo, xpr_wire *w);
/* Read an HloScheduleProto: the instructions of every scheduled computation in the order in which they run. */
bool xpr_hlo_read_schedule(xpr_hlo *hlo, xpr_wire *w);

#endif
