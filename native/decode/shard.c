#define _GNU_SOURCE
#include "decode/shard.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "columns/memory.h"
#include "xprof_py/shard_format.h"

#define INLINE static inline __attribute__((always_inline))

uint64_t xpr_shard_checksum(const uint8_t *bytes, size_t words, size_t own) {
    uint64_t a = 0, b = 0, w[4];
    size_t i = 0;
    /* Four words at once: b after them is b + 4a + 4 w0 + 3 w1 + 2 w2 + w3. */
    for (; i + 4 <= words; i += 4) {
        memcpy(w, bytes + 8 * i, sizeof w);
        b += 4 * (a + w[0]) + 3 * w[1] + 2 * w[2] + w[3];
        a += w[0] + w[1] + w[2] + w[3];
    }
    for (; i < words; i++) {
        memcpy(w, bytes + 8 * i, 8);
        a += w[0];
        b += a;
    }
    if (own < words) {
        memcpy(w, bytes + 8 * own, 8);
        a -= w[0];
        b -= (words - own) * w[0];
    }
    return a ^ (b << 32 | b >> 32);
}

/* Rows of one line in the columns: [begin, begin + rows). */
struct line {
    size_t begin, rows;
    uint64_t moves;
    bool unsorted;
};

/* Ticks low..high lie on one piece. */
struct piece {
    uint64_t low, high, tick;
    int64_t at_ps;
    double ps_per_tick;
};

static __attribute__((noinline)) struct piece find_piece(const struct xpr_tick_map *map, uint64_t tick) {
    size_t low = 0, high = map->points;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (map->ticks[middle] <= tick)
            low = middle + 1;
        else
            high = middle;
    }
    size_t i = low ? low - 1 : 0;
    if (i >= map->pieces) i = map->pieces - 1;
    return (struct piece){
        .low = i ? map->ticks[i] : 0,
        .high = i + 1 < map->pieces ? map->ticks[i + 1] - 1 : UINT64_MAX,
        .tick = map->ticks[i],
        .at_ps = map->at_ps[i],
        .ps_per_tick = map->ps_per_tick[i],
    };
}

/* To the nearest integer, a half to the even one. rint, where it is no instruction, is a call. */
INLINE double nearest(double x) {
    const double unit = 6755399441055744.0; /* 1.5 * 2^52: added, it leaves no place for a fraction */
    return __builtin_expect(fabs(x) < 2251799813685248.0, 1) ? x + unit - unit : rint(x);
}

/* As TickMap.to_ps: a damaged tick is kept within what the column can hold. */
INLINE int64_t to_ps(struct piece *piece, const struct xpr_tick_map *map, uint64_t tick) {
    if (__builtin_expect(tick < piece->low || tick > piece->high, 0)) *piece = find_piece(map, tick);
    const double far = 4611686018427387904.0; /* 2^62 */
    double distance_ps = nearest((double)(int64_t)(tick - piece->tick) * piece->ps_per_tick);
    if (!(distance_ps < far)) distance_ps = far;
    if (!(distance_ps > -far)) distance_ps = -far;
    return (int64_t)((uint64_t)piece->at_ps + (uint64_t)(int64_t)distance_ps);
}

static void make_room(struct xpr_shard_events *out, size_t at, size_t rows) {
    memmove(out->start_ps + at + 1, out->start_ps + at, rows * sizeof *out->start_ps);
    memmove(out->duration_ps + at + 1, out->duration_ps + at, rows * sizeof *out->duration_ps);
    memmove(out->first + at + 1, out->first + at, rows * sizeof *out->first);
    memmove(out->name + at + 1, out->name + at, rows * sizeof *out->name);
    memmove(out->kind + at + 1, out->kind + at, rows * sizeof *out->kind);
}

/* Makes room for a row before those that begin later or lie inside it; returns where. */
static __attribute__((noinline)) size_t insert(struct xpr_shard_events *out, struct line *line, size_t end,
                                               int64_t start_ps, int64_t duration_ps) {
    size_t at = end;
    while (at > line->begin && (out->start_ps[at - 1] > start_ps ||
                                (out->start_ps[at - 1] == start_ps && out->duration_ps[at - 1] <= duration_ps)))
        at--;
    line->moves += end - at;
    line->unsorted = line->moves > XPR_MOST_MOVES * (uint64_t)(end - line->begin) + 4096;
    if (line->unsorted) return end;
    make_room(out, at, end - at);
    return at;
}

/* What the loop over a run works with: a copy, so that it stays in registers. */
struct sink {
    struct xpr_shard_events e;
    struct piece piece;
    size_t begin, end; /* rows of the line */
    int64_t last_ps;   /* start of the row before `end`; with none, or in an unsorted line, INT64_MIN */
    bool unsorted;
};

INLINE struct sink sink_of(const struct xpr_shard_events *out, const struct line *line, struct piece piece) {
    size_t end = line->begin + line->rows;
    int64_t last_ps = line->rows && !line->unsorted ? out->start_ps[end - 1] : INT64_MIN;
    return (struct sink){*out, piece, line->begin, end, last_ps, line->unsorted};
}

/* to_ps of both ends of a span that lie on the known piece and near its tick: then nothing is cut off. */
INLINE bool both_ps(const struct piece *piece, uint64_t start, uint64_t end, int64_t *start_ps, int64_t *end_ps) {
    if (__builtin_expect(start < piece->low || end > piece->high || start > end, 0)) return false;
    const double near_ps = 2251799813685248.0; /* 2^51, as in nearest */
    const double unit = 6755399441055744.0;
    double to_start = (double)(int64_t)(start - piece->tick) * piece->ps_per_tick;
    double to_end = (double)(int64_t)(end - piece->tick) * piece->ps_per_tick;
    if (__builtin_expect(!(fabs(to_start) < near_ps && fabs(to_end) < near_ps), 0)) return false;
    *start_ps = (int64_t)((uint64_t)piece->at_ps + (uint64_t)(int64_t)(to_start + unit - unit));
    *end_ps = (int64_t)((uint64_t)piece->at_ps + (uint64_t)(int64_t)(to_end + unit - unit));
    return true;
}

INLINE uint64_t word_of(const uint8_t *slot, unsigned i) {
    uint64_t word;
    memcpy(&word, slot + 8 * i, sizeof word);
    return word;
}

/* `word`: the third of the event's slot, with name, kind, flags and schema. */
INLINE void add(struct sink *s, struct xpr_shard_events *out, struct line *line, const struct xpr_tick_map *map,
                const uint8_t *slot, uint64_t word, size_t number) {
    uint64_t start = word_of(slot, 0), duration = word_of(slot, 1);
    int64_t start_ps, end_ps, duration_ps;
    if (__builtin_expect(!(word >> 40 & XPR_EVENT_PAST) && duration != XPR_DURATION_OPEN &&
                             both_ps(&s->piece, start, start + duration, &start_ps, &end_ps), 1)) {
        duration_ps = (int64_t)((uint64_t)end_ps - (uint64_t)start_ps);
    } else {
        bool is_open = duration == XPR_DURATION_OPEN, is_past = word >> 40 & XPR_EVENT_PAST;
        end_ps = start_ps = to_ps(&s->piece, map, start);
        if (!is_open && !is_past) end_ps = to_ps(&s->piece, map, start + duration);
        if (is_past) start_ps = (int64_t)((uint64_t)start_ps - duration * 1000u);
        duration_ps = is_open ? INT64_MAX : (int64_t)((uint64_t)end_ps - (uint64_t)start_ps);
        s->e.open += is_open;
    }
    if (end_ps > s->e.end_ps) s->e.end_ps = end_ps;
    s->e.with_arguments += word >> 48 != 0;

    size_t at = s->end;
    if (s->last_ps >= start_ps && !s->unsorted && at > s->begin) {
        at = insert(out, line, at, start_ps, duration_ps);
        s->unsorted = line->unsorted;
    } else {
        s->last_ps = start_ps;
    }
    s->end++;
    uint32_t name = (uint32_t)word;
    s->e.start_ps[at] = start_ps;
    s->e.duration_ps[at] = duration_ps;
    s->e.first[at] = (uint32_t)number;
    s->e.name[at] = name;
    s->e.kind[at] = (uint8_t)(word >> 32);
    if (name < s->e.names)
        s->e.name_used[name] = 1;
    else
        s->e.odd_names++;
}

/* An event of which it is not yet known whether it is whole. */
struct begun {
    const uint8_t *slot; /* NULL: none */
    uint64_t word;
    size_t number, line;
};

static void end_event(struct xpr_shard_events *out, struct line *lines, const struct xpr_tick_map *map, struct begun event,
                      size_t slots) {
    if (!event.slot) return;
    if ((event.word >> 40 & XPR_EVENT_SLOTS) != slots) {
        out->broken++;
        return;
    }
    struct line *line = &lines[event.line];
    struct sink s = sink_of(out, line, (struct piece){.low = 1});
    add(&s, out, line, map, event.slot, event.word, event.number);
    line->rows++;
    *out = s.e;
}

/* An event that is not followed by as many slots as it has has lost arguments, and counts as lost with them. */
static void add_all(struct xpr_shard_events *out, struct line *lines, const struct xpr_tick_map *map,
                    const struct xpr_slot_run *runs, size_t run_count) {
    struct begun event = {0};
    size_t number = 0;
    struct piece piece = {.low = 1};
    for (size_t r = 0; r < run_count; number += runs[r++].slots) {
        const uint8_t *bytes = runs[r].bytes;
        size_t i = 0, n = runs[r].slots;
        while (i < n && (word_of(bytes + i * 32, 2) >> 32 & 0xFF) == XPR_KIND_MORE) i++;
        if (i == n) continue;
        end_event(out, lines, map, event, number + i - event.number);
        struct line *line = &lines[runs[r].line];
        struct sink s = sink_of(out, line, piece);
        size_t begun = i;
        uint64_t word = word_of(bytes + i * 32, 2);
        while (++i < n) {
            uint64_t next = word_of(bytes + i * 32, 2);
            if ((next >> 32 & 0xFF) == XPR_KIND_MORE) continue;
            if (__builtin_expect((word >> 40 & XPR_EVENT_SLOTS) == i - begun, 1))
                add(&s, out, line, map, bytes + begun * 32, word, number + begun);
            else
                s.e.broken++;
            begun = i;
            word = next;
        }
        line->rows = s.end - s.begin;
        piece = s.piece;
        *out = s.e;
        event = (struct begun){bytes + begun * 32, word, number + begun, runs[r].line};
    }
    end_event(out, lines, map, event, number - event.number);
}

/* Lines had room for an event in every slot: puts them one behind the other. */
static void close_up(struct xpr_shard_events *out, const struct line *lines) {
    for (size_t l = 0; l < out->lines; l++) {
        size_t from = lines[l].begin, rows = lines[l].rows, to = out->count;
        if (from != to) {
            memmove(out->start_ps + to, out->start_ps + from, rows * sizeof *out->start_ps);
            memmove(out->duration_ps + to, out->duration_ps + from, rows * sizeof *out->duration_ps);
            memmove(out->first + to, out->first + from, rows * sizeof *out->first);
            memmove(out->name + to, out->name + from, rows * sizeof *out->name);
            memmove(out->kind + to, out->kind + from, rows * sizeof *out->kind);
        }
        out->line_rows[l] = rows;
        out->line_unsorted[l] = lines[l].unsorted;
        out->count += rows;
    }
}

static int number_names(struct xpr_shard_events *out) {
    if (out->odd_names) return 0;
    uint32_t *row_of = malloc((out->names + 1) * sizeof *row_of), rows = 0;
    if (!row_of) return -1;
    for (size_t i = 0; i < out->names; i++) {
        row_of[i] = rows;
        rows += out->name_used[i];
    }
    for (size_t i = 0; i < out->count; i++) out->name[i] = row_of[out->name[i]];
    free(row_of);
    return 0;
}

void xpr_shard_events_free(struct xpr_shard_events *e) {
    xpr_column_free(e->start_ps);
    xpr_column_free(e->duration_ps);
    xpr_column_free(e->first);
    xpr_column_free(e->name);
    xpr_column_free(e->kind);
    xpr_column_free(e->line_rows);
    xpr_column_free(e->line_unsorted);
    xpr_column_free(e->name_used);
    memset(e, 0, sizeof *e);
}

void *xpr_new_column(size_t rows, size_t width) {
    const size_t page = 2 << 20;
    size_t bytes = rows * width;
    if (bytes < 4 * page) return xpr_column_alloc(bytes);
    bytes = (bytes + page - 1) / page * page;
    void *column = xpr_column_file(bytes);
    if (column) return column;
    column = aligned_alloc(page, bytes);
    if (column) madvise(column, bytes, MADV_HUGEPAGE);
    xpr_column_note(column, bytes);
    return column;
}

int xpr_decode_shard_events(const struct xpr_slot_run *runs, size_t run_count, size_t lines, struct xpr_tick_map map,
                            size_t names, struct xpr_shard_events *out) {
    *out = (struct xpr_shard_events){.lines = lines, .names = names, .end_ps = INT64_MIN};
    struct line *places = calloc(lines + 1, sizeof *places);
    if (!places) return -1;
    size_t slots = 0, begin = 0;
    for (size_t r = 0; r < run_count; r++) {
        slots += runs[r].slots;
        places[runs[r].line].rows += runs[r].slots;
    }
    for (size_t l = 0; l < lines; l++) {
        places[l].begin = begin;
        begin += places[l].rows;
        places[l].rows = 0;
    }
    out->start_ps = xpr_new_column(slots + 1, sizeof *out->start_ps);
    out->duration_ps = xpr_new_column(slots + 1, sizeof *out->duration_ps);
    out->first = xpr_new_column(slots + 1, sizeof *out->first);
    out->name = xpr_new_column(slots + 1, sizeof *out->name);
    out->kind = xpr_new_column(slots + 1, 1);
    out->line_rows = calloc(lines + 1, sizeof *out->line_rows);
    out->line_unsorted = calloc(lines + 1, 1);
    out->name_used = calloc(names + 1, 1);
    int failed = -1;
    if (slots < UINT32_MAX && out->start_ps && out->duration_ps && out->first && out->name && out->kind &&
        out->line_rows && out->line_unsorted && out->name_used) {
        add_all(out, places, &map, runs, run_count);
        close_up(out, places);
        failed = number_names(out);
    }
    free(places);
    if (failed) xpr_shard_events_free(out);
    return failed;
}
