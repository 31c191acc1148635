/* HloProto (one compiled XLA program) to columns: computations, instructions, edges and source locations.
 *
 * Ownership, threading and failure as in xspace.h. Memory: at most about 30 times the input in a hand-made file.
 * Ids become rows here: an instruction id counts within its computation (newer modules number them module-wide, older
 * ones too; both agree), a computation id within the module. -1: the id is not there. Stack frames keep the 1-based ids
 * of the file, 0 = none. Shapes are not read yet; they would be further columns of `instructions`.
 */
#ifndef XPROF_PY_DECODE_HLO_H
#define XPROF_PY_DECODE_HLO_H

#include "decode/columns.h"
#include "decode/place.h"

/* `root`: row of instructions, -1 if not there. `entry`: the computation that runs when the program runs. */
enum { XPR_COMPUTATIONS_ID, XPR_COMPUTATIONS_ROOT, XPR_COMPUTATIONS_ENTRY, XPR_COMPUTATIONS_WIDTH };
/* `opcode` and `source_file` are numbers of the dictionaries of those names. */
enum { XPR_INSTRUCTIONS_ID, XPR_INSTRUCTIONS_COMPUTATION, XPR_INSTRUCTIONS_OPCODE, XPR_INSTRUCTIONS_SOURCE_FILE,
       XPR_INSTRUCTIONS_SOURCE_LINE, XPR_INSTRUCTIONS_STACK_FRAME, XPR_INSTRUCTIONS_WIDTH };
/* Row of instructions; what it reads (a row of instructions) or calls (a row of computations). */
enum { XPR_EDGES_OP, XPR_EDGES_TO, XPR_EDGES_WIDTH };
enum { XPR_LOCATIONS_FILE, XPR_LOCATIONS_FUNCTION, XPR_LOCATIONS_LINE, XPR_LOCATIONS_COLUMN, XPR_LOCATIONS_WIDTH };
enum { XPR_FRAMES_LOCATION, XPR_FRAMES_PARENT, XPR_FRAMES_WIDTH };

typedef struct {
    int64_t id;
    xpr_strings name; /* one string */
    xpr_table computations, instructions, operands, calls, locations, frames;
    xpr_strings computation_names, instruction_names, op_names, file_names, function_names;
    xpr_dictionary opcodes, source_files;
} xpr_hlo;

int xpr_hlo_decode(const uint8_t *bytes, size_t length, xpr_hlo *hlo, xpr_decode_error *error);
void xpr_hlo_free(xpr_hlo *hlo);

#endif
