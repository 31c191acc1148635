#include "kernels/replay.h"

#include <stdlib.h>

#define NOT_YET INT64_MIN

typedef struct {
    int64_t free_then, free_now; /* end of the lane's last work, as measured and in the replay; NOT_YET before any */
    int64_t next, begun;         /* its next row; the row whose end is not known, -1 */
} lane_state;

typedef struct {
    int64_t waited; /* waits so far; the last may still be going on, at its own length */
    bool advancing;
} thread_state;

typedef struct {
    const xpr_replay_process *in;
    lane_state *lanes;
    thread_state *threads;
    int64_t *begins, *ends;
    int64_t *before; /* per segment what comes before it in its thread */
    int64_t *waited; /* per wait how long it takes */
    int64_t *moved;  /* by how much the waits before wait w of thread t took longer, at w + t; so behind the last */
    bool *asked;
} process_state;

typedef struct {
    process_state *processes;
    const xpr_replay_meetings *meetings;
    int64_t *met; /* NOT_YET: not asked for yet, or being asked, or nobody is waited for */
    bool *asked_for;
    bool idle_removed, never_waits;
    int depth, failed;
} job;

static int64_t end_of(job *j, process_state *p, int64_t row);
static int64_t begin_of(job *j, process_state *p, int64_t row);

static int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

/* How many of a sorted column are below a value. */
static int64_t below(const int64_t *column, int64_t count, int64_t value) {
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (column[middle] < value)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int64_t waits_before(const process_state *p, int64_t thread, int64_t segment) {
    int64_t first = p->in->wait_begin[thread];
    return below(p->in->wait_segment + first, p->in->wait_begin[thread + 1] - first, segment);
}

/* Where a segment begins, whose every earlier wait is known. */
static int64_t start_of(const process_state *p, int64_t thread, int64_t segment, int64_t waits) {
    int64_t first = p->in->segment_begin[thread];
    return p->in->segment_ps[first] + p->before[first + segment] + p->moved[p->in->wait_begin[thread] + thread + waits];
}

static void advance(job *j, process_state *p, int64_t thread, int64_t upto) {
    const xpr_replay_process *in = p->in;
    thread_state *state = &p->threads[thread];
    int64_t first = in->wait_begin[thread], waits = in->wait_begin[thread + 1] - first;
    while (!j->failed && state->waited < waits && in->wait_segment[first + state->waited] <= upto) {
        int64_t wait = first + state->waited, segment = in->wait_segment[wait];
        int64_t now = start_of(p, thread, segment, state->waited);
        int64_t own = in->kept_ps[in->segment_begin[thread] + segment], length = own;
        int64_t row = in->awaited[in->awaited_begin[wait]];
        /* Where its own work is asked for below, the thread must already know how far it has come. */
        p->waited[wait] = own;
        state->waited++;
        state->advancing = true;
        if (in->end_ps[row] > in->wait_end_ps[wait]) {
            length = 0;
        } else if (!p->asked[row]) {
            int64_t latest = now;
            for (int64_t at = in->awaited_begin[wait]; at < in->awaited_begin[wait + 1]; at++)
                latest = max_of(latest, end_of(j, p, in->awaited[at]));
            length = latest - now + (j->idle_removed ? 0 : in->wait_end_ps[wait] - in->end_ps[row]);
        }
        p->waited[wait] = length;
        int64_t place = wait + thread;
        p->moved[place + 1] = p->moved[place] + length - own;
        state->advancing = false;
    }
}

/* When a moment of a thread comes. Moments of unknown threads do not move. */
static int64_t moved(job *j, process_state *p, int64_t thread, int64_t at_ps) {
    const xpr_replay_process *in = p->in;
    if (thread < 0) return at_ps;
    int64_t first = in->segment_begin[thread];
    /* A moment between two segments ends the first: the second may be a wait for what this moment makes ready. */
    int64_t segment = below(in->segment_ps + first, in->segment_begin[thread + 1] - first, at_ps) - 1;
    if (segment < 0) return at_ps;
    const thread_state *state = &p->threads[thread];
    if (!state->advancing) advance(j, p, thread, segment);
    if (j->failed) return at_ps;
    int64_t first_wait = in->wait_begin[thread];
    /* In a segment that is not reached yet, as late as is known. */
    if (state->advancing) segment = min_of(segment, in->wait_segment[first_wait + state->waited - 1]);
    int64_t wait = waits_before(p, thread, segment);
    bool is_wait = first_wait + wait < in->wait_begin[thread + 1] && in->wait_segment[first_wait + wait] == segment;
    int64_t length = is_wait ? p->waited[first_wait + wait] : in->kept_ps[first + segment];
    int64_t inside = max_of(at_ps - in->segment_ps[first + segment], 0);
    return start_of(p, thread, segment, wait) + min_of(inside, length);
}

/* When the last participant comes, in fleet time; false where nobody is waited for, or it is being asked already. */
static bool last_of(job *j, int64_t meeting, int64_t *met_ps) {
    if (!j->asked_for[meeting]) {
        j->asked_for[meeting] = true;
        if (!j->never_waits) {
            const xpr_replay_meetings *all = j->meetings;
            int64_t latest = NOT_YET;
            for (int64_t at = all->begin[meeting]; at < all->begin[meeting + 1] && !j->failed; at++) {
                int64_t begins = begin_of(j, &j->processes[all->process[at]], all->part[at]);
                latest = max_of(latest, begins + all->later_ps[at]);
            }
            j->met[meeting] = latest;
        }
    }
    *met_ps = j->met[meeting];
    return *met_ps != NOT_YET;
}

static int64_t waits(job *j, const process_state *p, int64_t row) {
    int64_t meeting = p->in->meeting[row], met_ps;
    if (meeting < 0) return 0;
    if (last_of(j, meeting, &met_ps)) return max_of(met_ps - p->in->shift_ps[row] - p->begins[row], 0);
    return j->never_waits ? 0 : p->in->measured_wait_ps[row];
}

static int64_t begin_next(job *j, process_state *p, int64_t lane) {
    const xpr_replay_process *in = p->in;
    lane_state *state = &p->lanes[lane];
    int64_t row = state->next++;
    if (row >= (int64_t)in->work) {
        j->failed = XPR_REPLAY_NO_WORK;
        return -1;
    }
    /* A thread that made work ready while already waiting for it would ask in a circle: that wait keeps its length. */
    p->asked[row] = true;
    int64_t before = in->follows[row];
    int64_t ready_then = before < 0 ? in->ready_ps[row] : in->end_ps[before];
    int64_t ready = before < 0 ? moved(j, p, in->thread[row], in->ready_ps[row]) : end_of(j, p, before);
    p->asked[row] = false;
    bool free_known = state->free_then != NOT_YET;
    int64_t free_then = free_known ? state->free_then : ready_then, free_now = free_known ? state->free_now : ready;
    int64_t lag = in->start_ps[row] - max_of(ready_then, free_then);
    if (j->idle_removed) lag = min_of(lag, 0);
    p->begins[row] = max_of(ready, max_of(ready, free_now) + lag);
    return row;
}

static void finish_next(job *j, process_state *p, int64_t lane) {
    lane_state *state = &p->lanes[lane];
    int64_t row = state->begun;
    state->begun = -1;
    if (row < 0) row = begin_next(j, p, lane);
    if (j->failed) return;
    /* Known to whoever asks for it while its wait is looked for. */
    int64_t end = p->ends[row] = p->begins[row] + p->in->length_ps[row];
    end = p->ends[row] = end + waits(j, p, row);
    bool free_known = state->free_then != NOT_YET;
    state->free_then = free_known ? max_of(state->free_then, p->in->end_ps[row]) : p->in->end_ps[row];
    state->free_now = free_known ? max_of(state->free_now, end) : end;
}

static bool deeper(job *j) {
    if (j->depth >= XPR_REPLAY_DEEPEST) j->failed = XPR_REPLAY_TOO_DEEP;
    return !j->failed;
}

static int64_t end_of(job *j, process_state *p, int64_t row) {
    if (p->ends[row] == NOT_YET && deeper(j)) {
        j->depth++;
        while (p->ends[row] == NOT_YET && !j->failed) finish_next(j, p, p->in->lane[row]);
        j->depth--;
    }
    return p->ends[row];
}

/* When a piece of work begins, whose end may not be known yet. */
static int64_t begin_of(job *j, process_state *p, int64_t row) {
    if (p->begins[row] == NOT_YET && deeper(j)) {
        lane_state *state = &p->lanes[p->in->lane[row]];
        j->depth++;
        while (p->begins[row] == NOT_YET && !j->failed) {
            if (state->begun >= 0)
                finish_next(j, p, p->in->lane[row]);
            else
                state->begun = begin_next(j, p, p->in->lane[row]);
        }
        j->depth--;
    }
    return p->begins[row];
}

static int place_windows(job *j, process_state *p) {
    const xpr_replay_process *in = p->in;
    int64_t *at = malloc((in->window_lanes + 1) * sizeof *at);
    if (at == NULL) return XPR_REPLAY_NO_MEMORY;
    for (size_t lane = 0; lane < in->window_lanes; lane++) at[lane] = NOT_YET;
    for (size_t window = 0; window < in->windows && !j->failed; window++) {
        int64_t lane = in->window_lane[window], thread = in->window_thread[window];
        in->low_ps[window] = in->high_ps[window] = NOT_YET;
        if (at[lane] == NOT_YET) {
            if (in->window_end_ps[window] == in->window_start_ps[window]) continue;
            at[lane] = moved(j, p, thread, in->window_start_ps[window]);
        }
        in->low_ps[window] = at[lane];
        for (int64_t row = in->ended_begin[window]; row < in->ended_begin[window + 1]; row++)
            at[lane] = max_of(at[lane], end_of(j, p, in->ended[row]));
        if (in->work == 0) at[lane] = max_of(at[lane], moved(j, p, thread, in->window_end_ps[window]));
        in->high_ps[window] = at[lane];
    }
    free(at);
    return j->failed;
}

static void *of_size(size_t count, size_t size) { return calloc(count ? count : 1, size); }

static bool begin_process(process_state *p, const xpr_replay_process *in) {
    size_t segments = (size_t)in->segment_begin[in->threads], all_waits = (size_t)in->wait_begin[in->threads];
    p->in = in;
    p->lanes = of_size(in->lanes, sizeof *p->lanes);
    p->threads = of_size(in->threads, sizeof *p->threads);
    p->begins = of_size(in->work, sizeof *p->begins);
    p->ends = of_size(in->work, sizeof *p->ends);
    p->asked = of_size(in->work, sizeof *p->asked);
    p->before = of_size(segments, sizeof *p->before);
    p->waited = of_size(all_waits, sizeof *p->waited);
    p->moved = of_size(all_waits + in->threads, sizeof *p->moved);
    if (!p->lanes || !p->threads || !p->begins || !p->ends || !p->asked || !p->before || !p->waited || !p->moved)
        return false;
    for (size_t lane = 0; lane < in->lanes; lane++)
        p->lanes[lane] = (lane_state){.free_then = NOT_YET, .next = in->lane_first[lane], .begun = -1};
    for (size_t row = 0; row < in->work; row++) p->begins[row] = p->ends[row] = NOT_YET;
    for (size_t thread = 0; thread < in->threads; thread++) {
        int64_t sum = 0;
        for (int64_t at = in->segment_begin[thread]; at < in->segment_begin[thread + 1]; at++) {
            p->before[at] = sum;
            sum += in->kept_ps[at];
        }
    }
    return true;
}

int xpr_replay(xpr_replay_process *processes, size_t count, const xpr_replay_meetings *meetings, bool idle_removed,
               bool never_waits) {
    job j = {.meetings = meetings, .idle_removed = idle_removed, .never_waits = never_waits};
    j.processes = of_size(count, sizeof *j.processes);
    j.met = of_size(meetings->count, sizeof *j.met);
    j.asked_for = of_size(meetings->count, sizeof *j.asked_for);
    if (!j.processes || !j.met || !j.asked_for) j.failed = XPR_REPLAY_NO_MEMORY;
    for (size_t i = 0; i < count && !j.failed; i++)
        if (!begin_process(&j.processes[i], &processes[i])) j.failed = XPR_REPLAY_NO_MEMORY;
    if (!j.failed)
        for (size_t i = 0; i < meetings->count; i++) j.met[i] = NOT_YET;
    /* In order of time, so that each finds what it needs done and asks no further back. */
    for (size_t i = 0; i < meetings->count && !j.failed; i++) last_of(&j, (int64_t)i, &(int64_t){0});
    for (size_t i = 0; i < count && !j.failed; i++) j.failed = place_windows(&j, &j.processes[i]);
    for (size_t i = 0; j.processes && i < count; i++) {
        process_state *p = &j.processes[i];
        void *owned[] = {p->lanes, p->threads, p->begins, p->ends, p->asked, p->before, p->waited, p->moved};
        for (size_t at = 0; at < sizeof owned / sizeof *owned; at++) free(owned[at]);
    }
    free(j.processes);
    free(j.met);
    free(j.asked_for);
    return j.failed;
}
