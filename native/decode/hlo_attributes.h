/* What an HLO instruction says beyond its name, opcode and edges: its shape, numbers and texts, as rows of
 * xpr_hlo.shapes, dimensions, attributes and texts.
 *
 * Ownership, threading and failure as in hlo.h; a function that returns false has set the wire's failure.
 * Only what stands in the file becomes a row: a number that is absent has the default of its field, mostly 0. A
 * message of its own (a window's dimension, a replica group) begins with a row of its key and value 0.
 */
#ifndef XPROF_PY_DECODE_HLO_ATTRIBUTES_H
#define XPROF_PY_DECODE_HLO_ATTRIBUTES_H

#include "decode/hlo.h"
#include "decode/wire.h"

/* Read one field of an instruction whose tag has been read, or skip it. `op`: the instruction's row. */
bool xpr_hlo_read_attribute(xpr_hlo *hlo, xpr_wire *w, uint32_t tag, int32_t op);

/* Read a ShapeProto: a row of `shapes` for every array in it, in order. */
bool xpr_hlo_read_shape(xpr_hlo *hlo, xpr_wire *w, int32_t op);

/* Read a DeviceAssignmentProto into replica_count and partition_count. */
bool xpr_hlo_read_device_assignment(xpr_hlo *hlo, xpr_wire *w);

#endif
