/* HloProto (one compiled XLA program) to columns: computations, instructions, edges and source locations.
 *
 * Ownership, threading and failure as in xspace.h. Memory: at most about 40 times the input in a hand-made file.
 * Ids become rows here: an instruction id counts within its computation (newer modules number them module-wide, older
 * ones too; both agree), a computation id within the module. -1: the id is not there. Stack frames keep the 1-based ids
 * of the file, 0 = none. What an instruction says beyond that (hlo_attributes.h) is in tables of (op, ...), op a row of
 * instructions, in order of op.
 */
#ifndef XPROF_PY_DECODE_HLO_H
#define XPROF_PY_DECODE_HLO_H

#include <stdbool.h>

#include "columns/columns.h"
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
/* One row for every array in an instruction's shape. `element`: which element of the instruction's tuple it is part of,
 * -1 where the shape is no tuple. `type`: the number of XLA's PrimitiveType. `dynamic`: the dimensions are bounds.
 * `space` and `bits` are the layout's memory space and element size in bits, 0 for the default of both. */
enum { XPR_SHAPES_OP, XPR_SHAPES_ELEMENT, XPR_SHAPES_TYPE, XPR_SHAPES_DYNAMIC, XPR_SHAPES_SPACE, XPR_SHAPES_BITS,
       XPR_SHAPES_WIDTH };
enum { XPR_DIMENSIONS_SHAPE, XPR_DIMENSIONS_SIZE, XPR_DIMENSIONS_WIDTH };
enum { XPR_ATTRIBUTES_OP, XPR_ATTRIBUTES_KEY, XPR_ATTRIBUTES_VALUE, XPR_ATTRIBUTES_WIDTH };
/* `text` is a number of text_values. */
enum { XPR_TEXTS_OP, XPR_TEXTS_KEY, XPR_TEXTS_TEXT, XPR_TEXTS_WIDTH };

/* The schedule and the buffer assignment (hlo_buffers.h), in the file's own ids of computations, instructions, buffers.
 * `sequence`, `allocation` (of assigned) and `trace` are rows of sequences, allocations and heap_traces. A buffer is one
 * value; `element` is which element of its instruction's tuple it is (-1: the whole), `depth` how deep in it. */
enum { XPR_SEQUENCES_COMPUTATION, XPR_SEQUENCES_WIDTH };
enum { XPR_SCHEDULE_SEQUENCE, XPR_SCHEDULE_INSTRUCTION, XPR_SCHEDULE_WIDTH };
enum { XPR_BUFFERS_ID, XPR_BUFFERS_SIZE, XPR_BUFFERS_INSTRUCTION, XPR_BUFFERS_ELEMENT, XPR_BUFFERS_DEPTH,
       XPR_BUFFERS_COLOR, XPR_BUFFERS_WIDTH };
enum { XPR_ALLOCATIONS_INDEX, XPR_ALLOCATIONS_SIZE, XPR_ALLOCATIONS_PARAMETER_NUMBER, XPR_ALLOCATIONS_COLOR,
       XPR_ALLOCATIONS_PARAMETER, XPR_ALLOCATIONS_LIVE_OUT, XPR_ALLOCATIONS_CONSTANT, XPR_ALLOCATIONS_THREAD_LOCAL,
       XPR_ALLOCATIONS_TUPLE, XPR_ALLOCATIONS_WIDTH };
enum { XPR_ASSIGNED_ALLOCATION, XPR_ASSIGNED_BUFFER, XPR_ASSIGNED_OFFSET, XPR_ASSIGNED_SIZE, XPR_ASSIGNED_WIDTH };
/* `allocation`: the index that an allocation had when XLA packed it, before it numbered them anew. */
enum { XPR_HEAP_TRACES_ALLOCATION, XPR_HEAP_TRACES_WIDTH };
/* `kind`: 0 alloc, 1 free, 2 share with another buffer. */
enum { XPR_HEAP_EVENTS_TRACE, XPR_HEAP_EVENTS_KIND, XPR_HEAP_EVENTS_BUFFER, XPR_HEAP_EVENTS_SHARES_WITH,
       XPR_HEAP_EVENTS_WIDTH };

/* Keys of attributes and, from XPR_CUSTOM_CALL_TARGET on, of texts. */
enum { XPR_PARAMETER_NUMBER, XPR_TUPLE_INDEX, XPR_DIMENSION, XPR_CHANNEL_ID, XPR_FFT_TYPE, XPR_FFT_LENGTH,
       XPR_FEATURE_GROUP_COUNT, XPR_BATCH_GROUP_COUNT, XPR_LITERAL, XPR_WINDOW_DIMENSION, XPR_WINDOW_SIZE,
       XPR_WINDOW_STRIDE, XPR_WINDOW_PADDING_LOW, XPR_WINDOW_PADDING_HIGH, XPR_WINDOW_DILATION,
       XPR_WINDOW_BASE_DILATION, XPR_KERNEL_INPUT_FEATURE, XPR_KERNEL_OUTPUT_FEATURE, XPR_KERNEL_SPATIAL,
       XPR_INPUT_BATCH, XPR_INPUT_FEATURE, XPR_INPUT_SPATIAL, XPR_OUTPUT_BATCH, XPR_OUTPUT_FEATURE,
       XPR_OUTPUT_SPATIAL, XPR_LHS_CONTRACTING, XPR_RHS_CONTRACTING, XPR_LHS_BATCH, XPR_RHS_BATCH,
       XPR_OPERAND_PRECISION, XPR_DOT_ALGORITHM, XPR_REPLICA_GROUP, XPR_REPLICA_ID, XPR_IOTA_GROUPS,
       XPR_IOTA_GROUP_SIZE, XPR_IOTA_RESHAPE, XPR_IOTA_TRANSPOSE, XPR_SOURCE_TARGET, XPR_SOURCE, XPR_TARGET,
       XPR_CUSTOM_CALL_TARGET, XPR_BACKEND_CONFIG, XPR_COMPARISON_DIRECTION, XPR_FUSION_KIND, XPR_HLO_ATTRIBUTES };

/* The keys' names, by key. */
extern const char *const xpr_hlo_attribute_names[XPR_HLO_ATTRIBUTES];

typedef struct {
    int64_t id;
    int64_t replica_count, partition_count; /* 0 where the module does not say */
    xpr_strings name;                       /* one string */
    xpr_table computations, instructions, operands, calls, locations, frames, shapes, dimensions, attributes, texts;
    bool has_buffer_assignment;
    xpr_table sequences, schedule, buffers, allocations, assigned, heap_traces, heap_events;
    xpr_strings computation_names, instruction_names, op_names, file_names, function_names;
    xpr_dictionary opcodes, source_files, text_values;
} xpr_hlo;

int xpr_hlo_decode(const uint8_t *bytes, size_t length, xpr_hlo *hlo, xpr_decode_error *error);
void xpr_hlo_free(xpr_hlo *hlo);

#endif
