#include "decode/hlo_attributes.h"

#define NAME(key, name) [key] = name

const char *const xpr_hlo_attribute_names[XPR_HLO_ATTRIBUTES] = {
    NAME(XPR_PARAMETER_NUMBER, "parameter_number"),
    NAME(XPR_TUPLE_INDEX, "tuple_index"),
    NAME(XPR_DIMENSION, "dimension"),
    NAME(XPR_CHANNEL_ID, "channel_id"),
    NAME(XPR_FFT_TYPE, "fft_type"),
    NAME(XPR_FFT_LENGTH, "fft_length"),
    NAME(XPR_FEATURE_GROUP_COUNT, "feature_group_count"),
    NAME(XPR_BATCH_GROUP_COUNT, "batch_group_count"),
    NAME(XPR_LITERAL, "literal"),
    NAME(XPR_WINDOW_DIMENSION, "window_dimension"),
    NAME(XPR_WINDOW_SIZE, "window_size"),
    NAME(XPR_WINDOW_STRIDE, "window_stride"),
    NAME(XPR_WINDOW_PADDING_LOW, "window_padding_low"),
    NAME(XPR_WINDOW_PADDING_HIGH, "window_padding_high"),
    NAME(XPR_WINDOW_DILATION, "window_dilation"),
    NAME(XPR_WINDOW_BASE_DILATION, "window_base_dilation"),
    NAME(XPR_KERNEL_INPUT_FEATURE, "kernel_input_feature"),
    NAME(XPR_KERNEL_OUTPUT_FEATURE, "kernel_output_feature"),
    NAME(XPR_KERNEL_SPATIAL, "kernel_spatial"),
    NAME(XPR_INPUT_BATCH, "input_batch"),
    NAME(XPR_INPUT_FEATURE, "input_feature"),
    NAME(XPR_INPUT_SPATIAL, "input_spatial"),
    NAME(XPR_OUTPUT_BATCH, "output_batch"),
    NAME(XPR_OUTPUT_FEATURE, "output_feature"),
    NAME(XPR_OUTPUT_SPATIAL, "output_spatial"),
    NAME(XPR_LHS_CONTRACTING, "lhs_contracting"),
    NAME(XPR_RHS_CONTRACTING, "rhs_contracting"),
    NAME(XPR_LHS_BATCH, "lhs_batch"),
    NAME(XPR_RHS_BATCH, "rhs_batch"),
    NAME(XPR_OPERAND_PRECISION, "operand_precision"),
    NAME(XPR_DOT_ALGORITHM, "dot_algorithm"),
    NAME(XPR_REPLICA_GROUP, "replica_group"),
    NAME(XPR_REPLICA_ID, "replica_id"),
    NAME(XPR_IOTA_GROUPS, "iota_groups"),
    NAME(XPR_IOTA_GROUP_SIZE, "iota_group_size"),
    NAME(XPR_IOTA_RESHAPE, "iota_reshape"),
    NAME(XPR_IOTA_TRANSPOSE, "iota_transpose"),
    NAME(XPR_SOURCE_TARGET, "source_target"),
    NAME(XPR_SOURCE, "source"),
    NAME(XPR_TARGET, "target"),
    NAME(XPR_CUSTOM_CALL_TARGET, "custom_call_target"),
    NAME(XPR_BACKEND_CONFIG, "backend_config"),
    NAME(XPR_COMPARISON_DIRECTION, "comparison_direction"),
    NAME(XPR_FUSION_KIND, "fusion_kind"),
};

/* Shapes are trees: a message may claim any depth, and reading them recurses. */
enum { SHAPE_DEPTH = 64, TUPLE = 13 };

typedef struct {
    uint8_t field, key;
} number_field;

static const number_field instruction_numbers[] = {
    {9, XPR_PARAMETER_NUMBER}, {13, XPR_TUPLE_INDEX},         {14, XPR_DIMENSION},
    {26, XPR_CHANNEL_ID},      {31, XPR_FFT_TYPE},            {32, XPR_FFT_LENGTH},
    {50, XPR_FEATURE_GROUP_COUNT}, {58, XPR_BATCH_GROUP_COUNT}};
static const number_field window_numbers[] = {
    {1, XPR_WINDOW_SIZE},         {2, XPR_WINDOW_STRIDE},   {3, XPR_WINDOW_PADDING_LOW},
    {4, XPR_WINDOW_PADDING_HIGH}, {5, XPR_WINDOW_DILATION}, {6, XPR_WINDOW_BASE_DILATION}};
static const number_field convolution_numbers[] = {
    {3, XPR_KERNEL_INPUT_FEATURE}, {4, XPR_KERNEL_OUTPUT_FEATURE}, {6, XPR_KERNEL_SPATIAL},
    {7, XPR_INPUT_BATCH},          {8, XPR_INPUT_FEATURE},         {11, XPR_INPUT_SPATIAL},
    {9, XPR_OUTPUT_BATCH},         {10, XPR_OUTPUT_FEATURE},       {12, XPR_OUTPUT_SPATIAL}};
static const number_field dot_numbers[] = {
    {1, XPR_LHS_CONTRACTING}, {2, XPR_RHS_CONTRACTING}, {3, XPR_LHS_BATCH}, {4, XPR_RHS_BATCH}};
static const number_field precision_numbers[] = {{1, XPR_OPERAND_PRECISION}, {2, XPR_DOT_ALGORITHM}};
static const number_field group_numbers[] = {{1, XPR_REPLICA_ID}};
static const number_field iota_numbers[] = {
    {1, XPR_IOTA_GROUPS}, {2, XPR_IOTA_GROUP_SIZE}, {3, XPR_IOTA_RESHAPE}, {4, XPR_IOTA_TRANSPOSE}};
static const number_field pair_numbers[] = {{1, XPR_SOURCE}, {2, XPR_TARGET}};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static bool no_memory(const xpr_wire *w) { return xpr_wire_fail(w, w->at, XPR_OUT_OF_MEMORY); }

static bool add_number(xpr_hlo *hlo, const xpr_wire *w, int32_t op, uint8_t key, uint64_t value) {
    xpr_table *table = &hlo->attributes;
    if (!xpr_table_room(table)) return no_memory(w);
    xpr_i32(table, XPR_ATTRIBUTES_OP)[table->count] = op;
    xpr_u8(table, XPR_ATTRIBUTES_KEY)[table->count] = key;
    xpr_i64(table, XPR_ATTRIBUTES_VALUE)[table->count++] = (int64_t)value;
    return true;
}

static bool add_text(xpr_hlo *hlo, xpr_wire *w, int32_t op, uint8_t key) {
    const uint8_t *bytes;
    size_t length;
    xpr_table *table = &hlo->texts;
    if (!xpr_wire_bytes(w, &bytes, &length)) return false;
    int32_t number = xpr_dictionary_number(&hlo->text_values, bytes, length);
    if (number < 0 || !xpr_table_room(table)) return no_memory(w);
    xpr_i32(table, XPR_TEXTS_OP)[table->count] = op;
    xpr_u8(table, XPR_TEXTS_KEY)[table->count] = key;
    xpr_i32(table, XPR_TEXTS_TEXT)[table->count++] = number;
    return true;
}

/* Integers, one or packed. */
static bool read_number(xpr_hlo *hlo, xpr_wire *w, uint32_t tag, int32_t op, uint8_t key) {
    uint64_t value;
    if ((tag & 7) == XPR_VARINT) return xpr_wire_varint(w, &value) && add_number(hlo, w, op, key, value);
    xpr_wire packed;
    if (!xpr_wire_inner(w, &packed)) return false;
    while (packed.at != packed.end)
        if (!xpr_wire_varint(&packed, &value) || !add_number(hlo, &packed, op, key, value)) return false;
    return true;
}

/* The key of a field in `fields`, -1 where it is not one of them or is no integer. */
static int key_of(const number_field *fields, size_t count, uint32_t tag) {
    if ((tag & 7) != XPR_VARINT && (tag & 7) != XPR_LEN) return -1;
    for (size_t i = 0; i < count; i++)
        if (fields[i].field == tag >> 3) return fields[i].key;
    return -1;
}

/* A message of integers; where `begin` >= 0 a row of that key goes before them. */
static bool read_message(xpr_hlo *hlo, xpr_wire *outer, int32_t op, int begin, const number_field *fields,
                         size_t count) {
    xpr_wire w;
    uint32_t tag;
    if (!xpr_wire_inner(outer, &w)) return false;
    if (begin >= 0 && !add_number(hlo, &w, op, (uint8_t)begin, 0)) return false;
    while (w.at != w.end) {
        if (!xpr_wire_tag(&w, &tag)) return false;
        int key = key_of(fields, count, tag);
        if (key >= 0 ? !read_number(hlo, &w, tag, op, (uint8_t)key) : !xpr_wire_skip(&w, tag)) return false;
    }
    return true;
}

static bool read_window(xpr_hlo *hlo, xpr_wire *outer, int32_t op) {
    xpr_wire w;
    uint32_t tag;
    if (!xpr_wire_inner(outer, &w)) return false;
    while (w.at != w.end) {
        if (!xpr_wire_tag(&w, &tag)) return false;
        bool read = tag == XPR_TAG(1, XPR_LEN) ? read_message(hlo, &w, op, XPR_WINDOW_DIMENSION, window_numbers,
                                                              COUNT(window_numbers))
                                               : xpr_wire_skip(&w, tag);
        if (!read) return false;
    }
    return true;
}

static bool read_device_list(xpr_hlo *hlo, xpr_wire *outer, int32_t op) {
    xpr_wire w;
    uint32_t tag;
    if (!xpr_wire_inner(outer, &w)) return false;
    while (w.at != w.end) {
        if (!xpr_wire_tag(&w, &tag)) return false;
        bool read = tag == XPR_TAG(1, XPR_LEN)
                        ? read_message(hlo, &w, op, XPR_REPLICA_GROUP, group_numbers, COUNT(group_numbers))
                    : tag == XPR_TAG(2, XPR_LEN) ? read_message(hlo, &w, op, -1, iota_numbers, COUNT(iota_numbers))
                                                 : xpr_wire_skip(&w, tag);
        if (!read) return false;
    }
    return true;
}

/* The value of a literal that holds a single integer: the limit of a loop. The values of larger ones stay unread. */
static bool read_literal(xpr_hlo *hlo, xpr_wire *outer, int32_t op) {
    xpr_wire w, packed;
    uint32_t tag;
    uint64_t value;
    if (!xpr_wire_inner(outer, &w)) return false;
    while (w.at != w.end) {
        if (!xpr_wire_tag(&w, &tag)) return false;
        uint32_t field = tag >> 3;
        bool integers = field >= 4 && field <= 7; /* s32s, s64s, u32s, u64s */
        if (integers && (tag & 7) == XPR_VARINT) {
            if (!read_number(hlo, &w, tag, op, XPR_LITERAL)) return false;
        } else if (integers && (tag & 7) == XPR_LEN) {
            if (!xpr_wire_inner(&w, &packed)) return false;
            if (packed.at == packed.end) continue;
            if (!xpr_wire_varint(&packed, &value)) return false;
            if (packed.at == packed.end && !add_number(hlo, &packed, op, XPR_LITERAL, value)) return false;
        } else if (!xpr_wire_skip(&w, tag)) {
            return false;
        }
    }
    return true;
}

bool xpr_hlo_read_attribute(xpr_hlo *hlo, xpr_wire *w, uint32_t tag, int32_t op) {
    switch (tag) {
    case XPR_TAG(8, XPR_LEN):
        return read_literal(hlo, w, op);
    case XPR_TAG(11, XPR_LEN):
        return add_text(hlo, w, op, XPR_FUSION_KIND);
    case XPR_TAG(15, XPR_LEN):
        return read_window(hlo, w, op);
    case XPR_TAG(16, XPR_LEN):
        return read_message(hlo, w, op, -1, convolution_numbers, COUNT(convolution_numbers));
    case XPR_TAG(28, XPR_LEN):
        return add_text(hlo, w, op, XPR_CUSTOM_CALL_TARGET);
    case XPR_TAG(30, XPR_LEN):
        return read_message(hlo, w, op, -1, dot_numbers, COUNT(dot_numbers));
    case XPR_TAG(43, XPR_LEN):
        return add_text(hlo, w, op, XPR_BACKEND_CONFIG);
    case XPR_TAG(49, XPR_LEN):
        return read_message(hlo, w, op, XPR_REPLICA_GROUP, group_numbers, COUNT(group_numbers));
    case XPR_TAG(51, XPR_LEN):
        return read_message(hlo, w, op, -1, precision_numbers, COUNT(precision_numbers));
    case XPR_TAG(52, XPR_LEN):
        return read_message(hlo, w, op, XPR_SOURCE_TARGET, pair_numbers, COUNT(pair_numbers));
    case XPR_TAG(63, XPR_LEN):
        return add_text(hlo, w, op, XPR_COMPARISON_DIRECTION);
    case XPR_TAG(87, XPR_LEN):
        return read_device_list(hlo, w, op);
    }
    int key = key_of(instruction_numbers, COUNT(instruction_numbers), tag);
    return key >= 0 ? read_number(hlo, w, tag, op, (uint8_t)key) : xpr_wire_skip(w, tag);
}

/* What a ShapeProto says of itself: its element type, and whether a dimension is a bound rather than a size. */
static bool shape_kind(xpr_wire w, uint64_t *element_type, bool *dynamic) {
    uint32_t tag;
    while (w.at != w.end) {
        xpr_wire packed;
        uint64_t value;
        if (!xpr_wire_tag(&w, &tag)) return false;
        if (tag == XPR_TAG(2, XPR_VARINT)) {
            if (!xpr_wire_varint(&w, element_type)) return false;
        } else if (tag == XPR_TAG(6, XPR_VARINT)) {
            if (!xpr_wire_varint(&w, &value)) return false;
            *dynamic |= value != 0;
        } else if (tag == XPR_TAG(6, XPR_LEN)) {
            if (!xpr_wire_inner(&w, &packed)) return false;
            while (packed.at != packed.end) {
                if (!xpr_wire_varint(&packed, &value)) return false;
                *dynamic |= value != 0;
            }
        } else if (!xpr_wire_skip(&w, tag)) {
            return false;
        }
    }
    return true;
}

static bool add_dimension(xpr_hlo *hlo, const xpr_wire *w, int32_t shape, uint64_t size) {
    xpr_table *table = &hlo->dimensions;
    if (!xpr_table_room(table)) return no_memory(w);
    xpr_i32(table, XPR_DIMENSIONS_SHAPE)[table->count] = shape;
    xpr_i64(table, XPR_DIMENSIONS_SIZE)[table->count++] = (int64_t)size;
    return true;
}

/* The memory space and element size of a LayoutProto into the last row of `shapes`. */
static bool read_layout(xpr_hlo *hlo, xpr_wire *outer) {
    xpr_wire w;
    uint32_t tag;
    size_t row = hlo->shapes.count - 1;
    if (!xpr_wire_inner(outer, &w)) return false;
    while (w.at != w.end) {
        uint64_t value;
        if (!xpr_wire_tag(&w, &tag)) return false;
        if (tag == XPR_TAG(7, XPR_VARINT) || tag == XPR_TAG(8, XPR_VARINT)) {
            if (!xpr_wire_varint(&w, &value)) return false;
            xpr_i32(&hlo->shapes, tag >> 3 == 7 ? XPR_SHAPES_BITS : XPR_SHAPES_SPACE)[row] = (int32_t)value;
        } else if (!xpr_wire_skip(&w, tag)) {
            return false;
        }
    }
    return true;
}

/* `element`: which element of the instruction's tuple this is part of, -1 where it is not part of one. */
static bool read_shape(xpr_hlo *hlo, xpr_wire *w, int32_t op, int32_t element, int depth) {
    uint64_t element_type = 0, size;
    bool dynamic = false;
    uint32_t tag;
    if (depth == SHAPE_DEPTH) return xpr_wire_fail(w, w->at, "shapes nested too deep");
    if (!shape_kind(*w, &element_type, &dynamic)) return false;
    bool tuple = element_type == TUPLE;
    xpr_table *table = &hlo->shapes;
    int32_t row = (int32_t)table->count, next = 0;
    if (!tuple) {
        if (table->count >= INT32_MAX || !xpr_table_room(table)) return no_memory(w);
        xpr_i32(table, XPR_SHAPES_OP)[row] = op;
        xpr_i32(table, XPR_SHAPES_ELEMENT)[row] = element;
        xpr_i32(table, XPR_SHAPES_TYPE)[row] = (int32_t)element_type;
        xpr_u8(table, XPR_SHAPES_DYNAMIC)[row] = dynamic;
        xpr_i32(table, XPR_SHAPES_SPACE)[row] = 0;
        xpr_i32(table, XPR_SHAPES_BITS)[row] = 0;
        table->count++;
    }
    while (w->at != w->end) {
        xpr_wire inner;
        if (!xpr_wire_tag(w, &tag)) return false;
        if (tuple && tag == XPR_TAG(4, XPR_LEN)) {
            int32_t inner_element = element >= 0 ? element : next++;
            if (!xpr_wire_inner(w, &inner) || !read_shape(hlo, &inner, op, inner_element, depth + 1)) return false;
        } else if (!tuple && tag == XPR_TAG(3, XPR_VARINT)) {
            if (!xpr_wire_varint(w, &size) || !add_dimension(hlo, w, row, size)) return false;
        } else if (!tuple && tag == XPR_TAG(3, XPR_LEN)) {
            if (!xpr_wire_inner(w, &inner)) return false;
            while (inner.at != inner.end)
                if (!xpr_wire_varint(&inner, &size) || !add_dimension(hlo, &inner, row, size)) return false;
        } else if (!tuple && tag == XPR_TAG(5, XPR_LEN)) {
            if (!read_layout(hlo, w)) return false;
        } else if (!xpr_wire_skip(w, tag)) {
            return false;
        }
    }
    return true;
}

bool xpr_hlo_read_shape(xpr_hlo *hlo, xpr_wire *w, int32_t op) { return read_shape(hlo, w, op, -1, 0); }

bool xpr_hlo_read_device_assignment(xpr_hlo *hlo, xpr_wire *w) {
    uint32_t tag;
    while (w->at != w->end) {
        uint64_t value;
        if (!xpr_wire_tag(w, &tag)) return false;
        if (tag == XPR_TAG(1, XPR_VARINT) || tag == XPR_TAG(2, XPR_VARINT)) {
            if (!xpr_wire_varint(w, &value)) return false;
            *(tag >> 3 == 1 ? &hlo->replica_count : &hlo->partition_count) = (int64_t)value;
        } else if (!xpr_wire_skip(w, tag)) {
            return false;
        }
    }
    return true;
}
