/* Straight lines between two sets of bounds.
 *
 * Points (t, u) lie above the line, points (t, l) below it. The upper points matter by their lower convex hull, the lower
 * ones by their upper hull. The line of largest margin crosses half way where the hulls are closest (vertical distance
 * of two convex sets, the dual of the linear program). A slope b leaves the intercepts between max(l - b t) and
 * min(u - b t), both piecewise linear in b: the possible slopes are an interval.
 *
 * Ownership: the caller owns every array; scratch is freed before returning. Threading: no state. Cost: O(n) for points
 * in order of time, then some hundred steps over the hulls' vertices, which are few. */
#ifndef XPROF_PY_KERNELS_ENVELOPE_H
#define XPROF_PY_KERNELS_ENVELOPE_H

#include <stddef.h>

struct xpr_points {
    const double *t; /* in rising order */
    const double *y;
    size_t count;
};

struct xpr_line {
    double at, value, slope; /* value at time `at` */
    double margin;           /* distance to the nearest points on either side; negative if no line fits */
    double slope_low, slope_high; /* all possible slopes; low > high if no line fits */
};

/* Fit `line`, and where low and high are not NULL write the lowest and highest value over all possible lines at each of
 * `at[count]` (NaN if no line fits). Slopes are kept within the two limits. Both sets must have a point.
 * Returns 0, or -1 without memory; then nothing was written. */
int xpr_fit_line(struct xpr_points upper, struct xpr_points lower, double slope_min, double slope_max,
                 struct xpr_line *line, const double *at, size_t count, double *low, double *high);

#endif
