#include "kernels/place_events.h"

#include "columns/memory.h"

static int64_t sum(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }

typedef struct {
    int32_t line;
    int64_t start_ps, duration_ps;
} placed_event;

static int place_rows(const xpr_events_to_place *events, size_t first, size_t end, placed_event *before,
                      xpr_placed_events *placed) {
    for (size_t row = first; row < end; row++) {
        int32_t line = events->line[row], metadata = events->metadata[row];
        if (line < 0 || (size_t)line >= events->lines || metadata < 0 || (size_t)metadata >= events->metadata_count)
            return -1;
        int64_t start = sum(events->start_ps[row], events->line_base_ps[line]), duration = events->duration_ps[row];
        events->start_ps[row] = start;
        events->name[row] = events->name_of_metadata[metadata];
        if (duration < 0) {
            duration = events->duration_ps[row] = 0;
            placed->negative++;
        }
        if (line == before->line &&
            (start < before->start_ps || (start == before->start_ps && duration > before->duration_ps)))
            placed->in_order = false;
        int64_t end_ps = sum(start, duration);
        if (end_ps > placed->end_ps) placed->end_ps = end_ps;
        *before = (placed_event){line, start, duration};
    }
    return 0;
}

int xpr_place_events(const xpr_events_to_place *events, xpr_placed_events *placed) {
    *placed = (xpr_placed_events){0, true, INT64_MIN};
    placed_event before = {-1, 0, 0};
    for (size_t first = 0; first < events->count; first += XPR_ROWS_AT_ONCE) {
        size_t end = xpr_end_of_rows(first, events->count);
        if (place_rows(events, first, end, &before, placed) < 0) return -1;
        const void *narrow[] = {events->line, events->metadata, events->name};
        const void *wide[] = {events->start_ps, events->duration_ps};
        for (int i = 0; i < 3; i++) xpr_column_passed(narrow[i], first * 4, end * 4);
        for (int i = 0; i < 2; i++) xpr_column_passed(wide[i], first * 8, end * 8);
    }
    return 0;
}

bool xpr_all_within(const int64_t *values, size_t count, int64_t limit) {
    bool within = true;
    for (size_t first = 0; first < count; first += XPR_ROWS_AT_ONCE) {
        size_t end = xpr_end_of_rows(first, count);
        for (size_t row = first; row < end; row++) within &= (values[row] < limit) & (values[row] > -limit);
        xpr_column_passed(values, first * sizeof *values, end * sizeof *values);
    }
    return within;
}
