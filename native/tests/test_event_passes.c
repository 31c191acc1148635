/* kernels/place_events.h and kernels/rows_by_code.h on columns of a few rows, in arrays that end where they end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/place_events.h"
#include "kernels/rows_by_code.h"
#include "tests/check.h"

static void *copy(const void *values, size_t size) {
    void *made = malloc(size ? size : 1);
    CHECK(made != NULL);
    return memcpy(made, values, size);
}

static void test_place_events(void) {
    int32_t lines[] = {0, 0, 1}, rows[] = {1, 0, 1}, names[] = {40, 41};
    int64_t offsets[] = {5, 7, -3}, durations[] = {10, -1, 2}, bases[] = {100, 1000};
    int32_t *line = copy(lines, sizeof lines), *row = copy(rows, sizeof rows), *name = copy(rows, sizeof rows);
    int64_t *start = copy(offsets, sizeof offsets), *duration = copy(durations, sizeof durations);
    xpr_events_to_place events = {line, row, start, duration, name, 3, bases, 2, names, 2};
    xpr_placed_events placed;
    CHECK(xpr_place_events(&events, &placed) == 0);
    CHECK(start[0] == 105 && start[1] == 107 && start[2] == 997);
    CHECK(duration[0] == 10 && duration[1] == 0 && duration[2] == 2);
    CHECK(name[0] == 41 && name[1] == 40 && name[2] == 41);
    CHECK(placed.negative == 1 && placed.in_order && placed.end_ps == 999);
    /* Of equal starts the longest comes first. */
    start[0] = start[1] = 0;
    duration[1] = 11;
    CHECK(xpr_place_events(&events, &placed) == 0 && !placed.in_order);
    /* The largest sums wrap, they are not undefined. */
    start[2] = INT64_MAX;
    CHECK(xpr_place_events(&events, &placed) == 0);
    line[2] = 2;
    CHECK(xpr_place_events(&events, &placed) == -1);
    events.count = 0;
    CHECK(xpr_place_events(&events, &placed) == 0 && placed.in_order && placed.end_ps == INT64_MIN);
    CHECK(xpr_all_within(NULL, 0, 1));
    free(line);
    free(row);
    free(name);
    free(start);
    free(duration);
}

static void test_rows_by_code(void) {
    int32_t codes[] = {2, 0, 2, 1, 0};
    uint8_t keep[] = {1, 0, 1};
    int64_t begin[4] = {0}, next[3];
    int32_t *code = copy(codes, sizeof codes);
    CHECK(xpr_count_codes(code, 5, keep, 3, begin) == 0);
    CHECK(begin[0] == 0 && begin[1] == 2 && begin[2] == 2 && begin[3] == 4);
    int32_t *rows = malloc((size_t)begin[3] * sizeof *rows);
    CHECK(rows != NULL);
    xpr_rows_by_code(code, 5, keep, 3, begin, next, rows);
    CHECK(rows[0] == 1 && rows[1] == 4 && rows[2] == 0 && rows[3] == 2);
    code[3] = 3;
    CHECK(xpr_count_codes(code, 5, keep, 3, begin) == -1);
    free(code);
    free(rows);
}

int main(void) {
    test_place_events();
    test_rows_by_code();
    printf("passes over events: ok\n");
    return 0;
}
