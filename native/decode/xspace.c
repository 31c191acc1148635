#include "decode/xspace_reader.h"

#include <stdlib.h>
#include <string.h>

#include "columns/memory.h"

static const xpr_column_spec plane_columns[] = {{"id", 'q'}};
static const xpr_column_spec line_columns[] = {{"plane", 'i'},       {"id", 'q'},         {"timestamp_ns", 'q'},
                                               {"duration_ps", 'q'}, {"display_id", 'q'}, {"event_count", 'q'}};
static const xpr_column_spec event_metadata_columns[] = {{"plane", 'i'}, {"id", 'q'}, {"name", 'i'}, {"live", 'B'}};
static const xpr_column_spec stat_metadata_columns[] = {
    {"plane", 'i'}, {"id", 'q'}, {"name", 'i'}, {"text", 'i'}, {"live", 'B'}};
static const xpr_column_spec event_columns[] = {
    {"line", 'i'}, {"metadata", 'i'}, {"offset_ps", 'q'}, {"duration_ps", 'q'}};
static const xpr_column_spec stat_columns[] = {
    {"owner", 'q'}, {"key", 'i'}, {"kind", 'B'}, {"value", 'q'}, {"at", 'q'}};
static const xpr_column_spec aggregated_columns[] = {{"event", 'q'}, {"occurrences", 'q'}};

typedef xpr_xspace_reader decoder;

static bool append_string(decoder *d, xpr_wire *w, xpr_strings *strings) {
    const uint8_t *bytes;
    size_t length;
    if (!xpr_wire_bytes(w, &bytes, &length)) return false;
    return xpr_strings_append(strings, bytes, length) || xpr_xspace_no_memory(d, bytes);
}

bool xpr_xspace_read_line_field(xpr_wire *w, uint32_t tag, xpr_line_head *head) {
    switch (tag) {
    case XPR_TAG(1, XPR_VARINT):
        return xpr_wire_varint(w, &head->id);
    case XPR_TAG(2, XPR_LEN):
        return xpr_wire_bytes(w, &head->name.bytes, &head->name.length);
    case XPR_TAG(3, XPR_VARINT):
        return xpr_wire_varint(w, &head->timestamp_ns);
    case XPR_TAG(9, XPR_VARINT):
        return xpr_wire_varint(w, &head->duration_ps);
    case XPR_TAG(10, XPR_VARINT):
        return xpr_wire_varint(w, &head->display_id);
    case XPR_TAG(11, XPR_LEN):
        return xpr_wire_bytes(w, &head->display_name.bytes, &head->display_name.length);
    default:
        return xpr_wire_skip(w, tag);
    }
}

bool xpr_xspace_add_line(decoder *d, const uint8_t *at, const xpr_line_head *head, size_t events) {
    xpr_xspace *space = d->space;
    size_t row = space->lines.count;
    if (row >= INT32_MAX || !xpr_table_room(&space->lines)) return xpr_xspace_no_memory(d, at);
    xpr_i32(&space->lines, XPR_LINES_PLANE)[row] = d->plane;
    xpr_i64(&space->lines, XPR_LINES_ID)[row] = (int64_t)head->id;
    xpr_i64(&space->lines, XPR_LINES_TIMESTAMP)[row] = (int64_t)head->timestamp_ns;
    xpr_i64(&space->lines, XPR_LINES_DURATION)[row] = (int64_t)head->duration_ps;
    xpr_i64(&space->lines, XPR_LINES_DISPLAY_ID)[row] = (int64_t)head->display_id;
    xpr_i64(&space->lines, XPR_LINES_EVENTS)[row] = (int64_t)events;
    space->lines.count++;
    return (xpr_strings_append(&space->line_names, head->name.bytes, head->name.length) &&
            xpr_strings_append(&space->line_display_names, head->display_name.bytes, head->display_name.length)) ||
           xpr_xspace_no_memory(d, at);
}

/* Bytes of a line after which those before them are passed. */
enum { PASS_BYTES = 16 << 20 };

static bool read_line(decoder *d, xpr_wire *w) {
    const uint8_t *start = w->at, *passed = w->at;
    xpr_line_head head = {0};
    int32_t row = (int32_t)d->space->lines.count;
    size_t events_before = d->space->events.count;
    uint64_t events = 0;
    uint32_t tag;
    while (w->at != w->end) {
        if (!xpr_wire_tag(w, &tag)) return false;
        if (tag == XPR_TAG(4, XPR_LEN)) {
            if (!xpr_xspace_read_event(d, w, row, events++)) return false;
            if (w->at - passed >= PASS_BYTES) {
                xpr_column_passed(passed, 0, (size_t)(w->at - passed));
                passed = w->at;
            }
        } else if (!xpr_xspace_read_line_field(w, tag, &head)) {
            return false;
        }
    }
    return xpr_xspace_add_line(d, start, &head, d->space->events.count - events_before);
}

static bool read_stat_metadata(decoder *d, xpr_wire *entry) {
    const uint8_t *start = entry->at;
    uint64_t key = 0;
    xpr_text_field name = {NULL, 0};
    uint32_t tag;
    while (entry->at != entry->end) {
        xpr_wire value;
        if (!xpr_wire_tag(entry, &tag)) return false;
        if (tag == XPR_TAG(1, XPR_VARINT)) {
            if (!xpr_wire_varint(entry, &key)) return false;
        } else if (tag == XPR_TAG(2, XPR_LEN)) {
            if (!xpr_wire_inner(entry, &value)) return false;
            while (value.at != value.end) {
                if (!xpr_wire_tag(&value, &tag)) return false;
                if (tag == XPR_TAG(2, XPR_LEN)) {
                    if (!xpr_wire_bytes(&value, &name.bytes, &name.length)) return false;
                } else if (!xpr_wire_skip(&value, tag)) {
                    return false;
                }
            }
        } else if (!xpr_wire_skip(entry, tag)) {
            return false;
        }
    }
    int32_t row, number_of_name;
    return xpr_xspace_number(d, &d->space->stat_names, name.bytes, name.length, &number_of_name) &&
           xpr_xspace_add_stat_metadata(d, start, key, number_of_name, XPR_LIVE, &row);
}

static bool read_event_metadata(decoder *d, xpr_wire *entry) {
    const uint8_t *start = entry->at;
    uint64_t key = 0;
    xpr_text_field name = {NULL, 0}, display_name = {NULL, 0};
    int64_t row_to_be = (int64_t)d->space->event_metadata.count;
    uint64_t stats = 0;
    uint32_t tag;
    while (entry->at != entry->end) {
        xpr_wire value, inner;
        if (!xpr_wire_tag(entry, &tag)) return false;
        if (tag == XPR_TAG(1, XPR_VARINT)) {
            if (!xpr_wire_varint(entry, &key)) return false;
            continue;
        }
        if (tag != XPR_TAG(2, XPR_LEN)) {
            if (!xpr_wire_skip(entry, tag)) return false;
            continue;
        }
        if (!xpr_wire_inner(entry, &value)) return false;
        while (value.at != value.end) {
            if (!xpr_wire_tag(&value, &tag)) return false;
            switch (tag) {
            case XPR_TAG(2, XPR_LEN):
                if (!xpr_wire_bytes(&value, &name.bytes, &name.length)) return false;
                break;
            case XPR_TAG(4, XPR_LEN):
                if (!xpr_wire_bytes(&value, &display_name.bytes, &display_name.length)) return false;
                break;
            case XPR_TAG(5, XPR_LEN):
                if (!xpr_xspace_enter(d, "stats", stats++) || !xpr_wire_inner(&value, &inner) ||
                    !xpr_xspace_read_stat(d, &inner, row_to_be, &d->space->metadata_stats))
                    return false;
                xpr_xspace_leave(d);
                break;
            default:
                if (!xpr_wire_skip(&value, tag)) return false;
            }
        }
    }
    int32_t row, number_of_name;
    return xpr_xspace_number(d, &d->space->event_names, name.bytes, name.length, &number_of_name) &&
           xpr_xspace_add_event_metadata(d, start, key, number_of_name, XPR_LIVE, &row) &&
           (xpr_strings_append(&d->space->metadata_display_names, display_name.bytes, display_name.length) ||
            xpr_xspace_no_memory(d, start));
}

enum { LINES, EVENT_METADATA, STAT_METADATA, STATS, PLANE_FIELDS };
static const char *const plane_fields[] = {"lines", "event_metadata", "stat_metadata", "stats"};

/* Visit the messages of one of plane_fields: the metadata come after the lines that need them. */
static bool each(decoder *d, xpr_wire w, int field, bool (*read)(decoder *, xpr_wire *)) {
    uint64_t index = 0;
    uint32_t tag;
    while (w.at != w.end) {
        xpr_wire inner;
        if (!xpr_wire_tag(&w, &tag)) return false;
        if (tag == XPR_TAG(field + 3, XPR_LEN)) {
            if (!xpr_xspace_enter(d, plane_fields[field], index++) || !xpr_wire_inner(&w, &inner) || !read(d, &inner))
                return false;
            xpr_xspace_leave(d);
        } else if (!xpr_wire_skip(&w, tag)) {
            return false;
        }
    }
    return true;
}

static bool room_for_plane(decoder *d) {
    if (d->planes < d->plane_room) return true;
    int32_t room = d->plane_room ? d->plane_room * 2 : 16;
    xpr_plane_lines *of_plane = d->plane_room > INT32_MAX / 2 ? NULL : realloc(d->of_plane, (size_t)room * sizeof *of_plane);
    if (of_plane == NULL) return false;
    d->of_plane = of_plane;
    d->plane_room = room;
    return true;
}

static bool read_plane_stat(decoder *d, xpr_wire *w) {
    return xpr_xspace_read_stat(d, w, (int64_t)d->space->planes.count, &d->space->plane_stats);
}

/* The plane's own scalars, and how many messages it holds of each of plane_fields, which are fields 3 to 6. */
static bool read_plane_head(decoder *d, xpr_wire w, uint64_t *id, xpr_text_field *name, size_t counts[PLANE_FIELDS]) {
    uint32_t tag;
    while (w.at != w.end) {
        xpr_wire inner;
        if (!xpr_wire_tag(&w, &tag)) return false;
        if (tag == XPR_TAG(1, XPR_VARINT)) {
            if (!xpr_wire_varint(&w, id)) return false;
        } else if (tag == XPR_TAG(2, XPR_LEN)) {
            if (!xpr_wire_bytes(&w, &name->bytes, &name->length)) return false;
        } else if ((tag & 7) == XPR_LEN && tag >> 3 >= 3 && tag >> 3 <= 6) {
            int field = (int)(tag >> 3) - 3;
            if (!xpr_xspace_enter(d, plane_fields[field], counts[field]++) || !xpr_wire_inner(&w, &inner)) return false;
            xpr_xspace_leave(d);
        } else if (!xpr_wire_skip(&w, tag)) {
            return false;
        }
    }
    return true;
}

/* All of a plane but its lines. */
static bool read_plane(decoder *d, xpr_wire *w) {
    xpr_xspace *space = d->space;
    const uint8_t *start = w->at;
    uint64_t id = 0;
    xpr_text_field name = {NULL, 0};
    size_t counts[PLANE_FIELDS] = {0};
    if (!read_plane_head(d, *w, &id, &name, counts)) return false;
    if (space->planes.count >= INT32_MAX || !room_for_plane(d)) return xpr_xspace_no_memory(d, start);
    d->plane = (int32_t)space->planes.count;
    d->of_plane[d->plane] = (xpr_plane_lines){.wire = *w};
    memset(&d->event_ids, 0, sizeof d->event_ids);
    memset(&d->stat_ids, 0, sizeof d->stat_ids);
    bool read = (xpr_id_map_init(&d->event_ids, counts[EVENT_METADATA]) &&
                 xpr_id_map_init(&d->stat_ids, counts[STAT_METADATA])) || xpr_xspace_no_memory(d, start);
    read = read && each(d, *w, STAT_METADATA, read_stat_metadata) && each(d, *w, EVENT_METADATA, read_event_metadata) &&
           each(d, *w, STATS, read_plane_stat);
    d->of_plane[d->plane].event_ids = d->event_ids;
    d->of_plane[d->plane].stat_ids = d->stat_ids;
    d->planes++;
    if (!read) return false;
    if (!xpr_table_room(&space->planes)) return xpr_xspace_no_memory(d, start);
    xpr_i64(&space->planes, XPR_PLANES_ID)[space->planes.count++] = (int64_t)id;
    return xpr_strings_append(&space->plane_names, name.bytes, name.length) || xpr_xspace_no_memory(d, start);
}

bool xpr_xspace_each_line(decoder *d, bool (*read)(decoder *, xpr_wire *)) {
    for (int32_t plane = 0; plane < d->planes; plane++) {
        xpr_plane_lines *of = &d->of_plane[plane];
        d->plane = plane;
        d->event_ids = of->event_ids;
        d->stat_ids = of->stat_ids;
        bool done = xpr_xspace_enter(d, "planes", (uint64_t)plane) && each(d, of->wire, LINES, read);
        /* What a line needed and nothing described has been added. */
        of->event_ids = d->event_ids;
        of->stat_ids = d->stat_ids;
        if (!done) return false;
        xpr_xspace_leave(d);
    }
    return true;
}

static bool read_heads(decoder *d, xpr_wire *w) {
    xpr_xspace *space = d->space;
    uint64_t planes = 0;
    uint32_t tag;
    while (w->at != w->end) {
        xpr_wire inner;
        if (!xpr_wire_tag(w, &tag)) return false;
        switch (tag) {
        case XPR_TAG(1, XPR_LEN):
            if (!xpr_xspace_enter(d, "planes", planes++) || !xpr_wire_inner(w, &inner) || !read_plane(d, &inner)) return false;
            xpr_xspace_leave(d);
            break;
        case XPR_TAG(2, XPR_LEN):
            if (!append_string(d, w, &space->errors)) return false;
            break;
        case XPR_TAG(3, XPR_LEN):
            if (!append_string(d, w, &space->warnings)) return false;
            break;
        case XPR_TAG(4, XPR_LEN):
            if (!append_string(d, w, &space->hostnames)) return false;
            break;
        default:
            if (!xpr_wire_skip(w, tag)) return false;
        }
    }
    return true;
}

bool xpr_xspace_begin(decoder *d, xpr_xspace *space, const uint8_t *bytes, size_t length) {
    memset(space, 0, sizeof *space);
    xpr_table_init(&space->planes, plane_columns, XPR_PLANES_WIDTH);
    xpr_table_init(&space->lines, line_columns, XPR_LINES_WIDTH);
    xpr_table_init(&space->event_metadata, event_metadata_columns, XPR_EVENT_METADATA_WIDTH);
    xpr_table_init(&space->stat_metadata, stat_metadata_columns, XPR_STAT_METADATA_WIDTH);
    xpr_table_init(&space->events, event_columns, XPR_EVENTS_WIDTH);
    xpr_table_init(&space->aggregated, aggregated_columns, XPR_AGGREGATED_WIDTH);
    xpr_table_init(&space->event_stats, stat_columns, XPR_EVENT_STATS_WIDTH);
    xpr_table_init(&space->metadata_stats, stat_columns, XPR_PLACED_STATS_WIDTH);
    xpr_table_init(&space->plane_stats, stat_columns, XPR_PLACED_STATS_WIDTH);
    memset(d, 0, sizeof *d);
    d->space = space;
    d->base = bytes;
    d->end = bytes + length;
    xpr_wire w = {bytes, bytes + length, &d->failure};
    return read_heads(d, &w);
}

void xpr_xspace_end(decoder *d) {
    for (int32_t plane = 0; plane < d->planes; plane++) {
        xpr_id_map_free(&d->of_plane[plane].event_ids);
        xpr_id_map_free(&d->of_plane[plane].stat_ids);
    }
    free(d->of_plane);
    d->of_plane = NULL;
    d->planes = 0;
}

int xpr_xspace_decode(const uint8_t *bytes, size_t length, xpr_xspace *space, xpr_decode_error *error) {
    decoder d;
    bool read = xpr_xspace_begin(&d, space, bytes, length) && xpr_xspace_each_line(&d, read_line);
    xpr_xspace_end(&d);
    if (read) return 0;
    error->offset = d.failure.at ? (size_t)(d.failure.at - bytes) : 0;
    error->reason = d.failure.reason;
    xpr_place_text(&d.place, error->place, sizeof error->place);
    xpr_xspace_free(space);
    return -1;
}

void xpr_xspace_free(xpr_xspace *space) {
    xpr_table *tables[] = {&space->planes,      &space->lines,          &space->event_metadata,
                           &space->stat_metadata, &space->events,       &space->aggregated,
                           &space->event_stats, &space->metadata_stats, &space->plane_stats};
    xpr_strings *strings[] = {&space->plane_names, &space->line_names, &space->line_display_names,
                              &space->metadata_display_names, &space->hostnames, &space->errors, &space->warnings};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) xpr_table_free(tables[i]);
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) xpr_strings_free(strings[i]);
    xpr_dictionary_free(&space->event_names);
    xpr_dictionary_free(&space->stat_names);
    xpr_dictionary_free(&space->texts);
}
