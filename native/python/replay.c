/* replay: kernels/replay.h for numpy arrays. The GIL is released while it works; the caller's buffers are held. */
#include "kernels/replay.h"
#include "module.h"

enum {
    LANE, START, END, LENGTH, THREAD, READY, FOLLOWS, MEETING, SHIFT, MEASURED_WAIT, LANE_FIRST, SEGMENT_BEGIN, SEGMENT,
    KEPT, WAIT_BEGIN, WAIT_SEGMENT, WAIT_END, AWAITED_BEGIN, AWAITED, WINDOW_LANE, WINDOW_THREAD, WINDOW_START,
    WINDOW_END, ENDED_BEGIN, ENDED, LOW, HIGH, COLUMNS
};
enum { MET_BEGIN, MET_PROCESS, MET_PART, MET_LATER, MET_COLUMNS };

static size_t length_of(const Py_buffer *view) { return (size_t)view->len / sizeof(int64_t); }

static bool all_in(const Py_buffer *view, int64_t low, size_t high) {
    const int64_t *values = view->buf;
    bool in = true;
    for (size_t i = 0; i < length_of(view); i++) in &= values[i] >= low && values[i] < (int64_t)high;
    return in;
}

/* Whether a column has the beginnings of `groups` groups of `count` rows in all, each of `least` or more. */
static bool groups_of(const Py_buffer *view, size_t groups, size_t count, int64_t least) {
    const int64_t *begin = view->buf;
    if (length_of(view) != groups + 1 || begin[0] != 0 || begin[groups] != (int64_t)count) return false;
    for (size_t i = 0; i < groups; i++)
        if (begin[i + 1] < begin[i] || begin[i + 1] - begin[i] < least) return false;
    return true;
}

static bool alike(const Py_buffer *views, int first, int last) {
    for (int i = first + 1; i <= last; i++)
        if (views[i].len != views[first].len) return false;
    return true;
}

static bool waits_fit(const Py_buffer *views) {
    const int64_t *waits = views[WAIT_BEGIN].buf, *segments = views[SEGMENT_BEGIN].buf, *of = views[WAIT_SEGMENT].buf;
    size_t threads = length_of(&views[SEGMENT_BEGIN]) - 1;
    for (size_t t = 0; t < threads; t++)
        for (int64_t i = waits[t]; i < waits[t + 1]; i++)
            if (of[i] < 0 || of[i] >= segments[t + 1] - segments[t] || (i > waits[t] && of[i] <= of[i - 1]))
                return false;
    return true;
}

/* The kernel itself looks at no index. Returns what does not fit, or NULL. */
static const char *process_of(const Py_buffer *views, size_t meetings, xpr_replay_process *out) {
    size_t work = length_of(&views[LANE]), lanes = length_of(&views[LANE_FIRST]), windows = length_of(&views[LOW]);
    if (!alike(views, LANE, MEASURED_WAIT)) return "columns of work differ in length";
    if (length_of(&views[SEGMENT_BEGIN]) < 1) return "no groups of segments";
    size_t threads = length_of(&views[SEGMENT_BEGIN]) - 1, waits = length_of(&views[WAIT_SEGMENT]);
    if (!all_in(&views[LANE], 0, lanes) || !all_in(&views[LANE_FIRST], 0, work)) return "work of no lane";
    if (!all_in(&views[THREAD], -1, threads)) return "work of no thread";
    if (!all_in(&views[FOLLOWS], -1, work)) return "work that follows none";
    if (!all_in(&views[MEETING], -1, meetings)) return "work of no meeting";
    if (!alike(views, SEGMENT, KEPT)) return "columns of segments differ in length";
    if (!groups_of(&views[SEGMENT_BEGIN], threads, length_of(&views[SEGMENT]), 1)) return "segments of no thread";
    if (!alike(views, WAIT_SEGMENT, WAIT_END)) return "columns of waits differ in length";
    if (!groups_of(&views[WAIT_BEGIN], threads, waits, 0)) return "waits of no thread";
    if (!waits_fit(views)) return "waits that are no segments, or not in order";
    if (!groups_of(&views[AWAITED_BEGIN], waits, length_of(&views[AWAITED]), 1)) return "waits for nothing";
    if (!all_in(&views[AWAITED], 0, work) || !all_in(&views[ENDED], 0, work)) return "no such work";
    if (!alike(views, WINDOW_LANE, WINDOW_END) || !alike(views, LOW, HIGH) || length_of(&views[WINDOW_LANE]) != windows)
        return "columns of windows differ in length";
    if (!all_in(&views[WINDOW_LANE], 0, windows)) return "windows of no lane";
    if (!all_in(&views[WINDOW_THREAD], -1, threads)) return "windows of no thread";
    if (!groups_of(&views[ENDED_BEGIN], windows, length_of(&views[ENDED]), 0)) return "work of no window";
    *out = (xpr_replay_process){
        .lane = views[LANE].buf, .start_ps = views[START].buf, .end_ps = views[END].buf,
        .length_ps = views[LENGTH].buf, .thread = views[THREAD].buf, .ready_ps = views[READY].buf,
        .follows = views[FOLLOWS].buf, .meeting = views[MEETING].buf, .shift_ps = views[SHIFT].buf,
        .measured_wait_ps = views[MEASURED_WAIT].buf, .work = work, .lanes = lanes, .lane_first = views[LANE_FIRST].buf,
        .segment_begin = views[SEGMENT_BEGIN].buf, .segment_ps = views[SEGMENT].buf, .kept_ps = views[KEPT].buf,
        .threads = threads, .wait_begin = views[WAIT_BEGIN].buf, .wait_segment = views[WAIT_SEGMENT].buf,
        .wait_end_ps = views[WAIT_END].buf, .awaited_begin = views[AWAITED_BEGIN].buf, .awaited = views[AWAITED].buf,
        .window_lane = views[WINDOW_LANE].buf, .window_thread = views[WINDOW_THREAD].buf,
        .window_start_ps = views[WINDOW_START].buf, .window_end_ps = views[WINDOW_END].buf,
        .ended_begin = views[ENDED_BEGIN].buf, .ended = views[ENDED].buf, .windows = windows, .window_lanes = windows,
        .low_ps = views[LOW].buf, .high_ps = views[HIGH].buf,
    };
    return NULL;
}

static const char *meetings_of(const Py_buffer *views, const xpr_replay_process *processes, size_t count,
                               xpr_replay_meetings *out) {
    size_t rows = length_of(&views[MET_PROCESS]);
    const int64_t *process = views[MET_PROCESS].buf, *part = views[MET_PART].buf;
    if (length_of(&views[MET_BEGIN]) < 1 || !alike(views, MET_PROCESS, MET_LATER) ||
        !groups_of(&views[MET_BEGIN], length_of(&views[MET_BEGIN]) - 1, rows, 0))
        return "columns of meetings do not fit together";
    if (!all_in(&views[MET_PROCESS], 0, count)) return "a participant of no process";
    for (size_t i = 0; i < rows; i++)
        if (part[i] < 0 || part[i] >= (int64_t)processes[process[i]].work) return "a participant without work";
    *out = (xpr_replay_meetings){views[MET_BEGIN].buf, process, part, views[MET_LATER].buf,
                                 length_of(&views[MET_BEGIN]) - 1};
    return NULL;
}

/* The buffers of a tuple of `count` int64 arrays into views[*held], counted there. 0, or -1 with an exception. */
static int hold(PyObject *tuple, int count, int writable, Py_buffer *views, size_t *held) {
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != count) {
        PyErr_Format(PyExc_TypeError, "replay: a tuple of %d arrays is wanted", count);
        return -1;
    }
    for (int i = 0; i < count; i++) {
        int flags = PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (i >= writable ? PyBUF_WRITABLE : 0);
        Py_buffer *view = &views[*held];
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(tuple, i), view, flags) < 0) return -1;
        ++*held;
        if (view->itemsize != 8 || view->format == NULL || (view->format[0] != 'q' && view->format[0] != 'l')) {
            PyErr_Format(PyExc_TypeError, "replay: array %d is not of int64", i);
            return -1;
        }
    }
    return 0;
}

PyDoc_STRVAR(replay_doc,
             "replay(processes, meetings, idle_removed, never_waits)\n\n"
             "The windows of a job's steps, replayed into the last two arrays of each process, low_ps and high_ps. A\n"
             "process is a tuple of int64 arrays, the columns of native/kernels/replay.h in order; so is meetings.\n"
             "Raises TypeError and ValueError for what does not fit together, RecursionError where too many waits\n"
             "wait for one another, RuntimeError where work is asked for behind the last of its lane.");

static PyObject *replay(PyObject *module, PyObject *args) {
    PyObject *processes, *meetings;
    int idle_removed, never_waits;
    if (!PyArg_ParseTuple(args, "O!Opp:replay", &PyTuple_Type, &processes, &meetings, &idle_removed, &never_waits))
        return NULL;
    size_t count = (size_t)PyTuple_GET_SIZE(processes), held = 0;
    Py_buffer *views = PyMem_Calloc(count * COLUMNS + MET_COLUMNS, sizeof *views);
    xpr_replay_process *all = PyMem_Calloc(count ? count : 1, sizeof *all);
    PyObject *result = NULL;
    if (views == NULL || all == NULL) {
        PyErr_NoMemory();
        goto release;
    }
    if (hold(meetings, MET_COLUMNS, MET_COLUMNS, views, &held) < 0) goto release;
    const char *wrong = NULL;
    for (size_t i = 0; i < count && !wrong; i++) {
        const Py_buffer *mine = &views[held];
        if (hold(PyTuple_GET_ITEM(processes, (Py_ssize_t)i), COLUMNS, LOW, views, &held) < 0) goto release;
        wrong = process_of(mine, length_of(&views[MET_BEGIN]) ? length_of(&views[MET_BEGIN]) - 1 : 0, &all[i]);
    }
    xpr_replay_meetings met;
    if (!wrong) wrong = meetings_of(views, all, count, &met);
    if (wrong) {
        PyErr_Format(PyExc_ValueError, "replay: %s", wrong);
        goto release;
    }
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    failed = xpr_replay(all, count, &met, idle_removed != 0, never_waits != 0);
    Py_END_ALLOW_THREADS;
    if (failed == XPR_REPLAY_NO_MEMORY)
        PyErr_NoMemory();
    else if (failed == XPR_REPLAY_TOO_DEEP)
        PyErr_SetString(PyExc_RecursionError, "replay: too many waits for one another");
    else if (failed)
        PyErr_SetString(PyExc_RuntimeError, "replay: work behind the last of its lane");
    else
        result = Py_NewRef(Py_None);
release:
    while (held > 0) PyBuffer_Release(&views[--held]);
    PyMem_Free(views);
    PyMem_Free(all);
    return result;
}

static PyMethodDef methods[] = {{"replay", replay, METH_VARARGS, replay_doc}, {NULL, NULL, 0, NULL}};

int xpr_py_add_replay(PyObject *module) { return PyModule_AddFunctions(module, methods); }
