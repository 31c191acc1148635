#include "kernels/innermost.h"

#include <stdlib.h>
#include <string.h>

#include "columns/memory.h"

typedef struct {
    int64_t end_ps;
    int64_t event;
    int32_t naming; /* the place of the nearest open one at or below this that says `strong`, -1 for none */
    int8_t says;
} open_span;

typedef struct {
    open_span *spans;
    size_t depth;
    size_t capacity;
} open_stack;

typedef struct {
    int64_t start_ps;
    int64_t end_ps;
    int64_t event;
    int8_t says;
} span;

/* Where the reading of both sources has come to. */
typedef struct {
    const xpr_line_spans *line;
    const xpr_more_spans *more;
    const xpr_keep *keep;
    size_t row;
    size_t passed; /* rows before this one are not in memory, if they lie in files */
    size_t special;
    size_t other;
    size_t wanted; /* the first interval of `keep` that a span which begins here may still lie in */
    span of_line;
    bool has_of_line;
    bool join_alike;
    int8_t strong;
    int64_t strong_until; /* until when one of the strong spans read so far stays open */
    span before;          /* the span that opened last */
} reading;

static bool is_strong(int8_t says, int8_t strong) { return (says & ~XPR_SAYS_ALONE) >= strong; }

/* A span inside a strong one decides nothing, unless it is strong itself: most frames of a loader are such. */
static bool is_hidden(const reading *at, int8_t says, int64_t end_ps) {
    return end_ps <= at->strong_until && !is_strong(says, at->strong);
}

/* Of two spans of one interval the one that says more is the inner one, whichever comes first in the file. */
static bool is_outer_twin(const span *opened, const span *before) {
    return opened->start_ps == before->start_ps && opened->end_ps == before->end_ps &&
           (opened->says & ~XPR_SAYS_ALONE) < (before->says & ~XPR_SAYS_ALONE);
}

/* Where only what is said counts, a span inside one that says the same changes nothing. */
static bool is_inside_alike(const open_stack *stack, const span *opened) {
    if (!stack->depth || opened->says & XPR_SAYS_ALONE) return false;
    const open_span *top = &stack->spans[stack->depth - 1];
    return top->says == opened->says && top->end_ps >= opened->end_ps;
}

/* The rows before those at hand are not read again. */
static void pass_rows(reading *at) {
    xpr_column_passed(at->line->start_ps, at->passed * 8, at->row * 8);
    xpr_column_passed(at->line->duration_ps, at->passed * 8, at->row * 8);
    xpr_column_passed(at->line->name, at->passed * 4, at->row * 4);
    at->passed = at->row;
}

/* The next span of the line that may change something; `stack` is what is open before it. Nearly all spans of a large
 * capture are passed over here: they lie between the intervals that are asked for, or say what is said around them. */
static void find_of_line(reading *at, const open_stack *stack) {
    const xpr_line_spans *line = at->line;
    const xpr_keep *keep = at->keep;
    size_t end = line->first + line->count;
    int64_t more_ps = at->other < at->more->count ? at->more->start_ps[at->other] : INT64_MAX;
    while (at->row < end) {
        if (at->row >= at->passed + XPR_ROWS_AT_ONCE) pass_rows(at);
        size_t stop = xpr_end_of_rows(at->passed, end);
        for (; at->row < stop; at->row++) {
            size_t row = at->row;
            int64_t start_ps = line->start_ps[row], end_ps = start_ps + line->duration_ps[row];
            while (at->wanted < keep->count && keep->end_ps[at->wanted] <= start_ps) at->wanted++;
            if (at->wanted == keep->count) {
                at->row = end;
                return;
            }
            if (end_ps <= keep->start_ps[at->wanted] || end_ps <= start_ps) continue;
            while (at->special < line->special_count && (size_t)line->special_rows[at->special] < row) at->special++;
            bool special = at->special < line->special_count && (size_t)line->special_rows[at->special] == row;
            int8_t says = special ? line->special_says[at->special] : line->name_says[line->name[row]];
            if (says < 0 || is_hidden(at, says, end_ps)) continue;
            span found = {start_ps, end_ps, (int64_t)row, says};
            if (at->join_alike && start_ps < more_ps && is_inside_alike(stack, &found)) {
                if (!is_outer_twin(&found, &at->before)) at->before = found;
                continue;
            }
            at->of_line = found;
            at->has_of_line = true;
            at->row++;
            return;
        }
    }
}

static bool next_start(const reading *at, int64_t *start_ps) {
    bool has_more = at->other < at->more->count;
    if (!at->has_of_line && !has_more) return false;
    if (at->has_of_line) *start_ps = at->of_line.start_ps;
    if (has_more && (!at->has_of_line || at->more->start_ps[at->other] < *start_ps))
        *start_ps = at->more->start_ps[at->other];
    return true;
}

static span take(reading *at) {
    const xpr_more_spans *more = at->more;
    size_t other = at->other;
    bool of_line = at->has_of_line;
    if (of_line && other < more->count) {
        int64_t start_ps = more->start_ps[other];
        of_line = at->of_line.start_ps < start_ps ||
                  (at->of_line.start_ps == start_ps && at->of_line.end_ps >= more->end_ps[other]);
    }
    if (of_line) {
        at->has_of_line = false;
        return at->of_line;
    }
    at->other++;
    return (span){more->start_ps[other], more->end_ps[other], more->event[other], more->says[other]};
}

static bool push(open_stack *stack, const span *opened, int8_t strong) {
    if (stack->depth == stack->capacity) {
        size_t capacity = stack->capacity ? 2 * stack->capacity : 64;
        open_span *spans = realloc(stack->spans, capacity * sizeof *spans);
        if (spans == NULL) return false;
        stack->spans = spans;
        stack->capacity = capacity;
    }
    int32_t below = stack->depth ? stack->spans[stack->depth - 1].naming : -1;
    bool names = is_strong(opened->says, strong);
    stack->spans[stack->depth] =
        (open_span){opened->end_ps, opened->event, names ? (int32_t)stack->depth : below, opened->says};
    stack->depth++;
    return true;
}

static bool grow(xpr_pieces *pieces) {
    size_t capacity = pieces->capacity ? pieces->capacity + pieces->capacity / 2 : 1024;
    void *start = xpr_column_resize(pieces->start_ps, capacity * sizeof *pieces->start_ps);
    if (start) pieces->start_ps = start;
    void *end = xpr_column_resize(pieces->end_ps, capacity * sizeof *pieces->end_ps);
    if (end) pieces->end_ps = end;
    void *event = xpr_column_resize(pieces->event, capacity * sizeof *pieces->event);
    if (event) pieces->event = event;
    void *says = xpr_column_resize(pieces->says, capacity * sizeof *pieces->says);
    if (says) pieces->says = says;
    if (!start || !end || !event || !says) return false;
    pieces->capacity = capacity;
    return true;
}

static bool add(xpr_pieces *pieces, int64_t start_ps, int64_t end_ps, const open_span *decider, bool join_alike) {
    if (pieces->count) {
        size_t last = pieces->count - 1;
        bool same = pieces->event[last] == decider->event ||
                    (join_alike && !((pieces->says[last] | decider->says) & XPR_SAYS_ALONE));
        if (same && pieces->end_ps[last] == start_ps && pieces->says[last] == decider->says) {
            pieces->end_ps[last] = end_ps;
            return true;
        }
    }
    if (pieces->count == pieces->capacity && !grow(pieces)) return false;
    pieces->start_ps[pieces->count] = start_ps;
    pieces->end_ps[pieces->count] = end_ps;
    pieces->event[pieces->count] = decider->event;
    pieces->says[pieces->count] = decider->says;
    pieces->count++;
    return true;
}

/* The parts of [start, end) that are kept; `place` is the first interval that may still hold something. */
static bool add_kept(xpr_pieces *pieces, const xpr_keep *keep, size_t *place, int64_t start_ps, int64_t end_ps,
                     const open_span *decider, bool join_alike) {
    while (*place < keep->count && keep->end_ps[*place] <= start_ps) ++*place;
    for (size_t i = *place; i < keep->count && keep->start_ps[i] < end_ps; i++) {
        int64_t low = keep->start_ps[i] > start_ps ? keep->start_ps[i] : start_ps;
        int64_t high = keep->end_ps[i] < end_ps ? keep->end_ps[i] : end_ps;
        if (high > low && !add(pieces, low, high, decider, join_alike)) return false;
    }
    return true;
}

/* Pieces from *now to `until`, as far as spans are open; *now is then `until` or where the last one ended. */
static bool advance(open_stack *stack, int64_t *now, int64_t until, const xpr_keep *keep, size_t *place,
                    bool join_alike, xpr_pieces *pieces) {
    while (*now < until) {
        while (stack->depth && stack->spans[stack->depth - 1].end_ps <= *now) stack->depth--;
        if (!stack->depth) return true;
        open_span *top = &stack->spans[stack->depth - 1];
        int32_t naming = top->naming;
        /* Spans that ended under longer ones stay until they come up: they decide nothing. */
        while (naming >= 0 && stack->spans[naming].end_ps <= *now) naming = naming ? stack->spans[naming - 1].naming : -1;
        top->naming = naming;
        const open_span *decider = naming >= 0 ? &stack->spans[naming] : top;
        int64_t end_ps = top->end_ps < decider->end_ps ? top->end_ps : decider->end_ps;
        if (end_ps > until) end_ps = until;
        if (!add_kept(pieces, keep, place, *now, end_ps, decider, join_alike)) return false;
        *now = end_ps;
    }
    return true;
}

int xpr_innermost(const xpr_line_spans *line, const xpr_more_spans *more, const xpr_keep *keep, int8_t strong,
                  bool join_alike, xpr_pieces *pieces) {
    memset(pieces, 0, sizeof *pieces);
    open_stack stack = {NULL, 0, 0};
    reading at = {.line = line, .more = more, .keep = keep, .row = line->first, .passed = line->first,
                  .join_alike = join_alike, .strong = strong, .strong_until = INT64_MIN,
                  .before = {INT64_MIN, INT64_MIN, -1, -1}};
    int64_t now = INT64_MIN, start_ps;
    size_t place = 0;
    bool fits = true;
    /* Behind the last interval there is nothing to write. */
    int64_t last_ps = keep->count ? keep->end_ps[keep->count - 1] : INT64_MIN;
    while (fits && now < last_ps) {
        if (!at.has_of_line) find_of_line(&at, &stack);
        if (!next_start(&at, &start_ps)) break;
        span opened = take(&at);
        if (is_hidden(&at, opened.says, opened.end_ps) || is_outer_twin(&opened, &at.before)) continue;
        at.before = opened;
        if (join_alike && is_inside_alike(&stack, &opened)) continue;
        if (is_strong(opened.says, strong) && opened.end_ps > at.strong_until) at.strong_until = opened.end_ps;
        fits = advance(&stack, &now, start_ps, keep, &place, join_alike, pieces);
        now = start_ps;
        /* What has ended by now must not lie on top when its successor looks for what names a cause below. */
        while (stack.depth && stack.spans[stack.depth - 1].end_ps <= now) stack.depth--;
        fits = fits && push(&stack, &opened, strong);
    }
    fits = fits && advance(&stack, &now, INT64_MAX, keep, &place, join_alike, pieces);
    free(stack.spans);
    if (fits) return 0;
    xpr_pieces_free(pieces);
    return -1;
}

void xpr_pieces_free(xpr_pieces *pieces) {
    xpr_column_free(pieces->start_ps);
    xpr_column_free(pieces->end_ps);
    xpr_column_free(pieces->event);
    xpr_column_free(pieces->says);
    memset(pieces, 0, sizeof *pieces);
}
