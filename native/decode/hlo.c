#include "decode/hlo.h"

#include <string.h>

#include "decode/hlo_attributes.h"
#include "decode/hlo_buffers.h"
#include "decode/wire.h"

static const xpr_column_spec computation_columns[] = {{"id", 'q'}, {"root", 'i'}, {"entry", 'B'}};
static const xpr_column_spec instruction_columns[] = {{"id", 'q'},          {"computation", 'i'}, {"opcode", 'i'},
                                                      {"source_file", 'i'}, {"source_line", 'i'}, {"stack_frame", 'i'}};
static const xpr_column_spec operand_columns[] = {{"op", 'i'}, {"operand", 'i'}};
static const xpr_column_spec call_columns[] = {{"op", 'i'}, {"computation", 'i'}};
static const xpr_column_spec location_columns[] = {{"file", 'i'}, {"function", 'i'}, {"line", 'i'}, {"column", 'i'}};
static const xpr_column_spec frame_columns[] = {{"location", 'i'}, {"parent", 'i'}};
static const xpr_column_spec shape_columns[] = {{"op", 'i'},      {"element", 'i'}, {"type", 'i'},
                                                {"dynamic", 'B'}, {"space", 'i'},   {"bits", 'i'}};
static const xpr_column_spec dimension_columns[] = {{"shape", 'i'}, {"size", 'q'}};
static const xpr_column_spec attribute_columns[] = {{"op", 'i'}, {"key", 'B'}, {"value", 'q'}};
static const xpr_column_spec text_columns[] = {{"op", 'i'}, {"key", 'B'}, {"text", 'i'}};
static const xpr_column_spec id_columns[] = {{"op", 'i'}, {"id", 'q'}};

typedef struct {
    xpr_hlo *hlo;
    xpr_failure failure;
    xpr_place place;
    xpr_table operand_ids; /* of the computation being read */
    xpr_table called_ids;  /* of the whole module */
    xpr_id_map instructions;
    xpr_id_map computations;
    uint64_t entry_id;
    bool has_entry_id;
} decoder;

static bool no_memory(decoder *d, const uint8_t *at) {
    d->failure.at = at;
    d->failure.reason = XPR_OUT_OF_MEMORY;
    return false;
}

static bool enter(decoder *d, const char *field, uint64_t index) {
    d->place.level[d->place.depth].field = field;
    d->place.level[d->place.depth].index = index;
    d->place.depth++;
    return true;
}

static void leave(decoder *d) { d->place.depth--; }

typedef struct {
    const uint8_t *bytes;
    size_t length;
} text_field;

static bool read_text(xpr_wire *w, text_field *text) { return xpr_wire_bytes(w, &text->bytes, &text->length); }

static bool append(decoder *d, xpr_strings *strings, text_field text) {
    return xpr_strings_append(strings, text.bytes, text.length) || no_memory(d, text.bytes);
}

static bool append_read(decoder *d, xpr_wire *w, xpr_strings *strings) {
    text_field text;
    return read_text(w, &text) && append(d, strings, text);
}

static bool add_id(decoder *d, xpr_table *table, const uint8_t *at, int32_t op, uint64_t id) {
    if (!xpr_table_room(table)) return no_memory(d, at);
    xpr_i32(table, 0)[table->count] = op;
    xpr_i64(table, 1)[table->count++] = (int64_t)id;
    return true;
}

/* Repeated int64: packed, as it is written today, or one field per number. */
static bool read_ids(decoder *d, xpr_wire *w, uint32_t tag, xpr_table *table, int32_t op) {
    uint64_t id;
    if ((tag & 7) == XPR_VARINT) return xpr_wire_varint(w, &id) && add_id(d, table, w->at, op, id);
    xpr_wire packed;
    if (!xpr_wire_inner(w, &packed)) return false;
    while (packed.at != packed.end)
        if (!xpr_wire_varint(&packed, &id) || !add_id(d, table, packed.at, op, id)) return false;
    return true;
}

typedef struct {
    text_field op_name, source_file;
    uint64_t source_line, stack_frame;
} op_metadata;

static bool read_op_metadata(xpr_wire *w, op_metadata *metadata) {
    uint32_t tag;
    while (w->at != w->end) {
        if (!xpr_wire_tag(w, &tag)) return false;
        bool read = tag == XPR_TAG(2, XPR_LEN)       ? read_text(w, &metadata->op_name)
                    : tag == XPR_TAG(3, XPR_LEN)     ? read_text(w, &metadata->source_file)
                    : tag == XPR_TAG(4, XPR_VARINT)  ? xpr_wire_varint(w, &metadata->source_line)
                    : tag == XPR_TAG(15, XPR_VARINT) ? xpr_wire_varint(w, &metadata->stack_frame)
                                                     : xpr_wire_skip(w, tag);
        if (!read) return false;
    }
    return true;
}

static bool read_instruction(decoder *d, xpr_wire *w, int32_t computation) {
    xpr_hlo *hlo = d->hlo;
    const uint8_t *start = w->at;
    xpr_table *table = &hlo->instructions;
    text_field name = {NULL, 0}, opcode = {NULL, 0};
    op_metadata metadata = {{NULL, 0}, {NULL, 0}, 0, 0};
    uint64_t id = 0;
    uint32_t tag;
    if (table->count >= INT32_MAX || !xpr_table_room(table)) return no_memory(d, start);
    int32_t row = (int32_t)table->count;
    while (w->at != w->end) {
        xpr_wire inner;
        bool read;
        if (!xpr_wire_tag(w, &tag)) return false;
        switch (tag) {
        case XPR_TAG(1, XPR_LEN):
            read = read_text(w, &name);
            break;
        case XPR_TAG(2, XPR_LEN):
            read = read_text(w, &opcode);
            break;
        case XPR_TAG(3, XPR_LEN):
            read = xpr_wire_inner(w, &inner) && xpr_hlo_read_shape(hlo, &inner, row);
            break;
        case XPR_TAG(7, XPR_LEN):
            read = xpr_wire_inner(w, &inner) && read_op_metadata(&inner, &metadata);
            break;
        case XPR_TAG(35, XPR_VARINT):
            read = xpr_wire_varint(w, &id);
            break;
        case XPR_TAG(36, XPR_VARINT):
        case XPR_TAG(36, XPR_LEN):
            read = read_ids(d, w, tag, &d->operand_ids, row);
            break;
        case XPR_TAG(38, XPR_VARINT):
        case XPR_TAG(38, XPR_LEN):
            read = read_ids(d, w, tag, &d->called_ids, row);
            break;
        default:
            read = xpr_hlo_read_attribute(hlo, w, tag, row);
        }
        if (!read) return false;
    }
    const text_field *file = &metadata.source_file;
    int32_t opcode_number = xpr_dictionary_number(&hlo->opcodes, opcode.bytes, opcode.length);
    int32_t file_number = xpr_dictionary_number(&hlo->source_files, file->bytes, file->length);
    int32_t before;
    if (opcode_number < 0 || file_number < 0 || !xpr_id_map_set(&d->instructions, id, row, &before))
        return no_memory(d, start);
    xpr_i64(table, XPR_INSTRUCTIONS_ID)[row] = (int64_t)id;
    xpr_i32(table, XPR_INSTRUCTIONS_COMPUTATION)[row] = computation;
    xpr_i32(table, XPR_INSTRUCTIONS_OPCODE)[row] = opcode_number;
    xpr_i32(table, XPR_INSTRUCTIONS_SOURCE_FILE)[row] = file_number;
    xpr_i32(table, XPR_INSTRUCTIONS_SOURCE_LINE)[row] = (int32_t)metadata.source_line;
    xpr_i32(table, XPR_INSTRUCTIONS_STACK_FRAME)[row] = (int32_t)metadata.stack_frame;
    table->count++;
    return append(d, &hlo->instruction_names, name) && append(d, &hlo->op_names, metadata.op_name);
}

static bool read_computation(decoder *d, xpr_wire *w) {
    xpr_hlo *hlo = d->hlo;
    const uint8_t *start = w->at;
    text_field name = {NULL, 0};
    uint64_t id = 0, root_id = 0, instructions = 0;
    int32_t before;
    uint32_t tag;
    if (hlo->computations.count >= INT32_MAX || !xpr_table_room(&hlo->computations)) return no_memory(d, start);
    int32_t row = (int32_t)hlo->computations.count;
    d->operand_ids.count = 0;
    xpr_id_map_free(&d->instructions);
    if (!xpr_id_map_init(&d->instructions, 0)) return no_memory(d, start);
    while (w->at != w->end) {
        xpr_wire inner;
        bool read;
        if (!xpr_wire_tag(w, &tag)) return false;
        switch (tag) {
        case XPR_TAG(1, XPR_LEN):
            read = read_text(w, &name);
            break;
        case XPR_TAG(2, XPR_LEN):
            read = enter(d, "instructions", instructions++) && xpr_wire_inner(w, &inner) &&
                   read_instruction(d, &inner, row);
            if (read) leave(d);
            break;
        case XPR_TAG(5, XPR_VARINT):
            read = xpr_wire_varint(w, &id);
            break;
        case XPR_TAG(6, XPR_VARINT):
            read = xpr_wire_varint(w, &root_id);
            break;
        default:
            read = xpr_wire_skip(w, tag);
        }
        if (!read) return false;
    }
    for (size_t i = 0; i < d->operand_ids.count; i++) {
        xpr_table *operands = &hlo->operands;
        if (!xpr_table_room(operands)) return no_memory(d, start);
        xpr_i32(operands, XPR_EDGES_OP)[operands->count] = xpr_i32(&d->operand_ids, 0)[i];
        xpr_i32(operands, XPR_EDGES_TO)[operands->count++] =
            xpr_id_map_row(&d->instructions, (uint64_t)xpr_i64(&d->operand_ids, 1)[i]);
    }
    xpr_i64(&hlo->computations, XPR_COMPUTATIONS_ID)[row] = (int64_t)id;
    xpr_i32(&hlo->computations, XPR_COMPUTATIONS_ROOT)[row] = xpr_id_map_row(&d->instructions, root_id);
    xpr_u8(&hlo->computations, XPR_COMPUTATIONS_ENTRY)[row] = 0;
    hlo->computations.count++;
    return (xpr_id_map_set(&d->computations, id, row, &before) || no_memory(d, start)) &&
           append(d, &hlo->computation_names, name);
}

/* A message of up to four int32 fields numbered from 1: FileLocation and StackFrame. */
static bool read_numbers(decoder *d, xpr_wire *w, xpr_table *table) {
    if (!xpr_table_room(table)) return no_memory(d, w->at);
    for (int i = 0; i < table->width; i++) xpr_i32(table, i)[table->count] = 0;
    uint32_t tag;
    while (w->at != w->end) {
        uint64_t value;
        if (!xpr_wire_tag(w, &tag)) return false;
        if ((tag & 7) == XPR_VARINT && tag >> 3 <= (uint32_t)table->width) {
            if (!xpr_wire_varint(w, &value)) return false;
            xpr_i32(table, (int)(tag >> 3) - 1)[table->count] = (int32_t)value;
        } else if (!xpr_wire_skip(w, tag)) {
            return false;
        }
    }
    table->count++;
    return true;
}

static bool read_stack_frames(decoder *d, xpr_wire *w) {
    xpr_hlo *hlo = d->hlo;
    uint32_t tag;
    while (w->at != w->end) {
        xpr_wire inner;
        bool read;
        if (!xpr_wire_tag(w, &tag)) return false;
        switch (tag) {
        case XPR_TAG(1, XPR_LEN):
            read = append_read(d, w, &hlo->file_names);
            break;
        case XPR_TAG(2, XPR_LEN):
            read = append_read(d, w, &hlo->function_names);
            break;
        case XPR_TAG(3, XPR_LEN):
            read = enter(d, "file_locations", hlo->locations.count) && xpr_wire_inner(w, &inner) &&
                   read_numbers(d, &inner, &hlo->locations);
            if (read) leave(d);
            break;
        case XPR_TAG(4, XPR_LEN):
            read = enter(d, "stack_frames", hlo->frames.count) && xpr_wire_inner(w, &inner) &&
                   read_numbers(d, &inner, &hlo->frames);
            if (read) leave(d);
            break;
        default:
            read = xpr_wire_skip(w, tag);
        }
        if (!read) return false;
    }
    return true;
}

static bool read_module(decoder *d, xpr_wire *w, text_field *name, text_field *entry_name) {
    uint64_t id;
    uint32_t tag;
    while (w->at != w->end) {
        xpr_wire inner;
        bool read;
        if (!xpr_wire_tag(w, &tag)) return false;
        switch (tag) {
        case XPR_TAG(1, XPR_LEN):
            read = read_text(w, name);
            break;
        case XPR_TAG(2, XPR_LEN):
            read = read_text(w, entry_name);
            break;
        case XPR_TAG(3, XPR_LEN):
            read = enter(d, "computations", d->hlo->computations.count) && xpr_wire_inner(w, &inner) &&
                   read_computation(d, &inner);
            if (read) leave(d);
            break;
        case XPR_TAG(5, XPR_VARINT):
            read = xpr_wire_varint(w, &id);
            if (read) d->hlo->id = (int64_t)id;
            break;
        case XPR_TAG(6, XPR_VARINT):
            read = xpr_wire_varint(w, &d->entry_id);
            d->has_entry_id = true;
            break;
        case XPR_TAG(7, XPR_LEN):
            read = enter(d, "schedule", 0) && xpr_wire_inner(w, &inner) && xpr_hlo_read_schedule(d->hlo, &inner);
            if (read) leave(d);
            break;
        case XPR_TAG(15, XPR_LEN):
            read = xpr_wire_inner(w, &inner) && xpr_hlo_read_device_assignment(d->hlo, &inner);
            break;
        case XPR_TAG(17, XPR_LEN):
            read = enter(d, "stack_frame_index", 0) && xpr_wire_inner(w, &inner) && read_stack_frames(d, &inner);
            if (read) leave(d);
            break;
        default:
            read = xpr_wire_skip(w, tag);
        }
        if (!read) return false;
    }
    return true;
}

static bool name_is(const xpr_strings *names, size_t row, text_field wanted) {
    int64_t start = names->offsets[row];
    return (size_t)(names->offsets[row + 1] - start) == wanted.length &&
           (wanted.length == 0 || memcmp(names->bytes + start, wanted.bytes, wanted.length) == 0);
}

/* What can be said only when the whole module is known: calls by row, and the entry. */
static bool resolve(decoder *d, const uint8_t *at, text_field entry_name) {
    xpr_hlo *hlo = d->hlo;
    for (size_t i = 0; i < d->called_ids.count; i++) {
        if (!xpr_table_room(&hlo->calls)) return no_memory(d, at);
        uint64_t called = (uint64_t)xpr_i64(&d->called_ids, 1)[i];
        xpr_i32(&hlo->calls, XPR_EDGES_OP)[i] = xpr_i32(&d->called_ids, 0)[i];
        xpr_i32(&hlo->calls, XPR_EDGES_TO)[i] = xpr_id_map_row(&d->computations, called);
        hlo->calls.count++;
    }
    int32_t entry = d->has_entry_id ? xpr_id_map_row(&d->computations, d->entry_id) : -1;
    for (size_t row = 0; entry < 0 && row < hlo->computations.count; row++)
        if (name_is(&hlo->computation_names, row, entry_name)) entry = (int32_t)row;
    if (entry >= 0) xpr_u8(&hlo->computations, XPR_COMPUTATIONS_ENTRY)[entry] = 1;
    return true;
}

static bool read_hlo(decoder *d, xpr_wire *w) {
    const uint8_t *start = w->at;
    text_field name = {NULL, 0}, entry_name = {NULL, 0};
    uint32_t tag;
    while (w->at != w->end) {
        xpr_wire inner;
        if (!xpr_wire_tag(w, &tag)) return false;
        if (tag == XPR_TAG(1, XPR_LEN)) {
            if (!xpr_wire_inner(w, &inner) || !read_module(d, &inner, &name, &entry_name)) return false;
        } else if (tag == XPR_TAG(3, XPR_LEN)) {
            if (!enter(d, "buffer_assignment", 0) || !xpr_wire_inner(w, &inner) ||
                !xpr_hlo_read_buffer_assignment(d->hlo, &inner))
                return false;
            leave(d);
        } else if (!xpr_wire_skip(w, tag)) {
            return false;
        }
    }
    return append(d, &d->hlo->name, name) && resolve(d, start, entry_name);
}

int xpr_hlo_decode(const uint8_t *bytes, size_t length, xpr_hlo *hlo, xpr_decode_error *error) {
    memset(hlo, 0, sizeof *hlo);
    xpr_table_init(&hlo->computations, computation_columns, XPR_COMPUTATIONS_WIDTH);
    xpr_table_init(&hlo->instructions, instruction_columns, XPR_INSTRUCTIONS_WIDTH);
    xpr_table_init(&hlo->operands, operand_columns, XPR_EDGES_WIDTH);
    xpr_table_init(&hlo->calls, call_columns, XPR_EDGES_WIDTH);
    xpr_table_init(&hlo->locations, location_columns, XPR_LOCATIONS_WIDTH);
    xpr_table_init(&hlo->frames, frame_columns, XPR_FRAMES_WIDTH);
    xpr_table_init(&hlo->shapes, shape_columns, XPR_SHAPES_WIDTH);
    xpr_table_init(&hlo->dimensions, dimension_columns, XPR_DIMENSIONS_WIDTH);
    xpr_table_init(&hlo->attributes, attribute_columns, XPR_ATTRIBUTES_WIDTH);
    xpr_table_init(&hlo->texts, text_columns, XPR_TEXTS_WIDTH);
    xpr_hlo_init_buffers(hlo);
    decoder d = {.hlo = hlo};
    xpr_table_init(&d.operand_ids, id_columns, 2);
    xpr_table_init(&d.called_ids, id_columns, 2);
    xpr_wire w = {bytes, bytes + length, &d.failure};
    bool read = (xpr_id_map_init(&d.computations, 0) || no_memory(&d, bytes)) && read_hlo(&d, &w);
    xpr_table_free(&d.operand_ids);
    xpr_table_free(&d.called_ids);
    xpr_id_map_free(&d.instructions);
    xpr_id_map_free(&d.computations);
    if (read) return 0;
    error->offset = d.failure.at ? (size_t)(d.failure.at - bytes) : 0;
    error->reason = d.failure.reason;
    xpr_place_text(&d.place, error->place, sizeof error->place);
    xpr_hlo_free(hlo);
    return -1;
}

void xpr_hlo_free(xpr_hlo *hlo) {
    xpr_table *tables[] = {&hlo->computations, &hlo->instructions, &hlo->operands,
                           &hlo->calls,        &hlo->locations,    &hlo->frames,
                           &hlo->shapes,       &hlo->dimensions,   &hlo->attributes,
                           &hlo->texts,        &hlo->sequences,    &hlo->schedule,
                           &hlo->buffers,      &hlo->allocations,  &hlo->assigned,
                           &hlo->heap_traces,  &hlo->heap_events};
    xpr_strings *strings[] = {&hlo->name,     &hlo->computation_names, &hlo->instruction_names,
                              &hlo->op_names, &hlo->file_names,        &hlo->function_names};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) xpr_table_free(tables[i]);
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) xpr_strings_free(strings[i]);
    xpr_dictionary_free(&hlo->opcodes);
    xpr_dictionary_free(&hlo->source_files);
    xpr_dictionary_free(&hlo->text_values);
}
