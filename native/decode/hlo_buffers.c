#include "decode/hlo_buffers.h"

#include "decode/place.h"

static const xpr_column_spec sequence_columns[] = {{"computation", 'q'}};
static const xpr_column_spec schedule_columns[] = {{"sequence", 'i'}, {"instruction", 'q'}};
static const xpr_column_spec buffer_columns[] = {{"id", 'q'},      {"size", 'q'},  {"instruction", 'q'},
                                                 {"element", 'i'}, {"depth", 'i'}, {"color", 'i'}};
static const xpr_column_spec allocation_columns[] = {{"index", 'q'},     {"size", 'q'},         {"parameter_number", 'q'},
                                                     {"color", 'i'},     {"parameter", 'B'},    {"live_out", 'B'},
                                                     {"constant", 'B'},  {"thread_local", 'B'}, {"tuple", 'B'}};
static const xpr_column_spec assigned_columns[] = {{"allocation", 'i'}, {"buffer", 'q'}, {"offset", 'q'}, {"size", 'q'}};
static const xpr_column_spec trace_columns[] = {{"allocation", 'q'}};
static const xpr_column_spec event_columns[] = {{"trace", 'i'}, {"kind", 'B'}, {"buffer", 'q'}, {"shares_with", 'q'}};

void xpr_hlo_init_buffers(xpr_hlo *hlo) {
    xpr_table_init(&hlo->sequences, sequence_columns, XPR_SEQUENCES_WIDTH);
    xpr_table_init(&hlo->schedule, schedule_columns, XPR_SCHEDULE_WIDTH);
    xpr_table_init(&hlo->buffers, buffer_columns, XPR_BUFFERS_WIDTH);
    xpr_table_init(&hlo->allocations, allocation_columns, XPR_ALLOCATIONS_WIDTH);
    xpr_table_init(&hlo->assigned, assigned_columns, XPR_ASSIGNED_WIDTH);
    xpr_table_init(&hlo->heap_traces, trace_columns, XPR_HEAP_TRACES_WIDTH);
    xpr_table_init(&hlo->heap_events, event_columns, XPR_HEAP_EVENTS_WIDTH);
}

static bool room(xpr_table *table, const xpr_wire *w) {
    return (table->count < INT32_MAX && xpr_table_room(table)) || xpr_wire_fail(w, w->at, XPR_OUT_OF_MEMORY);
}

/* Fields 1 to `count` of a message of numbers, the rest skipped. */
static bool read_numbers(xpr_wire *w, uint64_t *values, uint32_t count) {
    uint32_t tag;
    while (w->at != w->end) {
        if (!xpr_wire_tag(w, &tag)) return false;
        bool wanted = (tag & 7) == XPR_VARINT && tag >> 3 <= count;
        if (!(wanted ? xpr_wire_varint(w, &values[(tag >> 3) - 1]) : xpr_wire_skip(w, tag))) return false;
    }
    return true;
}

/* `element`: the first number of the shape index, -1 where it is empty; `depth`: how many it has. */
typedef struct {
    uint64_t instruction;
    int32_t element, depth;
} location;

static void go_deeper(location *at, uint64_t index) {
    if (at->depth == 0) at->element = index <= INT32_MAX ? (int32_t)index : INT32_MAX;
    if (at->depth < INT32_MAX) at->depth++;
}

static bool read_location(xpr_wire *w, location *at) {
    uint64_t number;
    uint32_t tag;
    *at = (location){0, -1, 0};
    while (w->at != w->end) {
        xpr_wire packed;
        if (!xpr_wire_tag(w, &tag)) return false;
        if (tag == XPR_TAG(4, XPR_VARINT)) {
            if (!xpr_wire_varint(w, &at->instruction)) return false;
        } else if (tag == XPR_TAG(3, XPR_VARINT)) {
            if (!xpr_wire_varint(w, &number)) return false;
            go_deeper(at, number);
        } else if (tag == XPR_TAG(3, XPR_LEN)) {
            if (!xpr_wire_inner(w, &packed)) return false;
            while (packed.at != packed.end) {
                if (!xpr_wire_varint(&packed, &number)) return false;
                go_deeper(at, number);
            }
        } else if (!xpr_wire_skip(w, tag)) {
            return false;
        }
    }
    return true;
}

static bool read_buffer(xpr_hlo *hlo, xpr_wire *w) {
    xpr_table *table = &hlo->buffers;
    location at = {0, -1, 0};
    uint64_t id = 0, size = 0, color = 0;
    uint32_t tag;
    if (!room(table, w)) return false;
    while (w->at != w->end) {
        xpr_wire inner;
        if (!xpr_wire_tag(w, &tag)) return false;
        bool read = tag == XPR_TAG(1, XPR_VARINT)   ? xpr_wire_varint(w, &id)
                    : tag == XPR_TAG(2, XPR_VARINT) ? xpr_wire_varint(w, &size)
                    : tag == XPR_TAG(3, XPR_LEN)    ? xpr_wire_inner(w, &inner) && read_location(&inner, &at)
                    : tag == XPR_TAG(4, XPR_VARINT) ? xpr_wire_varint(w, &color)
                                                    : xpr_wire_skip(w, tag);
        if (!read) return false;
    }
    size_t row = table->count++;
    xpr_i64(table, XPR_BUFFERS_ID)[row] = (int64_t)id;
    xpr_i64(table, XPR_BUFFERS_SIZE)[row] = (int64_t)size;
    xpr_i64(table, XPR_BUFFERS_INSTRUCTION)[row] = (int64_t)at.instruction;
    xpr_i32(table, XPR_BUFFERS_ELEMENT)[row] = at.element;
    xpr_i32(table, XPR_BUFFERS_DEPTH)[row] = at.depth;
    xpr_i32(table, XPR_BUFFERS_COLOR)[row] = (int32_t)color;
    return true;
}

static bool read_assigned(xpr_hlo *hlo, xpr_wire *w, int32_t allocation) {
    xpr_table *table = &hlo->assigned;
    uint64_t values[3] = {0, 0, 0};
    if (!room(table, w) || !read_numbers(w, values, 3)) return false;
    size_t row = table->count++;
    xpr_i32(table, XPR_ASSIGNED_ALLOCATION)[row] = allocation;
    for (int i = 0; i < 3; i++) xpr_i64(table, XPR_ASSIGNED_BUFFER + i)[row] = (int64_t)values[i];
    return true;
}

static bool read_allocation(xpr_hlo *hlo, xpr_wire *w) {
    enum { INDEX = 1, SIZE = 2, THREAD_LOCAL = 3, PARAMETER = 5, NUMBER = 6, LIVE_OUT = 7, COLOR = 8, TUPLE = 11,
           CONSTANT = 12, FIELDS };
    xpr_table *table = &hlo->allocations;
    uint64_t values[FIELDS] = {0};
    uint32_t tag;
    if (!room(table, w)) return false;
    int32_t row = (int32_t)table->count;
    while (w->at != w->end) {
        xpr_wire inner;
        if (!xpr_wire_tag(w, &tag)) return false;
        bool number = (tag & 7) == XPR_VARINT && tag >> 3 < FIELDS;
        bool read = tag == XPR_TAG(9, XPR_LEN) ? xpr_wire_inner(w, &inner) && read_assigned(hlo, &inner, row)
                    : number                   ? xpr_wire_varint(w, &values[tag >> 3])
                                               : xpr_wire_skip(w, tag);
        if (!read) return false;
    }
    table->count++;
    xpr_i64(table, XPR_ALLOCATIONS_INDEX)[row] = (int64_t)values[INDEX];
    xpr_i64(table, XPR_ALLOCATIONS_SIZE)[row] = (int64_t)values[SIZE];
    xpr_i64(table, XPR_ALLOCATIONS_PARAMETER_NUMBER)[row] = (int64_t)values[NUMBER];
    xpr_i32(table, XPR_ALLOCATIONS_COLOR)[row] = (int32_t)values[COLOR];
    xpr_u8(table, XPR_ALLOCATIONS_PARAMETER)[row] = values[PARAMETER] != 0;
    xpr_u8(table, XPR_ALLOCATIONS_LIVE_OUT)[row] = values[LIVE_OUT] != 0;
    xpr_u8(table, XPR_ALLOCATIONS_CONSTANT)[row] = values[CONSTANT] != 0;
    xpr_u8(table, XPR_ALLOCATIONS_THREAD_LOCAL)[row] = values[THREAD_LOCAL] != 0;
    xpr_u8(table, XPR_ALLOCATIONS_TUPLE)[row] = values[TUPLE] != 0;
    return true;
}

static bool read_heap_event(xpr_hlo *hlo, xpr_wire *w, int32_t trace) {
    xpr_table *table = &hlo->heap_events;
    uint64_t values[5] = {0, 0, 0, 0, 0};
    if (!room(table, w) || !read_numbers(w, values, 5)) return false;
    size_t row = table->count++;
    xpr_i32(table, XPR_HEAP_EVENTS_TRACE)[row] = trace;
    xpr_u8(table, XPR_HEAP_EVENTS_KIND)[row] = values[0] < UINT8_MAX ? (uint8_t)values[0] : UINT8_MAX;
    xpr_i64(table, XPR_HEAP_EVENTS_BUFFER)[row] = (int64_t)values[1];
    xpr_i64(table, XPR_HEAP_EVENTS_SHARES_WITH)[row] = (int64_t)values[4];
    return true;
}

static bool read_heap_trace(xpr_hlo *hlo, xpr_wire *w) {
    xpr_table *table = &hlo->heap_traces;
    uint64_t allocation = 0;
    uint32_t tag;
    if (!room(table, w)) return false;
    int32_t row = (int32_t)table->count;
    while (w->at != w->end) {
        xpr_wire inner;
        if (!xpr_wire_tag(w, &tag)) return false;
        bool read = tag == XPR_TAG(1, XPR_LEN)      ? xpr_wire_inner(w, &inner) && read_heap_event(hlo, &inner, row)
                    : tag == XPR_TAG(3, XPR_VARINT) ? xpr_wire_varint(w, &allocation)
                                                    : xpr_wire_skip(w, tag);
        if (!read) return false;
    }
    table->count++;
    xpr_i64(table, XPR_HEAP_TRACES_ALLOCATION)[row] = (int64_t)allocation;
    return true;
}

bool xpr_hlo_read_buffer_assignment(xpr_hlo *hlo, xpr_wire *w) {
    uint32_t tag;
    hlo->has_buffer_assignment = true;
    while (w->at != w->end) {
        xpr_wire inner;
        if (!xpr_wire_tag(w, &tag)) return false;
        bool read = tag == XPR_TAG(1, XPR_LEN)   ? xpr_wire_inner(w, &inner) && read_buffer(hlo, &inner)
                    : tag == XPR_TAG(3, XPR_LEN) ? xpr_wire_inner(w, &inner) && read_allocation(hlo, &inner)
                    : tag == XPR_TAG(4, XPR_LEN) ? xpr_wire_inner(w, &inner) && read_heap_trace(hlo, &inner)
                                                 : xpr_wire_skip(w, tag);
        if (!read) return false;
    }
    return true;
}

static bool add_scheduled(xpr_hlo *hlo, const xpr_wire *w, int32_t sequence, uint64_t instruction) {
    xpr_table *table = &hlo->schedule;
    if (!room(table, w)) return false;
    xpr_i32(table, XPR_SCHEDULE_SEQUENCE)[table->count] = sequence;
    xpr_i64(table, XPR_SCHEDULE_INSTRUCTION)[table->count++] = (int64_t)instruction;
    return true;
}

/* InstructionSequence: repeated int64, packed as it is written today, or one field per number. */
static bool read_instructions(xpr_hlo *hlo, xpr_wire *w, int32_t sequence) {
    uint64_t id;
    uint32_t tag;
    while (w->at != w->end) {
        xpr_wire packed;
        if (!xpr_wire_tag(w, &tag)) return false;
        if (tag == XPR_TAG(1, XPR_VARINT)) {
            if (!xpr_wire_varint(w, &id) || !add_scheduled(hlo, w, sequence, id)) return false;
        } else if (tag == XPR_TAG(1, XPR_LEN)) {
            if (!xpr_wire_inner(w, &packed)) return false;
            while (packed.at != packed.end)
                if (!xpr_wire_varint(&packed, &id) || !add_scheduled(hlo, &packed, sequence, id)) return false;
        } else if (!xpr_wire_skip(w, tag)) {
            return false;
        }
    }
    return true;
}

/* An entry of the map computation id -> InstructionSequence. */
static bool read_sequence(xpr_hlo *hlo, xpr_wire *w) {
    xpr_table *table = &hlo->sequences;
    uint64_t computation = 0;
    uint32_t tag;
    if (!room(table, w)) return false;
    int32_t row = (int32_t)table->count;
    while (w->at != w->end) {
        xpr_wire inner;
        if (!xpr_wire_tag(w, &tag)) return false;
        bool read = tag == XPR_TAG(1, XPR_VARINT) ? xpr_wire_varint(w, &computation)
                    : tag == XPR_TAG(2, XPR_LEN)  ? xpr_wire_inner(w, &inner) && read_instructions(hlo, &inner, row)
                                                  : xpr_wire_skip(w, tag);
        if (!read) return false;
    }
    xpr_i64(table, XPR_SEQUENCES_COMPUTATION)[row] = (int64_t)computation;
    table->count++;
    return true;
}

bool xpr_hlo_read_schedule(xpr_hlo *hlo, xpr_wire *w) {
    uint32_t tag;
    while (w->at != w->end) {
        xpr_wire inner;
        if (!xpr_wire_tag(w, &tag)) return false;
        bool read = tag == XPR_TAG(1, XPR_LEN) ? xpr_wire_inner(w, &inner) && read_sequence(hlo, &inner)
                                               : xpr_wire_skip(w, tag);
        if (!read) return false;
    }
    return true;
}
