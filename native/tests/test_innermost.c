/* Spans flattened by the kernel against a reading of the rule that looks at every moment. */
#include "kernels/innermost.h"

#include <stdio.h>
#include <stdlib.h>

#define REQUIRE(claim)                                                       \
    do {                                                                     \
        if (!(claim)) {                                                      \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #claim);      \
            exit(1);                                                         \
        }                                                                    \
    } while (0)

enum { SPANS = 12, TIMES = 24, STRONG = 3 };

static uint64_t state = 1;

static int64_t below(int64_t limit) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (int64_t)(state % (uint64_t)limit);
}

typedef struct {
    int64_t start_ps[SPANS], end_ps[SPANS], event[SPANS];
    int32_t name[SPANS];
    int8_t says[SPANS];
    size_t count;
} spans;

static void sorted_random(spans *made, int64_t first_event) {
    made->count = (size_t)below(SPANS + 1);
    for (size_t i = 0; i < made->count; i++) {
        int64_t start = below(TIMES), end = start + below(TIMES - start + 1);
        size_t place = i;
        for (; place && (made->start_ps[place - 1] > start ||
                         (made->start_ps[place - 1] == start && made->end_ps[place - 1] < end));
             place--) {
            made->start_ps[place] = made->start_ps[place - 1];
            made->end_ps[place] = made->end_ps[place - 1];
        }
        made->start_ps[place] = start;
        made->end_ps[place] = end;
    }
    for (size_t i = 0; i < made->count; i++) {
        made->event[i] = first_event + (int64_t)i;
        made->name[i] = (int32_t)below(7);
        made->says[i] = (int8_t)(made->name[i] - 1);
    }
}

/* The order in which spans open. Of two that begin and end together the one that says more is the inner one; where they
 * say the same, that of the line opens first. */
static int opens_before(const spans *a, size_t i, const spans *b, size_t j, int a_is_line) {
    if (a->start_ps[i] != b->start_ps[j]) return a->start_ps[i] < b->start_ps[j];
    if (a->end_ps[i] != b->end_ps[j]) return a->end_ps[i] > b->end_ps[j];
    if (a->says[i] != b->says[j]) return a->says[i] < b->says[j];
    return a == b ? i < j : a_is_line;
}

static void look_at(int64_t at, const spans *line, const spans *more, int64_t *event, int8_t *says) {
    const spans *best = NULL;
    size_t best_row = 0;
    for (int strong = 1; strong >= 0 && !best; strong--)
        for (int source = 0; source < 2; source++) {
            const spans *from = source ? more : line;
            for (size_t i = 0; i < from->count; i++) {
                if (from->says[i] < (strong ? STRONG : 0)) continue;
                if (from->start_ps[i] > at || from->end_ps[i] <= at) continue;
                if (!best || opens_before(best, best_row, from, i, best == line)) {
                    best = from;
                    best_row = i;
                }
            }
        }
    *event = best ? best->event[best_row] : -1;
    *says = best ? best->says[best_row] : -1;
}

static void one_case(bool join_alike) {
    static const int8_t name_says[7] = {-1, 0, 1, 2, 3, 4, 5};
    spans line, more;
    sorted_random(&line, 0);
    sorted_random(&more, 100);
    for (size_t i = 0; i < more.count; i++)
        if (more.says[i] < 0) more.says[i] = 0;
    int64_t special_row[1] = {0};
    int8_t special_says[1] = {(int8_t)(below(7) - 1)};
    size_t specials = line.count && below(2) ? 1 : 0;
    if (specials) {
        special_row[0] = below((int64_t)line.count);
        line.says[special_row[0]] = special_says[0];
    }
    int64_t low[2], high[2];
    low[0] = below(8);
    high[0] = low[0] + 1 + below(8);
    low[1] = high[0] + 1 + below(4);
    high[1] = low[1] + 1 + below(8);
    int64_t duration_ps[SPANS];
    for (size_t i = 0; i < line.count; i++) duration_ps[i] = line.end_ps[i] - line.start_ps[i];
    xpr_line_spans of_line = {line.start_ps, duration_ps, line.name,    0,       line.count,
                              name_says,     special_row, special_says, specials};
    xpr_more_spans others = {more.start_ps, more.end_ps, more.event, more.says, more.count};
    xpr_keep keep = {low, high, 2};
    xpr_pieces pieces;
    REQUIRE(xpr_innermost(&of_line, &others, &keep, STRONG, join_alike, &pieces) == 0);
    size_t piece = 0;
    for (int64_t at = 0; at < TIMES + 20; at++) {
        bool kept = (at >= low[0] && at < high[0]) || (at >= low[1] && at < high[1]);
        int64_t event;
        int8_t says;
        look_at(at, &line, &more, &event, &says);
        while (piece < pieces.count && pieces.end_ps[piece] <= at) piece++;
        bool covered = piece < pieces.count && pieces.start_ps[piece] <= at;
        REQUIRE(covered == (kept && event >= 0));
        if (covered) REQUIRE(pieces.says[piece] == says);
        if (covered && !join_alike) REQUIRE(pieces.event[piece] == event);
    }
    for (size_t i = 1; i < pieces.count; i++) {
        REQUIRE(pieces.start_ps[i] >= pieces.end_ps[i - 1] && pieces.end_ps[i] > pieces.start_ps[i]);
        bool touch = pieces.start_ps[i] == pieces.end_ps[i - 1];
        bool alike = pieces.says[i] == pieces.says[i - 1];
        REQUIRE(!touch || (join_alike ? !alike : pieces.event[i] != pieces.event[i - 1]));
    }
    xpr_pieces_free(&pieces);
    REQUIRE(pieces.count == 0 && pieces.start_ps == NULL);
}

static void a_wait_stays_alone(void) {
    int64_t start[3] = {0, 10, 20}, end[3] = {10, 20, 30}, event[3] = {7, 8, 9}, low = 0, high = 30;
    int8_t says[3] = {1, 1 | XPR_SAYS_ALONE, 1};
    xpr_line_spans none = {0};
    xpr_more_spans more = {start, end, event, says, 3};
    xpr_keep keep = {&low, &high, 1};
    xpr_pieces pieces;
    REQUIRE(xpr_innermost(&none, &more, &keep, STRONG, true, &pieces) == 0);
    REQUIRE(pieces.count == 3 && pieces.event[1] == 8);
    xpr_pieces_free(&pieces);
}

int main(void) {
    for (int i = 0; i < 40000; i++) one_case(i % 2 == 1);
    a_wait_stays_alone();
    printf("ok\n");
    return 0;
}
