#include "decode/xspace.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "decode/wire.h"



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

typedef struct {
    xpr_xspace *space;
    const uint8_t *base;
    const uint8_t *end;
    xpr_failure failure;
    xpr_place place;
    /* Of the plane being read. */
    xpr_id_map event_ids;
    xpr_id_map stat_ids;
} decoder;

static bool no_memory(decoder *d, const uint8_t *at) {
    d->failure.at = at;
    d->failure.reason = XPR_OUT_OF_MEMORY;
    return false;
}

/* Before reading the index-th message of a field, its length first: a length that cannot be is that message's fault.
 * Always true, to stand in a chain of reads. */
static bool enter(decoder *d, const char *field, uint64_t index) {
    d->place.level[d->place.depth].field = field;
    d->place.level[d->place.depth].index = index;
    d->place.depth++;
    return true;
}

static void leave(decoder *d) { d->place.depth--; }

static bool append_string(decoder *d, xpr_wire *w, xpr_strings *strings) {
    const uint8_t *bytes;
    size_t length;
    if (!xpr_wire_bytes(w, &bytes, &length)) return false;
    return xpr_strings_append(strings, bytes, length) || no_memory(d, bytes);
}

static bool number(decoder *d, xpr_dictionary *dictionary, const uint8_t *bytes, size_t length, int32_t *result) {
    *result = xpr_dictionary_number(dictionary, bytes, length);
    return *result >= 0 || no_memory(d, bytes);
}

/* A row for an id that the plane uses without describing it. */
static bool missing_name(decoder *d, xpr_dictionary *dictionary, const uint8_t *at, uint64_t id, int32_t *name) {
    char text[24];
    int length = snprintf(text, sizeof text, "#%" PRId64, (int64_t)id);
    *name = xpr_dictionary_number(dictionary, (const uint8_t *)text, (size_t)length);
    return *name >= 0 || no_memory(d, at);
}

static bool add_stat_metadata(decoder *d, const uint8_t *at, uint64_t id, int32_t name, uint8_t live, int32_t *row) {
    xpr_table *table = &d->space->stat_metadata;
    int32_t before;
    if (table->count >= INT32_MAX || !xpr_table_room(table)) return no_memory(d, at);
    *row = (int32_t)table->count;
    xpr_i32(table, XPR_STAT_METADATA_PLANE)[*row] = (int32_t)d->space->planes.count;
    xpr_i64(table, XPR_STAT_METADATA_ID)[*row] = (int64_t)id;
    xpr_i32(table, XPR_STAT_METADATA_NAME)[*row] = name;
    xpr_i32(table, XPR_STAT_METADATA_TEXT)[*row] = -1;
    xpr_u8(table, XPR_STAT_METADATA_LIVE)[*row] = live;
    if (!xpr_id_map_set(&d->stat_ids, id, *row, &before)) return no_memory(d, at);
    if (before >= 0) xpr_u8(table, XPR_STAT_METADATA_LIVE)[before] = XPR_REPLACED;
    table->count++;
    return true;
}

static bool add_event_metadata(decoder *d, const uint8_t *at, uint64_t id, int32_t name, uint8_t live, int32_t *row) {
    xpr_table *table = &d->space->event_metadata;
    int32_t before;
    if (table->count >= INT32_MAX || !xpr_table_room(table)) return no_memory(d, at);
    *row = (int32_t)table->count;
    xpr_i32(table, XPR_EVENT_METADATA_PLANE)[*row] = (int32_t)d->space->planes.count;
    xpr_i64(table, XPR_EVENT_METADATA_ID)[*row] = (int64_t)id;
    xpr_i32(table, XPR_EVENT_METADATA_NAME)[*row] = name;
    xpr_u8(table, XPR_EVENT_METADATA_LIVE)[*row] = live;
    if (!xpr_id_map_set(&d->event_ids, id, *row, &before)) return no_memory(d, at);
    if (before >= 0) xpr_u8(table, XPR_EVENT_METADATA_LIVE)[before] = XPR_REPLACED;
    table->count++;
    return true;
}

static bool stat_metadata_row(decoder *d, const uint8_t *at, uint64_t id, int32_t *row) {
    *row = xpr_id_map_row(&d->stat_ids, id);
    if (*row >= 0 && xpr_u8(&d->space->stat_metadata, XPR_STAT_METADATA_LIVE)[*row] == XPR_LIVE) return true;
    d->space->stats_without_metadata++;
    if (*row >= 0) return true;
    int32_t name;
    return missing_name(d, &d->space->stat_names, at, id, &name) &&
           add_stat_metadata(d, at, id, name, XPR_MISSING, row);
}

/* The name of a stat's metadata as a text value. */
static bool referenced_text(decoder *d, const uint8_t *at, uint64_t id, int64_t *text) {
    int32_t row;
    if (!stat_metadata_row(d, at, id, &row)) return false;
    int32_t *known = &xpr_i32(&d->space->stat_metadata, XPR_STAT_METADATA_TEXT)[row];
    if (*known < 0) {
        const xpr_strings *names = &d->space->stat_names.strings;
        int32_t name = xpr_i32(&d->space->stat_metadata, XPR_STAT_METADATA_NAME)[row];
        int64_t start = names->offsets[name];
        *known = xpr_dictionary_number(&d->space->texts, (const uint8_t *)names->bytes + start,
                                       (size_t)(names->offsets[name + 1] - start));
        if (*known < 0) return no_memory(d, at);
    }
    *text = *known;
    return true;
}

/* Profilers write nearly all events and stats alike. These are read by the shortest way; whatever is not so, damage
 * above all, is left to the functions that read any field in any order. */
enum { QUICK_BYTES = 32 }; /* at least so many may be read where a quick way is taken */

static inline bool can_be_quick(const decoder *d, const uint8_t *at) { return d->end - at >= QUICK_BYTES; }

/* The first fields of an event as far as they are its id, offset and duration in this order. Returns what follows them,
 * which may be beyond the event's end; NULL where a number is too long. */
static inline const uint8_t *quick_event_head(const uint8_t *at, uint64_t *id, uint64_t *offset_ps,
                                              uint64_t *duration_ps) {
    *id = *offset_ps = *duration_ps = 0;
    if (*at == XPR_TAG(1, XPR_VARINT) && (at = xpr_wire_quick_varint(at + 1, id)) == NULL) return NULL;
    if (*at == XPR_TAG(2, XPR_VARINT) && (at = xpr_wire_quick_varint(at + 1, offset_ps)) == NULL) return NULL;
    if (*at == XPR_TAG(3, XPR_VARINT) && (at = xpr_wire_quick_varint(at + 1, duration_ps)) == NULL) return NULL;
    return at;
}

static bool read_stat(decoder *d, xpr_wire *w, int64_t owner, xpr_table *table) {
    const uint8_t *start = w->at, *bytes = NULL;
    uint64_t id = 0, bits = 0;
    size_t length = 0;
    uint32_t tag, set = 0; /* tag of the value that is set: the last one counts */
    while (w->at != w->end) {
        if (!xpr_wire_tag(w, &tag)) return false;
        switch (tag) {
        case XPR_TAG(1, XPR_VARINT):
            if (!xpr_wire_varint(w, &id)) return false;
            break;
        case XPR_TAG(2, XPR_FIXED64):
            if (!xpr_wire_fixed64(w, &bits)) return false;
            set = tag;
            break;
        case XPR_TAG(3, XPR_VARINT):
        case XPR_TAG(4, XPR_VARINT):
        case XPR_TAG(7, XPR_VARINT):
            if (!xpr_wire_varint(w, &bits)) return false;
            set = tag;
            break;
        case XPR_TAG(5, XPR_LEN):
        case XPR_TAG(6, XPR_LEN):
            if (!xpr_wire_bytes(w, &bytes, &length)) return false;
            set = tag;
            break;
        default:
            if (!xpr_wire_skip(w, tag)) return false;
        }
    }
    int32_t key, text;
    uint8_t kind = XPR_NO_VALUE;
    int64_t value = 0;
    if (!stat_metadata_row(d, start, id, &key)) return false;
    switch (set) {
    case XPR_TAG(2, XPR_FIXED64):
        kind = XPR_DOUBLE;
        value = (int64_t)bits;
        break;
    case XPR_TAG(3, XPR_VARINT):
        kind = XPR_UINT;
        value = (int64_t)bits;
        break;
    case XPR_TAG(4, XPR_VARINT):
        kind = XPR_INT;
        value = (int64_t)bits;
        break;
    case XPR_TAG(5, XPR_LEN):
        kind = XPR_TEXT;
        if (!number(d, &d->space->texts, bytes, length, &text)) return false;
        value = text;
        break;
    case XPR_TAG(6, XPR_LEN):
        kind = XPR_BYTES;
        value = (int64_t)length;
        break;
    case XPR_TAG(7, XPR_VARINT):
        kind = XPR_TEXT;
        if (!referenced_text(d, start, bits, &value)) return false;
        break;
    default:
        break;
    }
    if (!xpr_table_room(table)) return no_memory(d, start);
    size_t row = table->count++;
    xpr_i64(table, XPR_STATS_OWNER)[row] = owner;
    xpr_i32(table, XPR_STATS_KEY)[row] = xpr_i32(&d->space->stat_metadata, XPR_STAT_METADATA_NAME)[key];
    xpr_u8(table, XPR_STATS_KIND)[row] = kind;
    xpr_i64(table, XPR_STATS_VALUE)[row] = value;
    if (table->width == XPR_PLACED_STATS_WIDTH)
        xpr_i64(table, XPR_STATS_AT)[row] = kind == XPR_BYTES ? bytes - d->base : 0;
    return true;
}

/* The row of a stat's metadata, -1 where it is not described. */
static inline int32_t described_stat(const decoder *d, uint64_t id) {
    int32_t row = xpr_id_map_row(&d->stat_ids, id);
    return row >= 0 && xpr_u8(&d->space->stat_metadata, XPR_STAT_METADATA_LIVE)[row] == XPR_LIVE ? row : -1;
}

/* A stat of an event that is a number, or a text that was met before: true, or nothing is read. `w` is at its length. */
static inline bool quick_stat(decoder *d, xpr_wire *w, int64_t owner) {
    xpr_xspace *space = d->space;
    xpr_table *table = &space->event_stats;
    if (!can_be_quick(d, w->at) || *w->at >= 0x80 || *w->at >= w->end - w->at) return false;
    const uint8_t *at = w->at + 1, *end = at + *w->at;
    uint64_t id, bits;
    if (*at != XPR_TAG(1, XPR_VARINT) || (at = xpr_wire_quick_varint(at + 1, &id)) == NULL) return false;
    uint32_t tag = *at;
    if (tag != XPR_TAG(3, XPR_VARINT) && tag != XPR_TAG(4, XPR_VARINT) && tag != XPR_TAG(7, XPR_VARINT)) return false;
    if (xpr_wire_quick_varint(at + 1, &bits) != end) return false;
    int32_t key = described_stat(d, id);
    if (key < 0 || !xpr_table_room(table)) return false;
    uint8_t kind = tag == XPR_TAG(3, XPR_VARINT) ? XPR_UINT : XPR_INT;
    if (tag == XPR_TAG(7, XPR_VARINT)) {
        int32_t named = described_stat(d, bits);
        int32_t text = named < 0 ? -1 : xpr_i32(&space->stat_metadata, XPR_STAT_METADATA_TEXT)[named];
        if (text < 0) return false;
        kind = XPR_TEXT;
        bits = (uint64_t)text;
    }
    size_t row = table->count++;
    xpr_i64(table, XPR_STATS_OWNER)[row] = owner;
    xpr_i32(table, XPR_STATS_KEY)[row] = xpr_i32(&space->stat_metadata, XPR_STAT_METADATA_NAME)[key];
    xpr_u8(table, XPR_STATS_KIND)[row] = kind;
    xpr_i64(table, XPR_STATS_VALUE)[row] = (int64_t)bits;
    w->at = end;
    return true;
}

/* An event without stats whose id is described: true, or nothing is read. `w` is at its length. */
static inline bool quick_event(decoder *d, xpr_wire *w, int32_t line) {
    xpr_xspace *space = d->space;
    const uint8_t *start = w->at + 1;
    if (!can_be_quick(d, w->at) || *w->at >= 0x80 || *w->at > w->end - start) return false;
    uint64_t id, offset_ps, duration_ps;
    const uint8_t *end = start + *w->at;
    if (quick_event_head(start, &id, &offset_ps, &duration_ps) != end) return false;
    int32_t metadata = xpr_id_map_row(&d->event_ids, id);
    if (metadata < 0 || xpr_u8(&space->event_metadata, XPR_EVENT_METADATA_LIVE)[metadata] == XPR_MISSING ||
        !xpr_table_room(&space->events))
        return false;
    size_t row = space->events.count++;
    xpr_i32(&space->events, XPR_EVENTS_LINE)[row] = line;
    xpr_i32(&space->events, XPR_EVENTS_METADATA)[row] = metadata;
    xpr_i64(&space->events, XPR_EVENTS_OFFSET)[row] = (int64_t)offset_ps;
    xpr_i64(&space->events, XPR_EVENTS_DURATION)[row] = (int64_t)duration_ps;
    w->at = end;
    return true;
}

static bool read_event(decoder *d, xpr_wire *w, int32_t line) {
    xpr_xspace *space = d->space;
    const uint8_t *start = w->at;
    uint64_t id = 0, offset_ps = 0, duration_ps = 0, occurrences = 0;
    bool aggregated = false;
    uint32_t tag;
    int64_t event = (int64_t)space->events.count;
    uint64_t stats = 0;
    if (can_be_quick(d, start)) {
        const uint8_t *after = quick_event_head(start, &id, &offset_ps, &duration_ps);
        if (after && after <= w->end)
            w->at = after;
        else
            id = offset_ps = duration_ps = 0;
    }
    while (w->at != w->end) {
        xpr_wire inner;
        if (!xpr_wire_tag(w, &tag)) return false;
        if (tag == XPR_TAG(4, XPR_LEN) && quick_stat(d, w, event)) {
            stats++;
            continue;
        }
        switch (tag) {
        case XPR_TAG(1, XPR_VARINT):
            if (!xpr_wire_varint(w, &id)) return false;
            break;
        case XPR_TAG(2, XPR_VARINT):
            if (!xpr_wire_varint(w, &offset_ps)) return false;
            aggregated = false;
            break;
        case XPR_TAG(3, XPR_VARINT):
            if (!xpr_wire_varint(w, &duration_ps)) return false;
            break;
        case XPR_TAG(4, XPR_LEN):
            if (!enter(d, "stats", stats++) || !xpr_wire_inner(w, &inner) ||
                !read_stat(d, &inner, event, &space->event_stats))
                return false;
            leave(d);
            break;
        case XPR_TAG(5, XPR_VARINT): /* one of offset_ps and num_occurrences is set, the later one */
            if (!xpr_wire_varint(w, &occurrences)) return false;
            aggregated = true;
            offset_ps = 0;
            break;
        default:
            if (!xpr_wire_skip(w, tag)) return false;
        }
    }
    int32_t metadata = xpr_id_map_row(&d->event_ids, id);
    if (metadata < 0 || xpr_u8(&space->event_metadata, XPR_EVENT_METADATA_LIVE)[metadata] == XPR_MISSING) {
        space->events_without_metadata++;
        int32_t name;
        if (metadata < 0 && (!missing_name(d, &space->event_names, start, id, &name) ||
                             !add_event_metadata(d, start, id, name, XPR_MISSING, &metadata) ||
                             (!xpr_strings_append(&space->metadata_display_names, NULL, 0) && !no_memory(d, start))))
            return false;
    }
    if (!xpr_table_room(&space->events)) return no_memory(d, start);
    size_t row = space->events.count++;
    xpr_i32(&space->events, XPR_EVENTS_LINE)[row] = line;
    xpr_i32(&space->events, XPR_EVENTS_METADATA)[row] = metadata;
    xpr_i64(&space->events, XPR_EVENTS_OFFSET)[row] = (int64_t)offset_ps;
    xpr_i64(&space->events, XPR_EVENTS_DURATION)[row] = (int64_t)duration_ps;
    if (aggregated) {
        if (!xpr_table_room(&space->aggregated)) return no_memory(d, start);
        size_t at = space->aggregated.count++;
        xpr_i64(&space->aggregated, XPR_AGGREGATED_EVENT)[at] = (int64_t)row;
        xpr_i64(&space->aggregated, XPR_AGGREGATED_OCCURRENCES)[at] = (int64_t)occurrences;
    }
    return true;
}

/* A string field that may come several times: the last one counts. */
typedef struct {
    const uint8_t *bytes;
    size_t length;
} text_field;

static bool read_line(decoder *d, xpr_wire *w) {
    xpr_xspace *space = d->space;
    const uint8_t *start = w->at;
    uint64_t id = 0, timestamp_ns = 0, duration_ps = 0, display_id = 0;
    text_field name = {NULL, 0}, display_name = {NULL, 0};
    size_t events_before = space->events.count;
    if (space->lines.count >= INT32_MAX || !xpr_table_room(&space->lines)) return no_memory(d, start);
    size_t row = space->lines.count;
    uint64_t events = 0;
    uint32_t tag;
    while (w->at != w->end) {
        xpr_wire inner;
        if (!xpr_wire_tag(w, &tag)) return false;
        if (tag == XPR_TAG(4, XPR_LEN) && quick_event(d, w, (int32_t)row)) {
            events++;
            continue;
        }
        switch (tag) {
        case XPR_TAG(1, XPR_VARINT):
            if (!xpr_wire_varint(w, &id)) return false;
            break;
        case XPR_TAG(2, XPR_LEN):
            if (!xpr_wire_bytes(w, &name.bytes, &name.length)) return false;
            break;
        case XPR_TAG(3, XPR_VARINT):
            if (!xpr_wire_varint(w, &timestamp_ns)) return false;
            break;
        case XPR_TAG(4, XPR_LEN):
            if (!enter(d, "events", events++) || !xpr_wire_inner(w, &inner) || !read_event(d, &inner, (int32_t)row))
                return false;
            leave(d);
            break;
        case XPR_TAG(9, XPR_VARINT):
            if (!xpr_wire_varint(w, &duration_ps)) return false;
            break;
        case XPR_TAG(10, XPR_VARINT):
            if (!xpr_wire_varint(w, &display_id)) return false;
            break;
        case XPR_TAG(11, XPR_LEN):
            if (!xpr_wire_bytes(w, &display_name.bytes, &display_name.length)) return false;
            break;
        default:
            if (!xpr_wire_skip(w, tag)) return false;
        }
    }
    xpr_i32(&space->lines, XPR_LINES_PLANE)[row] = (int32_t)space->planes.count;
    xpr_i64(&space->lines, XPR_LINES_ID)[row] = (int64_t)id;
    xpr_i64(&space->lines, XPR_LINES_TIMESTAMP)[row] = (int64_t)timestamp_ns;
    xpr_i64(&space->lines, XPR_LINES_DURATION)[row] = (int64_t)duration_ps;
    xpr_i64(&space->lines, XPR_LINES_DISPLAY_ID)[row] = (int64_t)display_id;
    xpr_i64(&space->lines, XPR_LINES_EVENTS)[row] = (int64_t)(space->events.count - events_before);
    space->lines.count++;
    return (xpr_strings_append(&space->line_names, name.bytes, name.length) &&
            xpr_strings_append(&space->line_display_names, display_name.bytes, display_name.length)) ||
           no_memory(d, start);
}

static bool read_stat_metadata(decoder *d, xpr_wire *entry) {
    const uint8_t *start = entry->at;
    uint64_t key = 0;
    text_field name = {NULL, 0};
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
    return number(d, &d->space->stat_names, name.bytes, name.length, &number_of_name) &&
           add_stat_metadata(d, start, key, number_of_name, XPR_LIVE, &row);
}

static bool read_event_metadata(decoder *d, xpr_wire *entry) {
    const uint8_t *start = entry->at;
    uint64_t key = 0;
    text_field name = {NULL, 0}, display_name = {NULL, 0};
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
                if (!enter(d, "stats", stats++) || !xpr_wire_inner(&value, &inner) ||
                    !read_stat(d, &inner, row_to_be, &d->space->metadata_stats))
                    return false;
                leave(d);
                break;
            default:
                if (!xpr_wire_skip(&value, tag)) return false;
            }
        }
    }
    int32_t row, number_of_name;
    return number(d, &d->space->event_names, name.bytes, name.length, &number_of_name) &&
           add_event_metadata(d, start, key, number_of_name, XPR_LIVE, &row) &&
           (xpr_strings_append(&d->space->metadata_display_names, display_name.bytes, display_name.length) ||
            no_memory(d, start));
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
            if (!enter(d, plane_fields[field], index++) || !xpr_wire_inner(&w, &inner) || !read(d, &inner))
                return false;
            leave(d);
        } else if (!xpr_wire_skip(&w, tag)) {
            return false;
        }
    }
    return true;
}

static bool read_plane_stat(decoder *d, xpr_wire *w) {
    return read_stat(d, w, (int64_t)d->space->planes.count, &d->space->plane_stats);
}

/* The plane's own scalars, and how many messages it holds of each of plane_fields, which are fields 3 to 6. */
static bool read_plane_head(decoder *d, xpr_wire w, uint64_t *id, text_field *name, size_t counts[PLANE_FIELDS]) {
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
            if (!enter(d, plane_fields[field], counts[field]++) || !xpr_wire_inner(&w, &inner)) return false;
            leave(d);
        } else if (!xpr_wire_skip(&w, tag)) {
            return false;
        }
    }
    return true;
}

static bool read_plane(decoder *d, xpr_wire *w) {
    xpr_xspace *space = d->space;
    const uint8_t *start = w->at;
    uint64_t id = 0;
    text_field name = {NULL, 0};
    size_t counts[PLANE_FIELDS] = {0};
    if (!read_plane_head(d, *w, &id, &name, counts)) return false;
    xpr_id_map_free(&d->event_ids);
    xpr_id_map_free(&d->stat_ids);
    if (space->planes.count >= INT32_MAX || !xpr_id_map_init(&d->event_ids, counts[EVENT_METADATA]) ||
        !xpr_id_map_init(&d->stat_ids, counts[STAT_METADATA]))
        return no_memory(d, start);
    if (!each(d, *w, STAT_METADATA, read_stat_metadata) || !each(d, *w, EVENT_METADATA, read_event_metadata) ||
        !each(d, *w, STATS, read_plane_stat) || !each(d, *w, LINES, read_line))
        return false;
    if (!xpr_table_room(&space->planes)) return no_memory(d, start);
    xpr_i64(&space->planes, XPR_PLANES_ID)[space->planes.count++] = (int64_t)id;
    return xpr_strings_append(&space->plane_names, name.bytes, name.length) || no_memory(d, start);
}

static bool read_space(decoder *d, xpr_wire *w) {
    xpr_xspace *space = d->space;
    uint64_t planes = 0;
    uint32_t tag;
    while (w->at != w->end) {
        xpr_wire inner;
        if (!xpr_wire_tag(w, &tag)) return false;
        switch (tag) {
        case XPR_TAG(1, XPR_LEN):
            if (!enter(d, "planes", planes++) || !xpr_wire_inner(w, &inner) || !read_plane(d, &inner)) return false;
            leave(d);
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

int xpr_xspace_decode(const uint8_t *bytes, size_t length, xpr_xspace *space, xpr_decode_error *error) {
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
    decoder d = {.space = space, .base = bytes, .end = bytes + length};
    xpr_wire w = {bytes, bytes + length, &d.failure};
    bool read = read_space(&d, &w);
    xpr_id_map_free(&d.event_ids);
    xpr_id_map_free(&d.stat_ids);
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
