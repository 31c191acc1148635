/* The XSpace decoder from within: what xspace.c, xspace_events.c and xspace_slices.c share. Readers of files use xspace.h.
 *
 * All of a file but its lines is read first: then lines can be read in any number of stretches, which need only what is
 * known by then.
 */
#ifndef XPROF_PY_DECODE_XSPACE_READER_H
#define XPROF_PY_DECODE_XSPACE_READER_H

#include "decode/wire.h"
#include "decode/xspace.h"

/* A string field that may come several times: the last one counts. */
typedef struct {
    const uint8_t *bytes;
    size_t length;
} xpr_text_field;

/* What a line says beside its events. */
typedef struct {
    uint64_t id, timestamp_ns, duration_ps, display_id;
    xpr_text_field name, display_name;
} xpr_line_head;

/* A plane whose lines are still to be read: its message, and the rows of its metadata by id. */
typedef struct {
    xpr_wire wire;
    xpr_id_map event_ids, stat_ids;
} xpr_plane_lines;

typedef struct {
    xpr_xspace *space;
    const uint8_t *base, *end; /* the whole file, of a slice's reader too */
    xpr_failure failure;
    xpr_place place;
    xpr_plane_lines *of_plane; /* owned */
    int32_t planes, plane_room;
    /* Of the plane being read. */
    int32_t plane;
    xpr_id_map event_ids, stat_ids;
    bool of_slice; /* reads a stretch beside others: adds to nothing that they share, and has room for its events alone */
    void *owner;   /* of whoever reads lines with xpr_xspace_each_line */
} xpr_xspace_reader;

/* Before reading the index-th message of a field, its length first: a length that cannot be is that message's fault.
 * Always true, to stand in a chain of reads. */
static inline bool xpr_xspace_enter(xpr_xspace_reader *d, const char *field, uint64_t index) {
    d->place.level[d->place.depth].field = field;
    d->place.level[d->place.depth].index = index;
    d->place.depth++;
    return true;
}

static inline void xpr_xspace_leave(xpr_xspace_reader *d) { d->place.depth--; }

/* Read all but the lines into `space`, which is initialised here. Whether it worked or not, the reader ends with
 * xpr_xspace_end and the space with xpr_xspace_free. */
bool xpr_xspace_begin(xpr_xspace_reader *d, xpr_xspace *space, const uint8_t *bytes, size_t length);
/* Call `read` for the message of every line, in order. */
bool xpr_xspace_each_line(xpr_xspace_reader *d, bool (*read)(xpr_xspace_reader *, xpr_wire *));
void xpr_xspace_end(xpr_xspace_reader *d);

/* xspace_events.c. Metadata of the plane being read: the row that is added. A stat whose message `w` is, into `table`. */
bool xpr_xspace_no_memory(xpr_xspace_reader *d, const uint8_t *at); /* false */
bool xpr_xspace_number(xpr_xspace_reader *d, xpr_dictionary *dictionary, const uint8_t *bytes, size_t length,
                       int32_t *result);
bool xpr_xspace_add_stat_metadata(xpr_xspace_reader *d, const uint8_t *at, uint64_t id, int32_t name, uint8_t live,
                                  int32_t *row);
bool xpr_xspace_add_event_metadata(xpr_xspace_reader *d, const uint8_t *at, uint64_t id, int32_t name, uint8_t live,
                                   int32_t *row);
bool xpr_xspace_read_stat(xpr_xspace_reader *d, xpr_wire *w, int64_t owner, xpr_table *table);

/* A field of a line that is no event; a line whose fields have all been read; the event whose length comes next. */
bool xpr_xspace_read_line_field(xpr_wire *w, uint32_t tag, xpr_line_head *head);
bool xpr_xspace_add_line(xpr_xspace_reader *d, const uint8_t *at, const xpr_line_head *head, size_t events);
bool xpr_xspace_read_event(xpr_xspace_reader *d, xpr_wire *w, int32_t line, uint64_t index);

#endif
