/* What gaps are shared by, against sums that look at every pair of pieces. */
#include "kernels/shares.h"

#include "check.h"

enum { PIECES = 40, GAPS = 12, ROUNDS = 400 };

static uint64_t state = 7;

static int64_t below(int64_t limit) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (int64_t)(state % (uint64_t)limit);
}

static int64_t start[PIECES], end[PIECES], cause[PIECES], function[PIECES], text[PIECES], event[PIECES], stack[PIECES];
static int64_t step[PIECES], first[GAPS], behind[GAPS], since[GAPS], until[GAPS], first_step[GAPS];

static int64_t length_in(int gap, int64_t piece) {
    int64_t low = start[piece] > since[gap] ? start[piece] : since[gap];
    return (end[piece] < until[gap] ? end[piece] : until[gap]) - low;
}

static int64_t step_in(int gap, int64_t piece) { return piece == first[gap] ? first_step[gap] : step[piece]; }

/* The length of a gap's pieces that say the same; -1 in `like` is anything. */
static int64_t sum(int gap, const int64_t like[6]) {
    int64_t found = 0;
    for (int64_t i = first[gap]; i < behind[gap]; i++) {
        int64_t says[6] = {cause[i], step_in(gap, i), function[i], text[i], event[i], stack[i]};
        int same = 1;
        for (int k = 0; k < 6; k++) same &= like[k] < 0 || like[k] == says[k];
        if (same) found += length_in(gap, i);
    }
    return found;
}

/* The value of one key with most length among what `like` says; the least of equal ones. */
static int64_t most(int gap, int64_t like[6], int key) {
    int64_t best = 0, best_sum = 0;
    for (int64_t value = 0; value < 4; value++) {
        like[key] = value;
        int64_t found = sum(gap, like);
        if (found > best_sum) best = value, best_sum = found;
    }
    like[key] = best;
    return best;
}

static void make(void) {
    int64_t at = 0;
    for (int i = 0; i < PIECES; i++) {
        start[i] = at += below(3);
        end[i] = at += 1 + below(4);
        cause[i] = below(3);
        step[i] = below(2);
        function[i] = below(3);
        text[i] = below(3);
        event[i] = below(4);
        stack[i] = 0;
    }
    for (int i = 0; i < GAPS; i++) {
        first[i] = below(PIECES);
        behind[i] = first[i] + 1 + below(PIECES - first[i]);
        since[i] = start[first[i]] + below(end[first[i]] - start[first[i]]);
        until[i] = end[behind[i] - 1];
        first_step[i] = below(2);
    }
}

int main(void) {
    xpr_host_pieces pieces = {start, end, cause, step, function, text, event, stack};
    xpr_late_gaps gaps = {first, behind, since, until, first_step, GAPS};
    for (int round = 0; round < ROUNDS; round++) {
        make();
        xpr_shares shares;
        CHECK(xpr_share_out(&pieces, &gaps, &shares) == 0);
        size_t row = 0;
        for (int gap = 0; gap < GAPS; gap++)
            for (int64_t c = 0; c < 3; c++)
                for (int64_t s = 0; s < 2; s++) {
                    int64_t like[6] = {c, s, -1, -1, -1, -1};
                    int64_t length = sum(gap, like);
                    if (!length) continue;
                    CHECK(row < shares.count);
                    int64_t *const *of = shares.columns;
                    CHECK(of[XPR_SHARE_GAP][row] == gap && of[XPR_SHARE_CAUSE][row] == c);
                    CHECK(of[XPR_SHARE_STEP][row] == s && of[XPR_SHARE_LENGTH][row] == length);
                    most(gap, like, 2);
                    CHECK(of[XPR_SHARE_TEXT][row] == most(gap, like, 3));
                    CHECK(of[XPR_SHARE_EVENT][row] == most(gap, like, 4));
                    CHECK(of[XPR_SHARE_STACK][row] == 0);
                    row++;
                }
        CHECK(row == shares.count);
        xpr_shares_free(&shares);
        CHECK(shares.count == 0);
    }
    gaps.count = 0;
    xpr_shares none;
    CHECK(xpr_share_out(&pieces, &gaps, &none) == 0 && none.count == 0);
    return 0;
}
