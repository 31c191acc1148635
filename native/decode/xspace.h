/* XSpace (the XLA profiler's .xplane.pb) to columns.
 *
 * Ownership: the caller's buffer is only read and not kept. After success the caller frees the xspace with
 * xpr_xspace_free; after failure nothing is left to free.
 * Threading: no shared state; any number of decodes may run at once. No Python.
 * Cost: about one pass; the planes' tags are read five times, their lines once, when all else has been read. Memory: the columns found, 1 to 3 times
 * the input in files that profilers write. The least event takes 2 bytes of input and 24 of columns, the least stat 2
 * and 21, and capacity doubles: columns stay within 25 times the input in the worst hand-made file, and all memory
 * within about 50 times (names and maps of ids that are not described).
 *
 * Ids: event and stat metadata are looked up per plane, the last entry of an id counts. An id that the plane does not
 * describe gets a row of its own with `live` = XPR_MISSING and the name "#<id>".
 */
#ifndef XPROF_PY_DECODE_XSPACE_H
#define XPROF_PY_DECODE_XSPACE_H

#include "columns/columns.h"
#include "decode/place.h"

/* `live` of metadata rows: replaced by a later entry of the same id, in force, or asked for but not described. */
enum { XPR_REPLACED = 0, XPR_LIVE = 1, XPR_MISSING = 2 };

/* `kind` of stats; the numbers of schema.ArgKind. XPR_NO_VALUE: the stat held no value. */
enum { XPR_NO_VALUE = 0, XPR_INT = 1, XPR_UINT = 2, XPR_DOUBLE = 3, XPR_TEXT = 4, XPR_BYTES = 5 };

enum { XPR_PLANES_ID, XPR_PLANES_WIDTH };
enum { XPR_LINES_PLANE, XPR_LINES_ID, XPR_LINES_TIMESTAMP, XPR_LINES_DURATION, XPR_LINES_DISPLAY_ID,
       XPR_LINES_EVENTS, XPR_LINES_WIDTH };
/* `name` is a number of event_names or stat_names; `text` of texts, -1 unless the name was used as a value. */
enum { XPR_EVENT_METADATA_PLANE, XPR_EVENT_METADATA_ID, XPR_EVENT_METADATA_NAME, XPR_EVENT_METADATA_LIVE,
       XPR_EVENT_METADATA_WIDTH };
enum { XPR_STAT_METADATA_PLANE, XPR_STAT_METADATA_ID, XPR_STAT_METADATA_NAME, XPR_STAT_METADATA_TEXT,
       XPR_STAT_METADATA_LIVE, XPR_STAT_METADATA_WIDTH };
enum { XPR_EVENTS_LINE, XPR_EVENTS_METADATA, XPR_EVENTS_OFFSET, XPR_EVENTS_DURATION, XPR_EVENTS_WIDTH };
/* `owner` is a row of events, event_metadata or planes. `value` is 64 raw bits; of texts the number in `texts`, of
 * bytes their length. Only the stats of planes and metadata have the column `at`: where the bytes are in the buffer. */
enum { XPR_STATS_OWNER, XPR_STATS_KEY, XPR_STATS_KIND, XPR_STATS_VALUE, XPR_EVENT_STATS_WIDTH,
       XPR_STATS_AT = XPR_EVENT_STATS_WIDTH, XPR_PLACED_STATS_WIDTH };
/* Events that stand for several occurrences and have no time of their own. */
enum { XPR_AGGREGATED_EVENT, XPR_AGGREGATED_OCCURRENCES, XPR_AGGREGATED_WIDTH };

typedef struct {
    xpr_table planes, lines, event_metadata, stat_metadata, events, aggregated;
    xpr_table event_stats, metadata_stats, plane_stats;
    xpr_strings plane_names, line_names, line_display_names, metadata_display_names;
    xpr_strings hostnames, errors, warnings;
    xpr_dictionary event_names, stat_names, texts;
    uint64_t events_without_metadata; /* events whose id the plane does not describe */
    uint64_t stats_without_metadata;  /* stats whose key or reference the plane does not describe */
} xpr_xspace;

/* Decode `length` bytes. Returns 0; or -1 with *error filled, reason XPR_OUT_OF_MEMORY when memory ran out. */
int xpr_xspace_decode(const uint8_t *bytes, size_t length, xpr_xspace *space, xpr_decode_error *error);
void xpr_xspace_free(xpr_xspace *space);

#endif
