/* kernels/envelope.h against every line through two points, on seeded random bounds of few points. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/envelope.h"

enum { MOST = 12, ROUNDS = 20000 };

static unsigned long long state = 20240607;

static double uniform(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) / 9007199254740992.0;
}

#define CHECK(condition, ...)                                       \
    do {                                                            \
        if (!(condition)) {                                         \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #condition);  \
            printf(__VA_ARGS__);                                    \
            printf("\n");                                           \
            exit(1);                                                \
        }                                                           \
    } while (0)

static double margin_at(struct xpr_points upper, struct xpr_points lower, double slope) {
    double high = INFINITY, low = -INFINITY;
    for (size_t i = 0; i < upper.count; i++) high = fmin(high, upper.y[i] - slope * upper.t[i]);
    for (size_t i = 0; i < lower.count; i++) low = fmax(low, lower.y[i] - slope * lower.t[i]);
    return (high - low) / 2;
}

/* The margin is concave and piecewise linear in the slope: its breaks are the slopes of pairs of points of one side. */
static double largest_margin(struct xpr_points upper, struct xpr_points lower, double slope_min, double slope_max) {
    double best = fmax(margin_at(upper, lower, slope_min), margin_at(upper, lower, slope_max));
    const struct xpr_points *sides[2] = {&upper, &lower};
    for (int s = 0; s < 2; s++)
        for (size_t i = 0; i < sides[s]->count; i++)
            for (size_t j = 0; j < i; j++) {
                double apart = sides[s]->t[i] - sides[s]->t[j];
                if (apart == 0) continue;
                double slope = (sides[s]->y[i] - sides[s]->y[j]) / apart;
                if (slope >= slope_min && slope <= slope_max) best = fmax(best, margin_at(upper, lower, slope));
            }
    return best;
}

static size_t fill(double *t, double *y, double sign, int quantised) {
    size_t count = 1 + (size_t)(uniform() * MOST);
    double at = uniform();
    for (size_t i = 0; i < count; i++) {
        /* Equal times, and equal slopes, are what breaks hulls. */
        at += uniform() < 0.2 ? 0 : uniform();
        t[i] = quantised ? floor(at * 4) / 4 : at;
        y[i] = 10 * t[i] + sign * (uniform() * 8 - 1);
        if (quantised) y[i] = floor(y[i]);
    }
    return count;
}

int main(void) {
    int fitted = 0;
    for (int round = 0; round < ROUNDS; round++) {
        double ut[MOST], uy[MOST], lt[MOST], ly[MOST];
        struct xpr_points upper = {ut, uy, fill(ut, uy, 1, round % 2)}, lower = {lt, ly, fill(lt, ly, -1, round % 2)};
        double slope_max = round % 3 ? 50 : 9, slope_min = -slope_max;
        double at[3] = {-1, uniform() * 5, 20}, low[3], high[3];
        struct xpr_line line;
        CHECK(xpr_fit_line(upper, lower, slope_min, slope_max, &line, at, 3, low, high) == 0, "no memory");
        CHECK(line.slope >= slope_min && line.slope <= slope_max, "round %d: slope %g", round, line.slope);
        double best = largest_margin(upper, lower, slope_min, slope_max);
        double mine = margin_at(upper, lower, line.slope);
        CHECK(fabs(mine - line.margin) < 1e-6, "round %d: says %g, has %g", round, line.margin, mine);
        int overlap = fmax(ut[0], lt[0]) <= fmin(ut[upper.count - 1], lt[lower.count - 1]);
        /* Sides that do not overlap in time leave any margin: then the flattest line that fits is asked for. */
        if (overlap) CHECK(fabs(best - line.margin) < 1e-6, "round %d: %g of %g", round, line.margin, best);
        CHECK((line.margin >= 0) == (best >= -1e-9) || fabs(best) < 1e-6, "round %d: %g, %g", round, line.margin, best);
        if (line.margin < 0) {
            CHECK(isnan(low[0]) && isnan(high[2]), "round %d", round);
            continue;
        }
        fitted++;
        for (int k = 0; k < 200; k++) {
            double slope = slope_min + (slope_max - slope_min) * uniform();
            if (k < 2) slope = k ? line.slope_low : line.slope_high;
            if (margin_at(upper, lower, slope) < 0) continue;
            CHECK(slope >= line.slope_low - 1e-6 && slope <= line.slope_high + 1e-6, "round %d: slope %g", round, slope);
            double most = INFINITY, least = -INFINITY;
            for (size_t i = 0; i < upper.count; i++) most = fmin(most, uy[i] - slope * ut[i]);
            for (size_t i = 0; i < lower.count; i++) least = fmax(least, ly[i] - slope * lt[i]);
            for (int i = 0; i < 3; i++) {
                CHECK(most + slope * at[i] <= high[i] + 1e-6, "round %d at %g", round, at[i]);
                CHECK(least + slope * at[i] >= low[i] - 1e-6, "round %d at %g", round, at[i]);
            }
        }
    }
    CHECK(fitted > ROUNDS / 4 && fitted < ROUNDS, "%d of %d bounds had a line", fitted, ROUNDS);
    printf("%d of %d bounds had a line\n", fitted, ROUNDS);
    return 0;
}
