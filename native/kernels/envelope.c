#include "kernels/envelope.h"

#include <math.h>
#include <stdlib.h>

struct hull {
    double *t, *y;
    size_t count;
};

/* Lower hull of points (sign 1) or of their mirror image (sign -1): Andrew's monotone chain. */
static void make_hull(struct xpr_points points, double sign, struct hull *hull) {
    size_t n = 0;
    for (size_t i = 0; i < points.count; i++) {
        double t = points.t[i], y = sign * points.y[i];
        if (n && hull->t[n - 1] == t) {
            if (hull->y[n - 1] <= y) continue;
            n--;
        }
        while (n >= 2 && (hull->y[n - 1] - hull->y[n - 2]) * (t - hull->t[n - 2]) >=
                             (y - hull->y[n - 2]) * (hull->t[n - 1] - hull->t[n - 2]))
            n--;
        hull->t[n] = t;
        hull->y[n++] = y;
    }
    hull->count = n;
}

/* Index of the first vertex at or after a time. */
static size_t vertex_from(const struct hull *hull, double t) {
    size_t low = 0, high = hull->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (hull->t[middle] < t) low = middle + 1;
        else high = middle;
    }
    return low;
}

static double edge_slope(const struct hull *hull, size_t to) {
    if (to == 0) return -INFINITY;
    if (to >= hull->count) return INFINITY;
    return (hull->y[to] - hull->y[to - 1]) / (hull->t[to] - hull->t[to - 1]);
}

static double value_at(const struct hull *hull, double t) {
    size_t to = vertex_from(hull, t);
    if (to == 0) return hull->y[0];
    if (to == hull->count) return hull->y[hull->count - 1];
    if (hull->t[to] == t) return hull->y[to];
    return hull->y[to - 1] + edge_slope(hull, to) * (t - hull->t[to - 1]);
}

/* min over vertices of y - slope t: the vertex where the edges' slopes pass `slope`. */
static double support(const struct hull *hull, double slope) {
    size_t low = 0, high = hull->count - 1;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (edge_slope(hull, middle + 1) < slope) low = middle + 1;
        else high = middle;
    }
    return hull->y[low] - slope * hull->t[low];
}

/* Room for the intercept at a slope. The lower hull is mirrored: its support is -max(l - slope t). */
static double room(const struct hull *upper, const struct hull *lower, double slope) {
    return support(upper, slope) + support(lower, -slope);
}

static double clamp(double value, double low, double high) { return value < low ? low : value > high ? high : value; }

static double last_slope_with_room(const struct hull *upper, const struct hull *lower, double inside, double outside) {
    if (room(upper, lower, outside) >= 0) return outside;
    for (int i = 0; i < 60; i++) {
        double middle = (inside + outside) / 2;
        if (room(upper, lower, middle) >= 0) inside = middle;
        else outside = middle;
    }
    return inside;
}

/* Where the hulls are closest: their distance is convex in time, and smallest at a vertex of one of them. */
static void closest(const struct hull *upper, const struct hull *lower, double begin, double end, double *at) {
    double best = INFINITY;
    *at = begin;
    const struct hull *hulls[2] = {upper, lower};
    for (int h = 0; h < 2; h++)
        for (size_t i = 0; i <= hulls[h]->count; i++) {
            double t = i < hulls[h]->count ? clamp(hulls[h]->t[i], begin, end) : h ? end : begin;
            double distance = value_at(upper, t) + value_at(lower, t);
            if (distance < best) best = distance, *at = t;
        }
}

/* Where the hulls are closest the best slope is common to both. Where one set ends before the other begins, every margin
 * can be had by turning: then the flattest slope that fits. */
static double best_slope(const struct hull *upper, const struct hull *lower, double slope_min, double slope_max,
                         double *at) {
    double begin = fmax(upper->t[0], lower->t[0]);
    double end = fmin(upper->t[upper->count - 1], lower->t[lower->count - 1]);
    double flat = clamp(0, slope_min, slope_max);
    if (begin > end) {
        *at = begin;
        if (room(upper, lower, flat) >= 0) return flat;
        double best = room(upper, lower, slope_min) > room(upper, lower, slope_max) ? slope_min : slope_max;
        return room(upper, lower, best) >= 0 ? last_slope_with_room(upper, lower, best, flat) : best;
    }
    closest(upper, lower, begin, end, at);
    size_t u = vertex_from(upper, *at), l = vertex_from(lower, *at);
    double left = edge_slope(upper, u);
    double right = u < upper->count && upper->t[u] == *at ? edge_slope(upper, u + 1) : left;
    double up = -edge_slope(lower, l);
    double down = l < lower->count && lower->t[l] == *at ? -edge_slope(lower, l + 1) : up;
    /* One value as a rule, an interval where both hulls have a vertex. */
    double low = fmax(left, down), high = fmin(right, up);
    double slope = isfinite(low) && isfinite(high) ? (low + high) / 2 : clamp(0, low, high);
    return clamp(slope, slope_min, slope_max);
}

/* Highest value at t over the possible lines below `hull`: a concave function of the slope, so its best slope, clamped. */
static double highest(const struct hull *hull, double low, double high, double t) {
    size_t to = vertex_from(hull, t);
    double slope = edge_slope(hull, to);
    if (to < hull->count && hull->t[to] == t) slope = clamp(clamp(0, low, high), slope, edge_slope(hull, to + 1));
    slope = clamp(slope, low, high);
    return support(hull, slope) + slope * t;
}

int xpr_fit_line(struct xpr_points upper, struct xpr_points lower, double slope_min, double slope_max,
                 struct xpr_line *line, const double *at, size_t count, double *low, double *high) {
    double *scratch = malloc(2 * (upper.count + lower.count) * sizeof *scratch);
    if (!scratch) return -1;
    struct hull above = {scratch, scratch + upper.count, 0};
    struct hull below = {scratch + 2 * upper.count, scratch + 2 * upper.count + lower.count, 0};
    make_hull(upper, 1, &above);
    make_hull(lower, -1, &below);
    double slope = best_slope(&above, &below, slope_min, slope_max, &line->at);
    /* The room is concave in the slope: within limits it is largest at the best slope, clamped. */
    line->slope = slope;
    line->value = (support(&above, slope) - support(&below, -slope)) / 2 + slope * line->at;
    line->margin = room(&above, &below, slope) / 2;
    line->slope_low = INFINITY;
    line->slope_high = -INFINITY;
    if (line->margin >= 0) {
        line->slope_low = last_slope_with_room(&above, &below, slope, slope_min);
        line->slope_high = last_slope_with_room(&above, &below, slope, slope_max);
    }
    for (size_t i = 0; i < count && low && high; i++) {
        if (line->margin < 0) {
            low[i] = high[i] = NAN;
            continue;
        }
        high[i] = highest(&above, line->slope_low, line->slope_high, at[i]);
        low[i] = -highest(&below, -line->slope_high, -line->slope_low, at[i]);
    }
    free(scratch);
    return 0;
}
