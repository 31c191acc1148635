/* The replay of a job's steps: host threads, lanes and collectives advance on demand (postprocess/replay/job_replay.py
 * says what it means). A wait asks for its work, work for the thread that made it ready, a part of a run that begins
 * with a collective for its last participant.
 *
 * Ownership: inputs are borrowed, the windows' places are written into the caller's columns.
 * Failure: XPR_REPLAY_NO_MEMORY; XPR_REPLAY_TOO_DEEP where more than XPR_REPLAY_DEEPEST questions wait for one
 *          another; XPR_REPLAY_NO_WORK where work is asked for behind the last of its lane.
 * Cost: O(work + waits * log(segments)). Threading: pure.
 */
#ifndef XPROF_PY_KERNELS_REPLAY_H
#define XPROF_PY_KERNELS_REPLAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { XPR_REPLAY_NO_MEMORY = -1, XPR_REPLAY_TOO_DEEP = -2, XPR_REPLAY_NO_WORK = -3 };
enum { XPR_REPLAY_DEEPEST = 2000 };

/* One process. Rows refer to rows of the same process; what is -1 is none. Groups (`*_begin`) have one entry more. */
typedef struct {
    /* Work, in order of lane. `follows`: the row that it goes on from; `meeting`: the collective that it waits in. */
    const int64_t *lane, *start_ps, *end_ps, *length_ps, *thread, *ready_ps;
    const int64_t *follows, *meeting, *shift_ps, *measured_wait_ps;
    size_t work, lanes;
    const int64_t *lane_first;
    /* Segments of all threads, those of thread t from segment_begin[t]: start, and length in this replay if no wait. */
    const int64_t *segment_begin, *segment_ps, *kept_ps;
    size_t threads;
    /* Waits of all threads: their segment (counted in its thread), measured end, and the work waited for. */
    const int64_t *wait_begin, *wait_segment, *wait_end_ps, *awaited_begin, *awaited;
    /* Windows in order: lane, thread and measured edges; the work that ends each. */
    const int64_t *window_lane, *window_thread, *window_start_ps, *window_end_ps, *ended_begin, *ended;
    size_t windows, window_lanes;
    /* Out: the edges in the replay. A window before the first of its lane that is not empty has INT64_MIN as both. */
    int64_t *low_ps, *high_ps;
} xpr_replay_process;

/* Participants by meeting: process, row of its work, and how much later than the beginning of that it comes. */
typedef struct {
    const int64_t *begin, *process, *part, *later_ps;
    size_t count;
} xpr_replay_meetings;

/* `idle_removed`: lags and slow wake-ups are left out. `never_waits`: every collective takes its transfer alone. */
int xpr_replay(xpr_replay_process *processes, size_t count, const xpr_replay_meetings *meetings, bool idle_removed,
               bool never_waits);

#endif
