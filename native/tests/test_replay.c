/* kernels/replay.h on a job of two processes whose answer is worked out by hand. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/replay.h"
#include "tests/check.h"

enum { NONE = -1 };

/* A thread waits from 0 to 10 for nothing, launches work at 10, and waits from 10 to 30 for its end at 30. Its work is
 * 10 long, joins the other's in meeting 0 and waited 10 - `length` of it. */
typedef struct {
    int64_t lane[1], start[1], end[1], length[1], thread[1], ready[1], follows[1], meeting[1], shift[1], waited[1];
    int64_t lane_first[1], segment_begin[2], segment[2], kept[2], wait_begin[2], wait_segment[1], wait_end[1];
    int64_t awaited_begin[2], awaited[1], window_lane[1], window_thread[1], window_start[1], window_end[1];
    int64_t ended_begin[2], ended[1], low[1], high[1];
} one_step;

static one_step step_of(int64_t host_ps, int64_t length_ps) {
    return (one_step){
        .start = {10}, .end = {30}, .length = {length_ps}, .ready = {10}, .follows = {NONE}, .waited = {20 - length_ps},
        .segment_begin = {0, 2}, .segment = {0, 10}, .kept = {host_ps, 20}, .wait_begin = {0, 1}, .wait_segment = {1},
        .wait_end = {30}, .awaited_begin = {0, 1}, .window_end = {30}, .ended_begin = {0, 1},
    };
}

static xpr_replay_process process_of(one_step *s) {
    return (xpr_replay_process){
        .lane = s->lane, .start_ps = s->start, .end_ps = s->end, .length_ps = s->length, .thread = s->thread,
        .ready_ps = s->ready, .follows = s->follows, .meeting = s->meeting, .shift_ps = s->shift,
        .measured_wait_ps = s->waited, .work = 1, .lanes = 1, .lane_first = s->lane_first,
        .segment_begin = s->segment_begin, .segment_ps = s->segment, .kept_ps = s->kept, .threads = 1,
        .wait_begin = s->wait_begin, .wait_segment = s->wait_segment, .wait_end_ps = s->wait_end,
        .awaited_begin = s->awaited_begin, .awaited = s->awaited, .window_lane = s->window_lane,
        .window_thread = s->window_thread, .window_start_ps = s->window_start, .window_end_ps = s->window_end,
        .ended_begin = s->ended_begin, .ended = s->ended, .windows = 1, .window_lanes = 1, .low_ps = s->low,
        .high_ps = s->high,
    };
}

int main(void) {
    /* The second comes 8 later than its work begins; both transfer for 12 once the last has come. */
    int64_t begin[] = {0, 2}, who[] = {0, 1}, part[] = {0, 0}, later[] = {0, 8};
    xpr_replay_meetings meetings = {begin, who, part, later, 1};
    struct {
        int64_t host_ps[2];
        bool never_waits;
        int64_t high_ps[2];
    } cases[] = {
        {{10, 10}, false, {30, 30}}, /* as measured: begin 10, the last comes at 18, transfer 12 */
        {{0, 10}, false, {30, 30}},  /* the first is ready at 0 and waits longer */
        {{0, 0}, false, {20, 20}},   /* both 10 earlier */
        {{0, 10}, true, {12, 22}},   /* nobody waits: begin and transfer */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        one_step first = step_of(cases[i].host_ps[0], 12), second = step_of(cases[i].host_ps[1], 12);
        xpr_replay_process both[] = {process_of(&first), process_of(&second)};
        CHECK(xpr_replay(both, 2, &meetings, false, cases[i].never_waits) == 0);
        CHECK(first.low[0] == 0 && second.low[0] == 0);
        CHECK(first.high[0] == cases[i].high_ps[0] && second.high[0] == cases[i].high_ps[1]);
    }
    /* A window without a length before the first of its lane is left out. */
    one_step empty = step_of(10, 12);
    empty.window_end[0] = 0;
    xpr_replay_process alone = process_of(&empty);
    int64_t no_one[] = {0};
    xpr_replay_meetings none = {no_one, NULL, NULL, NULL, 0};
    empty.meeting[0] = NONE;
    CHECK(xpr_replay(&alone, 1, &none, false, false) == 0 && empty.low[0] == INT64_MIN);
    CHECK(xpr_replay(NULL, 0, &none, false, false) == 0);
    /* Work that is no lane's first ends the lane's work before it is reached. */
    empty.window_end[0] = 30;
    int64_t behind[] = {1};
    alone.lane_first = behind;
    CHECK(xpr_replay(&alone, 1, &none, false, false) == XPR_REPLAY_NO_WORK);
    return 0;
}
