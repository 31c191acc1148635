/* A target per decoder for libFuzzer (clang -fsanitize=fuzzer,address,undefined), named by the environment variable
 * XPR_FUZZ_TARGET: json, wire, xspace or hlo; without it an input goes through all of them. test_decode.c includes this
 * file: the targets are run and kept working also where there is no libFuzzer.
 * They check what every result must satisfy: rows in range, string offsets rising, memory within its bound. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decode/chrome_json.h"
#include "decode/chrome_slices.h"
#include "decode/hlo.h"
#include "columns/utf8.h"
#include "decode/wire.h"
#include "decode/xspace.h"
#include "decode/xspace_slices.h"

#define REQUIRE(claim)                                                      \
    do {                                                                    \
        if (!(claim)) {                                                     \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #claim); \
            abort();                                                        \
        }                                                                   \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static size_t table_bytes(const xpr_table *table) {
    size_t row = 0;
    for (int i = 0; i < table->width; i++) row += xpr_column_size(table->spec[i].type);
    return row * table->room;
}

static void check_same(const xpr_table *a, const xpr_table *b) {
    REQUIRE(a->count == b->count);
    for (int i = 0; i < a->width && a->count; i++)
        REQUIRE(memcmp(a->data[i], b->data[i], a->count * xpr_column_size(a->spec[i].type)) == 0);
}

static void check_same_text(const xpr_strings *a, const xpr_strings *b) {
    REQUIRE(a->count == b->count);
    if (a->count == 0) return;
    REQUIRE(memcmp(a->offsets, b->offsets, (a->count + 1) * sizeof *a->offsets) == 0);
    if (a->offsets[a->count]) REQUIRE(memcmp(a->bytes, b->bytes, (size_t)a->offsets[a->count]) == 0);
}

static void check_same_strings(const xpr_strings *a, const xpr_strings *b) {
    REQUIRE(a->repaired == b->repaired);
    check_same_text(a, b);
}

static void check_strings(const xpr_strings *strings) {
    for (size_t i = 0; i < strings->count; i++) {
        int64_t start = strings->offsets[i], end = strings->offsets[i + 1];
        REQUIRE(0 <= start && start <= end && (size_t)end <= strings->byte_capacity);
        /* Where all are empty there are no bytes to point at. */
        if (end > start) REQUIRE(xpr_utf8_valid((const uint8_t *)strings->bytes + start, (size_t)(end - start)));
    }
}

static void check_rows(const xpr_table *table, int column, size_t limit, int least) {
    for (size_t i = 0; i < table->count; i++) {
        int32_t row = xpr_i32(table, column)[i];
        REQUIRE(row >= least && (row < 0 || (size_t)row < limit));
    }
}

static void check_stats(const xpr_xspace *space, const xpr_table *stats, size_t owners, size_t length) {
    check_rows(stats, XPR_STATS_KEY, space->stat_names.strings.count, 0);
    for (size_t i = 0; i < stats->count; i++) {
        int64_t owner = xpr_i64(stats, XPR_STATS_OWNER)[i], value = xpr_i64(stats, XPR_STATS_VALUE)[i];
        int kind = xpr_u8(stats, XPR_STATS_KIND)[i];
        REQUIRE(owner >= 0 && (size_t)owner < owners && kind <= XPR_BYTES);
        if (kind == XPR_TEXT) REQUIRE(value >= 0 && (size_t)value < space->texts.strings.count);
        if (kind == XPR_BYTES) REQUIRE(value >= 0 && (size_t)value <= length);
        if (kind == XPR_BYTES && stats->width == XPR_PLACED_STATS_WIDTH)
            REQUIRE((size_t)(xpr_i64(stats, XPR_STATS_AT)[i] + value) <= length);
    }
}

static void check_xspace(const xpr_xspace *space, size_t length) {
    size_t events = 0;
    REQUIRE(space->plane_names.count == space->planes.count);
    REQUIRE(space->line_names.count == space->lines.count && space->line_display_names.count == space->lines.count);
    REQUIRE(space->metadata_display_names.count == space->event_metadata.count);
    check_rows(&space->lines, XPR_LINES_PLANE, space->planes.count, 0);
    for (size_t i = 0; i < space->lines.count; i++) events += (size_t)xpr_i64(&space->lines, XPR_LINES_EVENTS)[i];
    REQUIRE(events == space->events.count);
    check_rows(&space->events, XPR_EVENTS_LINE, space->lines.count, 0);
    check_rows(&space->events, XPR_EVENTS_METADATA, space->event_metadata.count, 0);
    check_rows(&space->event_metadata, XPR_EVENT_METADATA_NAME, space->event_names.strings.count, 0);
    check_rows(&space->stat_metadata, XPR_STAT_METADATA_NAME, space->stat_names.strings.count, 0);
    check_rows(&space->stat_metadata, XPR_STAT_METADATA_TEXT, space->texts.strings.count, -1);
    check_stats(space, &space->event_stats, space->events.count, length);
    check_stats(space, &space->metadata_stats, space->event_metadata.count, length);
    check_stats(space, &space->plane_stats, space->planes.count, length);
    const xpr_strings *strings[] = {&space->plane_names, &space->line_names, &space->line_display_names,
                                    &space->metadata_display_names, &space->hostnames, &space->errors,
                                    &space->warnings, &space->event_names.strings, &space->stat_names.strings,
                                    &space->texts.strings};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) check_strings(strings[i]);
    size_t held = table_bytes(&space->events) + table_bytes(&space->event_stats) + table_bytes(&space->lines) +
                  table_bytes(&space->planes) + table_bytes(&space->event_metadata) +
                  table_bytes(&space->stat_metadata) + table_bytes(&space->metadata_stats) +
                  table_bytes(&space->plane_stats) + table_bytes(&space->aggregated);
    REQUIRE(held <= 25 * length + 16 * 400); /* a first allocation holds 16 rows of every table */
}

static void check_keys(const xpr_table *table, int column) {
    for (size_t i = 0; i < table->count; i++) REQUIRE(xpr_u8(table, column)[i] < XPR_HLO_ATTRIBUTES);
}

/* Rows in order of what they belong to: readers search them by it. */
static void check_rising(const xpr_table *table, int column) {
    for (size_t i = 1; i < table->count; i++) REQUIRE(xpr_i32(table, column)[i - 1] <= xpr_i32(table, column)[i]);
}

static void check_hlo(const xpr_hlo *hlo, size_t length) {
    REQUIRE(hlo->instruction_names.count == hlo->instructions.count && hlo->op_names.count == hlo->instructions.count);
    REQUIRE(hlo->computation_names.count == hlo->computations.count && hlo->name.count == 1);
    check_rows(&hlo->instructions, XPR_INSTRUCTIONS_COMPUTATION, hlo->computations.count, 0);
    check_rows(&hlo->instructions, XPR_INSTRUCTIONS_OPCODE, hlo->opcodes.strings.count, 0);
    check_rows(&hlo->instructions, XPR_INSTRUCTIONS_SOURCE_FILE, hlo->source_files.strings.count, 0);
    check_rows(&hlo->computations, XPR_COMPUTATIONS_ROOT, hlo->instructions.count, -1);
    check_rows(&hlo->operands, XPR_EDGES_OP, hlo->instructions.count, 0);
    check_rows(&hlo->operands, XPR_EDGES_TO, hlo->instructions.count, -1);
    check_rows(&hlo->calls, XPR_EDGES_OP, hlo->instructions.count, 0);
    check_rows(&hlo->calls, XPR_EDGES_TO, hlo->computations.count, -1);
    check_rows(&hlo->shapes, XPR_SHAPES_OP, hlo->instructions.count, 0);
    check_rows(&hlo->dimensions, XPR_DIMENSIONS_SHAPE, hlo->shapes.count, 0);
    check_rows(&hlo->attributes, XPR_ATTRIBUTES_OP, hlo->instructions.count, 0);
    check_rows(&hlo->texts, XPR_TEXTS_OP, hlo->instructions.count, 0);
    check_rows(&hlo->texts, XPR_TEXTS_TEXT, hlo->text_values.strings.count, 0);
    check_keys(&hlo->attributes, XPR_ATTRIBUTES_KEY);
    check_keys(&hlo->texts, XPR_TEXTS_KEY);
    check_rising(&hlo->shapes, XPR_SHAPES_OP);
    check_rising(&hlo->dimensions, XPR_DIMENSIONS_SHAPE);
    check_rising(&hlo->attributes, XPR_ATTRIBUTES_OP);
    check_rising(&hlo->texts, XPR_TEXTS_OP);
    check_rows(&hlo->schedule, XPR_SCHEDULE_SEQUENCE, hlo->sequences.count, 0);
    check_rising(&hlo->schedule, XPR_SCHEDULE_SEQUENCE);
    check_rows(&hlo->assigned, XPR_ASSIGNED_ALLOCATION, hlo->allocations.count, 0);
    check_rising(&hlo->assigned, XPR_ASSIGNED_ALLOCATION);
    check_rows(&hlo->heap_events, XPR_HEAP_EVENTS_TRACE, hlo->heap_traces.count, 0);
    check_rising(&hlo->heap_events, XPR_HEAP_EVENTS_TRACE);
    for (size_t i = 0; i < hlo->buffers.count; i++)
        REQUIRE(xpr_i32(&hlo->buffers, XPR_BUFFERS_DEPTH)[i] >= 0 && xpr_i32(&hlo->buffers, XPR_BUFFERS_ELEMENT)[i] >= -1);
    const xpr_table *of_buffers[] = {&hlo->sequences,   &hlo->schedule, &hlo->buffers,
                                     &hlo->allocations, &hlo->assigned, &hlo->heap_traces, &hlo->heap_events};
    size_t in_buffers = 0;
    for (size_t i = 0; i < sizeof of_buffers / sizeof *of_buffers; i++) in_buffers += table_bytes(of_buffers[i]);
    REQUIRE(in_buffers <= 40 * length + 16 * 200);
    REQUIRE(in_buffers == 0 || hlo->has_buffer_assignment || hlo->sequences.room > 0);
    size_t held = table_bytes(&hlo->shapes) + table_bytes(&hlo->dimensions) + table_bytes(&hlo->attributes) +
                  table_bytes(&hlo->texts);
    REQUIRE(held <= 26 * length + 16 * 60); /* a packed number: 1 byte of input, 13 of columns, capacity doubles */
    const xpr_strings *strings[] = {&hlo->name, &hlo->computation_names, &hlo->instruction_names, &hlo->op_names,
                                    &hlo->file_names, &hlo->function_names, &hlo->opcodes.strings,
                                    &hlo->source_files.strings, &hlo->text_values.strings};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) check_strings(strings[i]);
}

/* In pieces of these sizes, 0 for all at once; whether it is read. */
static int scan_chrome(const uint8_t *bytes, size_t length, size_t piece, xpr_chrome *chrome) {
    xpr_decode_error error = {0};
    xpr_chrome_init(chrome);
    int result = 0;
    if (piece == 0) piece = length;
    for (size_t at = 0; at < length && result == 0; at += piece)
        result = xpr_chrome_feed(chrome, bytes + at, length - at < piece ? length - at : piece, &error);
    if (result == 0) result = xpr_chrome_finish(chrome, &error);
    if (result < 0) REQUIRE(error.offset <= length && error.reason != NULL && error.reason != XPR_OUT_OF_MEMORY);
    return result;
}

/* In stretches cut at `wanted` bytes or soon after, two at a time, the later one read first. */
static int slice_chrome(const uint8_t *bytes, size_t length, size_t piece, size_t wanted, xpr_chrome *chrome) {
    enum { AT_ONCE = 3 };
    xpr_chrome_stretch stretches[AT_ONCE];
    xpr_decode_error error = {0};
    bool proven;
    int result = 0;
    xpr_chrome_init(chrome);
    for (size_t i = 0; i < AT_ONCE; i++) xpr_chrome_begin_stretch(&stretches[i]);
    size_t at = 0, full = 0;
    while (result == 0 && (at < length || full == 0)) {
        size_t begun = full;
        for (; at < length && full < begun + 2; at += piece) {
            xpr_chrome_stretch *open = &stretches[full % AT_ONCE];
            REQUIRE(xpr_chrome_hold(&open->chrome, bytes + at, length - at < piece ? length - at : piece));
            int cut = xpr_chrome_cut_stretch(open, wanted, &stretches[(full + 1) % AT_ONCE]);
            REQUIRE(cut >= 0);
            full += (size_t)cut;
        }
        full += at >= length; /* the last one is open */
        for (size_t i = full; i-- > begun;)
            if ((i + length) % 7) xpr_chrome_read_stretch(&stretches[i % AT_ONCE]);
        for (size_t i = begun; i < full && result == 0; i++)
            result = xpr_chrome_join(chrome, &stretches[i % AT_ONCE], &proven, &error);
    }
    for (size_t i = 0; i < AT_ONCE; i++) xpr_chrome_free_stretch(&stretches[i]);
    if (result == 0) result = xpr_chrome_finish(chrome, &error);
    if (result < 0) REQUIRE(error.offset <= length && error.reason != NULL && error.reason != XPR_OUT_OF_MEMORY);
    return result;
}

static void check_same_chrome(const xpr_chrome *a, const xpr_chrome *b) {
    check_same(&a->events, &b->events);
    check_same(&a->args, &b->args);
    check_same(&a->damages, &b->damages);
    const xpr_strings *strings[][2] = {{&a->categories.strings, &b->categories.strings},
                                       {&a->names.strings, &b->names.strings},
                                       {&a->labels.strings, &b->labels.strings},
                                       {&a->texts.strings, &b->texts.strings},
                                       {&a->top_keys, &b->top_keys},
                                       {&a->top_values, &b->top_values}};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) check_same_text(strings[i][0], strings[i][1]);
    REQUIRE(a->odd_strings == b->odd_strings && a->odd_at == b->odd_at && a->large_numbers == b->large_numbers);
    REQUIRE(a->nameless == b->nameless && xpr_chrome_repaired(a) == xpr_chrome_repaired(b));
    REQUIRE(a->truncated == b->truncated && a->truncated_at == b->truncated_at && a->length == b->length);
}

static void check_chrome(const uint8_t *bytes, size_t length) {
    xpr_chrome whole, pieces, slices;
    int result = scan_chrome(bytes, length, 0, &whole);
    REQUIRE(scan_chrome(bytes, length, 1 + length % 61, &pieces) == result);
    REQUIRE(slice_chrome(bytes, length, 1 + length % 53, 1 + length % 191, &slices) == result);
    if (result == 0) {
        check_same_chrome(&whole, &pieces);
        check_same_chrome(&whole, &slices);
        size_t events = whole.events.count;
        check_rows(&whole.events, XPR_CHROME_CATEGORY, whole.categories.strings.count, 0);
        check_rows(&whole.events, XPR_CHROME_NAME, whole.names.strings.count, 0);
        check_rows(&whole.events, XPR_CHROME_PROCESS, whole.labels.strings.count, 0);
        check_rows(&whole.events, XPR_CHROME_THREAD, whole.labels.strings.count, 0);
        check_rows(&whole.events, XPR_CHROME_PS, 1000000, -1);
        for (size_t i = 0; i < whole.args.count; i++) {
            int64_t owner = xpr_i64(&whole.args, XPR_CHROME_ARGS_EVENT)[i];
            REQUIRE(owner >= 0 && (size_t)owner < events);
            REQUIRE(i == 0 || xpr_i64(&whole.args, XPR_CHROME_ARGS_EVENT)[i - 1] <= owner);
            REQUIRE(xpr_u8(&whole.args, XPR_CHROME_ARGS_KEY)[i] < XPR_CHROME_KEYS);
            int64_t value = xpr_i64(&whole.args, XPR_CHROME_ARGS_VALUE)[i];
            if (xpr_u8(&whole.args, XPR_CHROME_ARGS_KIND)[i] == XPR_TEXT)
                REQUIRE(value >= 0 && (size_t)value < whole.texts.strings.count);
        }
        for (size_t i = 0; i < whole.damages.count; i++) {
            int64_t at = xpr_i64(&whole.damages, XPR_CHROME_DAMAGE_AT)[i];
            REQUIRE(at >= 0 && at < xpr_i64(&whole.damages, XPR_CHROME_DAMAGE_END)[i]);
            REQUIRE((size_t)xpr_i64(&whole.damages, XPR_CHROME_DAMAGE_END)[i] <= length);
        }
        const xpr_strings *strings[] = {&whole.categories.strings, &whole.names.strings, &whole.labels.strings,
                                        &whole.texts.strings, &whole.top_keys, &whole.top_values};
        for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) check_strings(strings[i]);
        /* The least event takes 11 bytes, 53 in columns; the least argument 8 and 18; and capacity doubles. */
        size_t held = table_bytes(&whole.events) + table_bytes(&whole.args) + table_bytes(&whole.damages);
        REQUIRE(held <= 12 * length + 16 * 90);
    }
    xpr_chrome_free(&whole);
    xpr_chrome_free(&pieces);
    xpr_chrome_free(&slices);
}

/* Reading a field's value and skipping it end at one place; messages are tried inside every length-delimited field. */
static void check_fields(xpr_wire w, int depth) {
    while (w.at != w.end) {
        const uint8_t *before = w.at, *end = w.end;
        uint32_t tag;
        if (!xpr_wire_tag(&w, &tag)) break;
        REQUIRE(w.at > before && w.at <= end);
        xpr_wire skipped = w;
        bool skips = xpr_wire_skip(&skipped, tag);
        REQUIRE(!skips || (skipped.at >= w.at && skipped.at <= end));
        uint64_t number;
        xpr_wire inner;
        bool reads = skips;
        if ((tag & 7) == XPR_VARINT) reads = xpr_wire_varint(&w, &number);
        else if ((tag & 7) == XPR_FIXED64) reads = xpr_wire_fixed64(&w, &number);
        else if ((tag & 7) == XPR_LEN) reads = xpr_wire_inner(&w, &inner);
        else w = skipped;
        REQUIRE(reads == skips);
        if (!reads) break;
        REQUIRE(w.at == skipped.at);
        if ((tag & 7) == XPR_LEN) {
            REQUIRE(inner.at <= inner.end && inner.end == w.at);
            if (depth > 0) check_fields(inner, depth - 1);
        }
    }
    REQUIRE(w.at <= w.end);
}

static void fuzz_wire(const uint8_t *bytes, size_t length) {
    xpr_failure failure = {bytes, NULL};
    xpr_wire w = {bytes, bytes + length, &failure};
    check_fields(w, 8);
    REQUIRE(failure.at >= bytes && failure.at <= bytes + length);
}

/* Read in slices an XSpace is what it is when read whole, its errors too. `whole` is NULL where that failed. */
static void check_in_slices(const uint8_t *bytes, size_t length, const xpr_xspace *whole,
                                   const xpr_decode_error *wrong) {
    xpr_xspace_slices *slices = xpr_xspace_cut(bytes, length, 1 + length % 5);
    xpr_xspace space;
    xpr_decode_error error;
    REQUIRE(slices != NULL);
    for (size_t i = xpr_xspace_slice_count(slices); i-- > 0;) xpr_xspace_read(slices, i);
    int result = xpr_xspace_join(slices, &space, &error);
    xpr_xspace_slices_free(slices);
    REQUIRE((result == 0) == (whole != NULL));
    if (whole == NULL) {
        REQUIRE(error.offset == wrong->offset && strcmp(error.place, wrong->place) == 0 && error.reason == wrong->reason);
        return;
    }
    const xpr_table *tables[][2] = {{&space.planes, &whole->planes},
                                    {&space.lines, &whole->lines},
                                    {&space.event_metadata, &whole->event_metadata},
                                    {&space.stat_metadata, &whole->stat_metadata},
                                    {&space.events, &whole->events},
                                    {&space.aggregated, &whole->aggregated},
                                    {&space.event_stats, &whole->event_stats},
                                    {&space.metadata_stats, &whole->metadata_stats},
                                    {&space.plane_stats, &whole->plane_stats}};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) check_same(tables[i][0], tables[i][1]);
    const xpr_strings *strings[][2] = {{&space.line_names, &whole->line_names},
                                       {&space.line_display_names, &whole->line_display_names},
                                       {&space.metadata_display_names, &whole->metadata_display_names},
                                       {&space.event_names.strings, &whole->event_names.strings},
                                       {&space.stat_names.strings, &whole->stat_names.strings},
                                       {&space.texts.strings, &whole->texts.strings}};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) check_same_strings(strings[i][0], strings[i][1]);
    REQUIRE(space.events_without_metadata == whole->events_without_metadata);
    REQUIRE(space.stats_without_metadata == whole->stats_without_metadata);
    xpr_xspace_free(&space);
}

static void fuzz_xspace(const uint8_t *bytes, size_t length) {
    xpr_decode_error error;
    xpr_xspace space;
    if (xpr_xspace_decode(bytes, length, &space, &error) == 0) {
        check_xspace(&space, length);
        check_in_slices(bytes, length, &space, NULL);
        xpr_xspace_free(&space);
    } else {
        REQUIRE(error.offset <= length && error.reason != NULL && error.reason != XPR_OUT_OF_MEMORY);
        check_in_slices(bytes, length, NULL, &error);
    }
}

static void fuzz_hlo(const uint8_t *bytes, size_t length) {
    xpr_decode_error error;
    xpr_hlo hlo;
    if (xpr_hlo_decode(bytes, length, &hlo, &error) == 0) {
        check_hlo(&hlo, length);
        xpr_hlo_free(&hlo);
    } else {
        REQUIRE(error.offset <= length && error.reason != NULL && error.reason != XPR_OUT_OF_MEMORY);
    }
}

static const struct {
    const char *name;
    void (*run)(const uint8_t *bytes, size_t length);
} targets[] = {{"json", check_chrome}, {"wire", fuzz_wire}, {"xspace", fuzz_xspace}, {"hlo", fuzz_hlo}};

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    static const char *wanted = NULL;
    if (wanted == NULL) {
        const char *named = getenv("XPR_FUZZ_TARGET");
        wanted = named != NULL ? named : "";
    }
    size_t count = sizeof targets / sizeof *targets, ran = 0;
    for (size_t i = 0; i < count; i++)
        if (!*wanted || strcmp(wanted, targets[i].name) == 0) targets[i].run(bytes, length), ran++;
    REQUIRE(ran == (*wanted ? 1 : count)); /* a name that is none would find nothing */
    return 0;
}
