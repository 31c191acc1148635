#include "kernels/place_events.h"

static int64_t sum(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }

int xpr_place_events(const xpr_events_to_place *events, xpr_placed_events *placed) {
    *placed = (xpr_placed_events){0, true, INT64_MIN};
    int32_t line_before = -1;
    int64_t start_before = 0, duration_before = 0;
    for (size_t row = 0; row < events->count; row++) {
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
        if (line == line_before && (start < start_before || (start == start_before && duration > duration_before)))
            placed->in_order = false;
        int64_t end = sum(start, duration);
        if (end > placed->end_ps) placed->end_ps = end;
        line_before = line;
        start_before = start;
        duration_before = duration;
    }
    return 0;
}

bool xpr_all_within(const int64_t *values, size_t count, int64_t limit) {
    bool within = true;
    for (size_t row = 0; row < count; row++) within &= (values[row] < limit) & (values[row] > -limit);
    return within;
}
