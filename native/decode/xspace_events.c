#include <inttypes.h>
#include <stdio.h>

#include "decode/xspace_reader.h"

typedef xpr_xspace_reader decoder;

bool xpr_xspace_no_memory(decoder *d, const uint8_t *at) {
    d->failure.at = at;
    d->failure.reason = XPR_OUT_OF_MEMORY;
    return false;
}

bool xpr_xspace_number(decoder *d, xpr_dictionary *dictionary, const uint8_t *bytes, size_t length, int32_t *result) {
    *result = xpr_dictionary_number(dictionary, bytes, length);
    return *result >= 0 || xpr_xspace_no_memory(d, bytes);
}

/* A row for an id that the plane uses without describing it. */
static bool missing_name(decoder *d, xpr_dictionary *dictionary, const uint8_t *at, uint64_t id, int32_t *name) {
    char text[24];
    if (d->of_slice) {
        d->failure.at = at;
        d->failure.reason = "a name that no slice may add";
        return false;
    }
    int length = snprintf(text, sizeof text, "#%" PRId64, (int64_t)id);
    *name = xpr_dictionary_number(dictionary, (const uint8_t *)text, (size_t)length);
    return *name >= 0 || xpr_xspace_no_memory(d, at);
}

bool xpr_xspace_add_stat_metadata(decoder *d, const uint8_t *at, uint64_t id, int32_t name, uint8_t live, int32_t *row) {
    xpr_table *table = &d->space->stat_metadata;
    int32_t before;
    if (table->count >= INT32_MAX || !xpr_table_room(table)) return xpr_xspace_no_memory(d, at);
    *row = (int32_t)table->count;
    xpr_i32(table, XPR_STAT_METADATA_PLANE)[*row] = d->plane;
    xpr_i64(table, XPR_STAT_METADATA_ID)[*row] = (int64_t)id;
    xpr_i32(table, XPR_STAT_METADATA_NAME)[*row] = name;
    xpr_i32(table, XPR_STAT_METADATA_TEXT)[*row] = -1;
    xpr_u8(table, XPR_STAT_METADATA_LIVE)[*row] = live;
    if (!xpr_id_map_set(&d->stat_ids, id, *row, &before)) return xpr_xspace_no_memory(d, at);
    if (before >= 0) xpr_u8(table, XPR_STAT_METADATA_LIVE)[before] = XPR_REPLACED;
    table->count++;
    return true;
}

bool xpr_xspace_add_event_metadata(decoder *d, const uint8_t *at, uint64_t id, int32_t name, uint8_t live, int32_t *row) {
    xpr_table *table = &d->space->event_metadata;
    int32_t before;
    if (table->count >= INT32_MAX || !xpr_table_room(table)) return xpr_xspace_no_memory(d, at);
    *row = (int32_t)table->count;
    xpr_i32(table, XPR_EVENT_METADATA_PLANE)[*row] = d->plane;
    xpr_i64(table, XPR_EVENT_METADATA_ID)[*row] = (int64_t)id;
    xpr_i32(table, XPR_EVENT_METADATA_NAME)[*row] = name;
    xpr_u8(table, XPR_EVENT_METADATA_LIVE)[*row] = live;
    if (!xpr_id_map_set(&d->event_ids, id, *row, &before)) return xpr_xspace_no_memory(d, at);
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
           xpr_xspace_add_stat_metadata(d, at, id, name, XPR_MISSING, row);
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
        if (*known < 0) return xpr_xspace_no_memory(d, at);
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

bool xpr_xspace_read_stat(decoder *d, xpr_wire *w, int64_t owner, xpr_table *table) {
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
        if (!xpr_xspace_number(d, &d->space->texts, bytes, length, &text)) return false;
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
    if (!xpr_table_room(table)) return xpr_xspace_no_memory(d, start);
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

/* A slice's rows lie among those of others. */
static inline bool room_for_event(const decoder *d) {
    xpr_table *events = &d->space->events;
    return d->of_slice ? events->count < events->capacity : xpr_table_room(events);
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
        !room_for_event(d))
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
            if (!xpr_xspace_enter(d, "stats", stats++) || !xpr_wire_inner(w, &inner) ||
                !xpr_xspace_read_stat(d, &inner, event, &space->event_stats))
                return false;
            xpr_xspace_leave(d);
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
                             !xpr_xspace_add_event_metadata(d, start, id, name, XPR_MISSING, &metadata) ||
                             (!xpr_strings_append(&space->metadata_display_names, NULL, 0) && !xpr_xspace_no_memory(d, start))))
            return false;
    }
    if (!room_for_event(d)) return xpr_xspace_no_memory(d, start);
    size_t row = space->events.count++;
    xpr_i32(&space->events, XPR_EVENTS_LINE)[row] = line;
    xpr_i32(&space->events, XPR_EVENTS_METADATA)[row] = metadata;
    xpr_i64(&space->events, XPR_EVENTS_OFFSET)[row] = (int64_t)offset_ps;
    xpr_i64(&space->events, XPR_EVENTS_DURATION)[row] = (int64_t)duration_ps;
    if (aggregated) {
        if (!xpr_table_room(&space->aggregated)) return xpr_xspace_no_memory(d, start);
        size_t at = space->aggregated.count++;
        xpr_i64(&space->aggregated, XPR_AGGREGATED_EVENT)[at] = (int64_t)row;
        xpr_i64(&space->aggregated, XPR_AGGREGATED_OCCURRENCES)[at] = (int64_t)occurrences;
    }
    return true;
}

bool xpr_xspace_read_event(decoder *d, xpr_wire *w, int32_t line, uint64_t index) {
    xpr_wire inner;
    if (quick_event(d, w, line)) return true;
    if (!xpr_xspace_enter(d, "events", index) || !xpr_wire_inner(w, &inner) || !read_event(d, &inner, line)) return false;
    xpr_xspace_leave(d);
    return true;
}
