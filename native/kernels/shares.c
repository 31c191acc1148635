#include "kernels/shares.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { CAUSE, STEP, FUNCTION, TEXT, EVENT, STACK, KEYS };

typedef struct {
    int64_t key[KEYS];
    int64_t length_ps;
} part;

enum { FEW = 16 };

static int by_key(const void *a, const void *b) {
    const part *one = a, *other = b;
    for (int i = 0; i < KEYS; i++)
        if (one->key[i] != other->key[i]) return one->key[i] < other->key[i] ? -1 : 1;
    return 0;
}

/* Most gaps have a handful of pieces. */
static void sort_parts(part *parts, size_t count) {
    if (count > FEW) {
        qsort(parts, count, sizeof *parts, by_key);
        return;
    }
    for (size_t i = 1; i < count; i++) {
        part moved = parts[i];
        size_t place = i;
        for (; place && by_key(&parts[place - 1], &moved) > 0; place--) parts[place] = parts[place - 1];
        parts[place] = moved;
    }
}

static bool alike(const part *a, const part *b, int first, int last) {
    for (int i = first; i <= last; i++)
        if (a->key[i] != b->key[i]) return false;
    return true;
}

typedef struct {
    const part *begin;
    size_t count;
    int64_t length_ps;
} stretch;

/* The parts at the beginning of some that agree in the keys from `first` to `last`. */
static stretch leading(const part *parts, size_t count, int first, int last) {
    stretch found = {parts, 0, 0};
    for (; found.count < count && alike(parts, &parts[found.count], first, last); found.count++)
        found.length_ps += parts[found.count].length_ps;
    return found;
}

/* Of the stretches that agree in these keys the one with most length, the first of equal ones. */
static stretch strongest(stretch among, int first, int last) {
    stretch best = {among.begin, 0, -1};
    for (size_t at = 0; at < among.count;) {
        stretch one = leading(among.begin + at, among.count - at, first, last);
        if (one.length_ps > best.length_ps) best = one;
        at += one.count;
    }
    return best;
}

static int append(xpr_shares *out, const int64_t row[XPR_SHARE_COLUMNS]) {
    if (out->count == out->capacity) {
        size_t capacity = out->capacity ? 2 * out->capacity : 1024;
        for (int i = 0; i < XPR_SHARE_COLUMNS; i++) {
            int64_t *grown = realloc(out->columns[i], capacity * sizeof *grown);
            if (grown == NULL) return -1;
            out->columns[i] = grown;
        }
        out->capacity = capacity;
    }
    for (int i = 0; i < XPR_SHARE_COLUMNS; i++) out->columns[i][out->count] = row[i];
    out->count++;
    return 0;
}

static int sum_up(const part *parts, size_t count, size_t gap, xpr_shares *out) {
    for (size_t at = 0; at < count;) {
        stretch of_cause = leading(parts + at, count - at, CAUSE, STEP);
        const int64_t *evidence =
            strongest(strongest(strongest(of_cause, FUNCTION, FUNCTION), TEXT, TEXT), EVENT, STACK).begin->key;
        int64_t row[XPR_SHARE_COLUMNS] = {(int64_t)gap,   evidence[CAUSE], evidence[STEP],  of_cause.length_ps,
                                          evidence[TEXT], evidence[EVENT], evidence[STACK]};
        if (append(out, row)) return -1;
        at += of_cause.count;
    }
    return 0;
}

int xpr_share_out(const xpr_host_pieces *pieces, const xpr_late_gaps *gaps, xpr_shares *out) {
    memset(out, 0, sizeof *out);
    part *parts = NULL;
    size_t room = 0;
    for (size_t gap = 0; gap < gaps->count; gap++) {
        size_t first = (size_t)gaps->first[gap], count = (size_t)gaps->behind[gap] - first;
        if (count > room) {
            part *grown = realloc(parts, 2 * count * sizeof *parts);
            if (grown == NULL) goto failed;
            parts = grown;
            room = 2 * count;
        }
        int64_t since = gaps->since_ps[gap], until = gaps->until_ps[gap];
        for (size_t i = 0; i < count; i++) {
            size_t row = first + i;
            int64_t start = pieces->start_ps[row] > since ? pieces->start_ps[row] : since;
            int64_t end = pieces->end_ps[row] < until ? pieces->end_ps[row] : until;
            parts[i] = (part){{pieces->cause[row], i ? pieces->step[row] : gaps->first_step[gap], pieces->function[row],
                               pieces->text[row], pieces->event[row], pieces->stack[row]},
                              end - start};
        }
        sort_parts(parts, count);
        if (sum_up(parts, count, gap, out)) goto failed;
    }
    free(parts);
    return 0;
failed:
    free(parts);
    xpr_shares_free(out);
    return -1;
}

void xpr_shares_free(xpr_shares *shares) {
    for (int i = 0; i < XPR_SHARE_COLUMNS; i++) free(shares->columns[i]);
    memset(shares, 0, sizeof *shares);
}
