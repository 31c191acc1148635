#include "decode/xspace_slices.h"

#include <stdlib.h>
#include <string.h>

#include "columns/memory.h"
#include "decode/xspace_reader.h"

/* A line, or what of it lies between two cuts. */
typedef struct {
    int32_t plane, line;
    const uint8_t *at, *end;
} part;

typedef struct {
    size_t first_part, parts;
    size_t first_event, events;
    xpr_xspace space; /* rows of its own, and what all slices know, borrowed */
    bool read;        /* to the end */
} slice;

struct xpr_xspace_slices {
    const uint8_t *bytes;
    size_t length, line_bytes, wanted;
    xpr_xspace space;
    xpr_xspace_reader reader;
    part *parts;
    size_t part_count, part_room;
    slice *slices;
    size_t count;
    size_t bytes_before; /* of the lines that have been cut */
    size_t full_at;      /* bytes of lines that complete the slice that is being filled */
};

static xpr_xspace_slices *slices_of(xpr_xspace_reader *d) { return d->owner; }

static bool add_line_bytes(xpr_xspace_reader *d, xpr_wire *w) {
    slices_of(d)->line_bytes += (size_t)(w->end - w->at);
    return true;
}

static slice *current(xpr_xspace_slices *s) { return &s->slices[s->count - 1]; }

static bool add_part(xpr_xspace_slices *s, int32_t plane, const uint8_t *at, const uint8_t *end) {
    if (at == end) return true;
    if (s->part_count == s->part_room) {
        size_t room = s->part_room ? s->part_room * 2 : 64;
        part *parts = realloc(s->parts, room * sizeof *parts);
        if (parts == NULL) return false;
        s->parts = parts;
        s->part_room = room;
    }
    s->parts[s->part_count++] = (part){plane, (int32_t)s->space.lines.count, at, end};
    current(s)->parts++;
    return true;
}

static void begin_slice(xpr_xspace_slices *s) {
    slice *last = s->count ? current(s) : NULL;
    s->slices[s->count++] = (slice){.first_part = s->part_count, .first_event = last ? last->first_event + last->events : 0};
    s->full_at = s->count < s->wanted ? s->line_bytes / s->wanted * s->count : SIZE_MAX;
}

/* Count a line's events and put it into slices, cut where one is full. */
static bool cut_line(xpr_xspace_reader *d, xpr_wire *w) {
    xpr_xspace_slices *s = slices_of(d);
    const uint8_t *start = w->at, *from = w->at;
    xpr_line_head head = {0};
    size_t events = 0, in_slice = 0;
    uint32_t tag;
    while (w->at != w->end) {
        xpr_wire event;
        if (!xpr_wire_tag(w, &tag)) return false;
        if (tag != XPR_TAG(4, XPR_LEN)) {
            if (!xpr_xspace_read_line_field(w, tag, &head)) return false;
            continue;
        }
        if (!xpr_wire_inner(w, &event)) return false;
        events++;
        in_slice++;
        if (s->bytes_before + (size_t)(w->at - start) >= s->full_at) {
            if (!add_part(s, d->plane, from, w->at)) return false;
            current(s)->events += in_slice;
            begin_slice(s);
            xpr_column_passed(from, 0, (size_t)(w->at - from));
            from = w->at;
            in_slice = 0;
        }
    }
    current(s)->events += in_slice;
    s->bytes_before += (size_t)(w->end - start);
    return add_part(s, d->plane, from, w->end) && xpr_xspace_add_line(d, start, &head, events);
}

/* A table of the same columns that is rows [first, first + rows) of this one. */
static xpr_table window(const xpr_table *table, size_t first, size_t rows) {
    xpr_table out = *table;
    for (int i = 0; i < table->width && table->data[i]; i++)
        out.data[i] = (char *)table->data[i] + first * xpr_column_size(table->spec[i].type);
    out.count = 0;
    out.capacity = out.room = rows;
    return out;
}

/* The slice's space: its own rows, and a copy of the one column that reading events changes. */
static bool prepare(xpr_xspace_slices *s, slice *of) {
    of->space = s->space;
    of->space.events = window(&s->space.events, of->first_event, of->events);
    xpr_table_init(&of->space.aggregated, s->space.aggregated.spec, s->space.aggregated.width);
    xpr_table_init(&of->space.event_stats, s->space.event_stats.spec, s->space.event_stats.width);
    memset(&of->space.texts, 0, sizeof of->space.texts);
    of->space.events_without_metadata = of->space.stats_without_metadata = 0;
    size_t named = s->space.stat_metadata.count;
    int32_t *text = malloc((named + 1) * sizeof *text);
    of->space.stat_metadata.data[XPR_STAT_METADATA_TEXT] = text;
    if (text == NULL) return false;
    memset(text, 0xff, named * sizeof *text);
    return true;
}

static void free_slices(xpr_xspace_slices *s) {
    for (size_t i = 0; i < s->count; i++) {
        xpr_xspace *own = &s->slices[i].space;
        xpr_table_free(&own->aggregated);
        xpr_table_free(&own->event_stats);
        xpr_dictionary_free(&own->texts);
        free(own->stat_metadata.data[XPR_STAT_METADATA_TEXT]);
    }
    free(s->slices);
    free(s->parts);
    s->slices = NULL;
    s->parts = NULL;
    s->count = s->part_count = s->part_room = 0;
}

xpr_xspace_slices *xpr_xspace_cut(const uint8_t *bytes, size_t length, size_t wanted) {
    xpr_xspace_slices *s = calloc(1, sizeof *s);
    if (s == NULL) return NULL;
    s->bytes = bytes;
    s->length = length;
    s->wanted = wanted ? wanted : 1;
    s->slices = calloc(s->wanted, sizeof *s->slices);
    bool cut = s->slices && xpr_xspace_begin(&s->reader, &s->space, bytes, length);
    s->reader.owner = s;
    cut = cut && xpr_xspace_each_line(&s->reader, add_line_bytes);
    if (s->slices) begin_slice(s);
    cut = cut && xpr_xspace_each_line(&s->reader, cut_line);
    cut = cut && xpr_table_reserve(&s->space.events, current(s)->first_event + current(s)->events);
    for (size_t i = 0; cut && i < s->count; i++) cut = prepare(s, &s->slices[i]);
    if (!cut) free_slices(s);
    return s;
}

size_t xpr_xspace_slice_count(const xpr_xspace_slices *slices) { return slices->count; }

static bool read_part(xpr_xspace_reader *d, const part *of) {
    xpr_wire w = {of->at, of->end, &d->failure};
    uint32_t tag;
    while (w.at != w.end) {
        if (!xpr_wire_tag(&w, &tag)) return false;
        if (tag == XPR_TAG(4, XPR_LEN) ? !xpr_xspace_read_event(d, &w, of->line, 0) : !xpr_wire_skip(&w, tag))
            return false;
    }
    return true;
}

void xpr_xspace_read(xpr_xspace_slices *slices, size_t index) {
    slice *of = &slices->slices[index];
    const uint8_t *bytes = slices->bytes;
    xpr_xspace_reader d = {
        .space = &of->space, .base = bytes, .end = bytes + slices->length, .plane = -1, .of_slice = true};
    for (size_t i = of->first_part; i < of->first_part + of->parts; i++) {
        const part *one = &slices->parts[i];
        if (one->plane != d.plane) {
            d.plane = one->plane;
            d.event_ids = slices->reader.of_plane[d.plane].event_ids;
            d.stat_ids = slices->reader.of_plane[d.plane].stat_ids;
        }
        if (!read_part(&d, one)) return;
        xpr_column_passed(one->at, 0, (size_t)(one->end - one->at));
    }
    xpr_table_passed(&of->space.events, 0, of->space.events.count);
    of->read = of->space.events.count == of->events;
}

/* The numbers of a slice's texts among those of the whole: in order, as one thread would have met them. NULL where
 * memory is out. */
static int32_t *joined_texts(xpr_dictionary *texts, const xpr_dictionary *own) {
    int32_t *number = malloc((own->strings.count + 1) * sizeof *number);
    for (size_t i = 0; number && i < own->strings.count; i++) {
        int64_t start = own->strings.offsets[i];
        number[i] = xpr_dictionary_number(texts, (const uint8_t *)own->strings.bytes + start,
                                          (size_t)(own->strings.offsets[i + 1] - start));
        if (number[i] < 0) {
            free(number);
            return NULL;
        }
    }
    texts->strings.repaired += own->strings.repaired;
    return number;
}

static void append_stats(xpr_xspace *space, const slice *of, const int32_t *text) {
    xpr_table *to = &space->event_stats;
    const xpr_table *own = &of->space.event_stats;
    if (own->count == 0) return;
    xpr_table place = window(to, to->count, own->count);
    for (int i = 0; i < own->width; i++)
        memcpy(place.data[i], own->data[i], own->count * xpr_column_size(own->spec[i].type));
    for (size_t i = 0; i < own->count; i++) {
        xpr_i64(&place, XPR_STATS_OWNER)[i] += (int64_t)of->first_event;
        if (xpr_u8(&place, XPR_STATS_KIND)[i] == XPR_TEXT)
            xpr_i64(&place, XPR_STATS_VALUE)[i] = text[xpr_i64(&place, XPR_STATS_VALUE)[i]];
    }
    to->count += own->count;
}

static bool append_aggregated(xpr_xspace *space, const slice *of) {
    const xpr_table *own = &of->space.aggregated;
    for (size_t i = 0; i < own->count; i++) {
        if (!xpr_table_room(&space->aggregated)) return false;
        size_t at = space->aggregated.count++;
        xpr_i64(&space->aggregated, XPR_AGGREGATED_EVENT)[at] =
            xpr_i64(own, XPR_AGGREGATED_EVENT)[i] + (int64_t)of->first_event;
        xpr_i64(&space->aggregated, XPR_AGGREGATED_OCCURRENCES)[at] = xpr_i64(own, XPR_AGGREGATED_OCCURRENCES)[i];
    }
    return true;
}

/* What stats of lines used as a value for the first time. */
static void join_text_of_metadata(xpr_xspace *space, const slice *of, const int32_t *text) {
    int32_t *known = xpr_i32(&space->stat_metadata, XPR_STAT_METADATA_TEXT);
    const int32_t *own = xpr_i32(&of->space.stat_metadata, XPR_STAT_METADATA_TEXT);
    for (size_t i = 0; i < space->stat_metadata.count; i++)
        if (known[i] < 0 && own[i] >= 0) known[i] = text[own[i]];
}

static bool join(xpr_xspace_slices *s) {
    size_t stats = 0;
    for (size_t i = 0; i < s->count; i++) {
        if (!s->slices[i].read) return false;
        stats += s->slices[i].space.event_stats.count;
    }
    if (s->count == 0 || !xpr_table_reserve(&s->space.event_stats, stats)) return false;
    s->space.events.count = current(s)->first_event + current(s)->events;
    for (size_t i = 0; i < s->count; i++) {
        slice *of = &s->slices[i];
        int32_t *text = joined_texts(&s->space.texts, &of->space.texts);
        bool joined = text && append_aggregated(&s->space, of);
        if (joined) {
            append_stats(&s->space, of, text);
            join_text_of_metadata(&s->space, of, text);
        }
        free(text);
        xpr_table_free(&of->space.event_stats);
        if (!joined) return false;
        s->space.events_without_metadata += of->space.events_without_metadata;
        s->space.stats_without_metadata += of->space.stats_without_metadata;
    }
    return true;
}

int xpr_xspace_join(xpr_xspace_slices *slices, xpr_xspace *space, xpr_decode_error *error) {
    bool joined = join(slices);
    free_slices(slices);
    xpr_xspace_end(&slices->reader);
    if (joined) {
        *space = slices->space;
        memset(&slices->space, 0, sizeof slices->space);
        return 0;
    }
    xpr_xspace_free(&slices->space);
    memset(&slices->space, 0, sizeof slices->space);
    return xpr_xspace_decode(slices->bytes, slices->length, space, error);
}

void xpr_xspace_slices_free(xpr_xspace_slices *slices) {
    if (slices == NULL) return;
    free_slices(slices);
    xpr_xspace_end(&slices->reader);
    xpr_xspace_free(&slices->space);
    free(slices);
}
