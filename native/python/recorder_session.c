/* What a capture is built on: start, stop, status and the hooks. */
#include "recorder_python.h"

#include "recorder/flight.h"

#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

PyObject *xpr_step_listener, *xpr_step_marker;
static PyObject *thread_hook, *name_hook;
static uint64_t hook_errors;
static PyObject *marker_keys, *name_enter, *name_exit;

/* --- hooks ------------------------------------------------------------------------------------------------------ */

/* What a hook raises stays here. But an interrupt that happened to arrive while it ran is the program's: it is sent again. */
static void swallow(void) {
    hook_errors++;
    bool interrupted = PyErr_ExceptionMatches(PyExc_KeyboardInterrupt);
    PyErr_Clear();
    if (interrupted) PyErr_SetInterrupt();
}

static void finish_call(PyObject *result) {
    if (result)
        Py_DECREF(result);
    else
        swallow();
}

void xpr_call_thread_hook(void) {
    if (!thread_hook) return;
    PyObject *hook = Py_NewRef(thread_hook);
    finish_call(PyObject_CallFunction(hook, "l", (long)syscall(SYS_gettid)));
    Py_DECREF(hook);
}

void xpr_call_name_hook(PyObject *name) {
    if (!name_hook || !xpr_recording()) return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *hook = Py_NewRef(name_hook);
    finish_call(PyObject_CallOneArg(hook, name));
    Py_DECREF(hook);
    PyErr_Restore(type, value, traceback);
}

void xpr_call_step_listener(const char *what, const xpr_span *step) {
    PyObject *listener = Py_NewRef(xpr_step_listener);
    PyObject *name = Py_NewRef(xpr_name_of(step));
    finish_call(PyObject_CallFunction(listener, "sOO", what, name, step->values[0]));
    Py_DECREF(name);
    Py_DECREF(listener);
}

/* The calling thread's id, asked of the system once per thread and capture: it is a system call. */
static long thread_id(uint32_t generation) {
    static _Thread_local uint32_t asked_in;
    static _Thread_local long id;
    if (asked_in != generation) {
        id = (long)syscall(SYS_gettid);
        asked_in = generation;
    }
    return id;
}

PyObject *xpr_enter_step_marker(const xpr_span *step) {
    PyObject *factory = Py_NewRef(xpr_step_marker);
    PyObject *name = Py_NewRef(xpr_name_of(step));
    PyObject *tid = PyLong_FromLong(thread_id(step->generation));
    PyObject *arguments[] = {NULL, name, step->values[0], tid};
    PyObject *marker = tid ? PyObject_Vectorcall(factory, arguments + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, marker_keys) : NULL;
    Py_XDECREF(tid);
    Py_DECREF(name);
    Py_DECREF(factory);
    PyObject *itself[] = {NULL, marker};
    PyObject *entered =
        marker ? PyObject_VectorcallMethod(name_enter, itself + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL) : NULL;
    if (!entered) {
        swallow();
        Py_XDECREF(marker);
        return NULL;
    }
    Py_DECREF(entered);
    return marker;
}

void xpr_exit_step_marker(PyObject *marker) {
    PyObject *arguments[] = {NULL, marker, Py_None, Py_None, Py_None};
    finish_call(PyObject_VectorcallMethod(name_exit, arguments + 1, 4 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL));
    Py_DECREF(marker);
}

static PyObject *set_hook(PyObject **hook, PyObject *value) {
    if (value != Py_None && !PyCallable_Check(value)) {
        PyErr_SetString(PyExc_TypeError, "a hook is callable, or None for none");
        return NULL;
    }
    Py_XSETREF(*hook, value == Py_None ? NULL : Py_NewRef(value));
    Py_RETURN_NONE;
}

static PyObject *set_thread_hook(PyObject *module, PyObject *value) { return set_hook(&thread_hook, value); }
static PyObject *set_name_hook(PyObject *module, PyObject *value) { return set_hook(&name_hook, value); }
static PyObject *set_step_listener(PyObject *module, PyObject *value) { return set_hook(&xpr_step_listener, value); }
static PyObject *set_step_marker(PyObject *module, PyObject *value) { return set_hook(&xpr_step_marker, value); }

/* --- start, stop, status ---------------------------------------------------------------------------------------- */

static PyObject *recorder_start(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"path", "budget_bytes", "ring_bytes", "window_s", "rings_in_memory", NULL};
    PyObject *path = NULL;
    unsigned long long budget_bytes = 1ull << 30, ring_bytes = 4ull << 20;
    double window_s = 0;
    int rings_in_memory = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&|$KKdp:recorder_start", names, PyUnicode_FSConverter, &path,
                                     &budget_bytes, &ring_bytes, &window_s, &rings_in_memory))
        return NULL;
    if (!(window_s >= 0 && window_s < 1e8)) {
        Py_DECREF(path);
        PyErr_SetString(PyExc_ValueError, "window_s wants seconds, 0 for no window");
        return NULL;
    }
    struct xpr_recorder_options options = {
        .budget_bytes = budget_bytes,
        .ring_bytes = ring_bytes,
        .rings_in_memory = rings_in_memory,
        .window_ns = (int64_t)(window_s * 1e9),
    };
    int error;
    Py_BEGIN_ALLOW_THREADS;
    error = xpr_recorder_begin(PyBytes_AS_STRING(path), &options);
    Py_END_ALLOW_THREADS;
    if (!error) {
        hook_errors = 0;
        xpr_take_reentered();
        xpr_swap_functions(true);
        Py_DECREF(path);
        Py_RETURN_NONE;
    }
    if (error == EBUSY) {
        PyErr_SetString(PyExc_RuntimeError, xpr_recording() ? "already recording"
                                                            : "the last recording is still being written");
    } else {
        PyObject *text = PyUnicode_DecodeFSDefault(PyBytes_AS_STRING(path));
        errno = error;
        if (text) PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, text);
        Py_XDECREF(text);
    }
    Py_DECREF(path);
    return NULL;
}

static PyObject *error_text(const struct xpr_report *r, bool stopping, double timeout_s) {
    if (stopping && !r->finished) {
        char text[96];
        snprintf(text, sizeof text, "the shard was not finished within %g s; it is being finished in the background", timeout_s);
        return PyUnicode_FromString(text);
    }
    if (r->last_errno)
        return PyUnicode_FromFormat("%s (%llu failed writes)", strerror(r->last_errno), (unsigned long long)r->write_errors);
    if (r->removed) return PyUnicode_FromString("the file was removed while it was being written");
    Py_RETURN_NONE;
}

static PyObject *report_dict(const struct xpr_report *r, uint64_t reentered, uint64_t errors, PyObject *error) {
    static const char *const clocks[] = {"", "tsc", "cntvct", "monotonic"};
    if (!error) return NULL;
    unsigned long long dropped = r->dropped_ring + r->dropped_budget + r->dropped_error;
    return Py_BuildValue(
        "{sOsOsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKszsssN}", "recording", r->recording ? Py_True : Py_False, "finished",
        r->finished ? Py_True : Py_False, "recorded",
        (unsigned long long)(r->accepted - r->dropped_budget - r->dropped_error), "written", (unsigned long long)r->written,
        "dropped", dropped, "dropped_ring", (unsigned long long)r->dropped_ring, "dropped_budget",
        (unsigned long long)r->dropped_budget, "dropped_error", (unsigned long long)r->dropped_error, "forgotten",
        (unsigned long long)r->forgotten, "threads",
        (unsigned long long)r->threads, "names", (unsigned long long)r->strings.strings, "more_names",
        (unsigned long long)r->strings.more_names, "more_texts", (unsigned long long)r->strings.more_texts, "dropped_args",
        (unsigned long long)r->strings.dropped_args, "reentered", (unsigned long long)reentered,
        "open_not_recorded", (unsigned long long)r->open_not_recorded, "hook_errors",
        (unsigned long long)errors, "write_errors", (unsigned long long)r->write_errors, "bytes",
        (unsigned long long)r->bytes, "rings_in_memory", (unsigned long long)r->rings_in_memory, "rings_error",
        r->rings_errno ? strerror(r->rings_errno) : NULL, "clock", clocks[xpr_clock_kind], "error", error);
}

static PyObject *recorder_stop(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"timeout_s", NULL};
    double timeout_s = 5.0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|d:recorder_stop", names, &timeout_s)) return NULL;
    if (!(timeout_s >= 0)) timeout_s = 0;
    if (timeout_s > 1e9) timeout_s = 1e9;
    uint32_t generation = xpr_recorder_off();
    if (!generation) return PyDict_New();
    /* No span of the program can start or end before the next line is over: it all happens under the GIL. */
    xpr_add_open_spans(generation);
    xpr_swap_functions(false);
    uint64_t reentered = xpr_take_reentered();
    struct xpr_report report;
    Py_BEGIN_ALLOW_THREADS;
    xpr_recorder_finish((int64_t)(timeout_s * 1e9), reentered, hook_errors, &report);
    Py_END_ALLOW_THREADS;
    if (!xpr_recording()) xpr_forget_names();
    return report_dict(&report, reentered, hook_errors, error_text(&report, true, timeout_s));
}

static PyObject *recorder_status(PyObject *module, PyObject *unused) {
    struct xpr_report report;
    xpr_recorder_report(&report);
    return report_dict(&report, xpr_reentered(), hook_errors, error_text(&report, false, 0));
}

/* --- the flight recorder ---------------------------------------------------------------------------------------- */

static PyObject *flight_describe(PyObject *module, PyObject *args) {
    const char *folder, *shard_name, *run_file_name, *head;
    unsigned limit;
    if (!PyArg_ParseTuple(args, "ssssI:flight_describe", &folder, &shard_name, &run_file_name, &head, &limit)) return NULL;
    int error = xpr_flight_describe(folder, shard_name, run_file_name, head, limit);
    if (!error) Py_RETURN_NONE;
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *flight_snapshot(PyObject *module, PyObject *args) {
    const char *name, *about;
    double timeout_s;
    if (!PyArg_ParseTuple(args, "ssd:flight_snapshot", &name, &about, &timeout_s)) return NULL;
    if (strlen(name) >= XPR_SNAPSHOT_NAME_BYTES || strlen(about) >= XPR_SNAPSHOT_ABOUT_BYTES) {
        PyErr_SetString(PyExc_ValueError, "the name or the reason of a snapshot is too long");
        return NULL;
    }
    int64_t timeout_ns = timeout_s > 0 ? (int64_t)(timeout_s < 1e6 ? timeout_s * 1e9 : 1e15) : 0;
    uint64_t ticket;
    int error;
    Py_BEGIN_ALLOW_THREADS;
    error = xpr_flight_ask(name, about, &ticket);
    if (error == EBUSY && timeout_ns && xpr_flight_wait(ticket, timeout_ns) != ETIMEDOUT)
        error = xpr_flight_ask(name, about, &ticket);
    if (!error && timeout_ns) error = xpr_flight_wait(ticket, timeout_ns);
    Py_END_ALLOW_THREADS;
    if (!error) Py_RETURN_NONE;
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *flight_signal(PyObject *module, PyObject *on) {
    int wanted = PyObject_IsTrue(on);
    if (wanted < 0) return NULL;
    int error = 0;
    if (wanted)
        error = xpr_flight_signal_on(SIGUSR2);
    else
        xpr_flight_signal_off();
    if (!error) Py_RETURN_NONE;
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *flight_report(PyObject *module, PyObject *unused) {
    static struct xpr_snapshot snapshots[XPR_MAX_SNAPSHOTS]; /* under the GIL */
    uint64_t refused;
    unsigned count = xpr_flight_report(snapshots, &refused);
    PyObject *list = PyList_New(0);
    for (unsigned i = 0; list && i < count; i++) {
        const struct xpr_snapshot *s = &snapshots[i];
        PyObject *row = Py_BuildValue("{sssssssKsK}", "name", s->name, "about", s->about, "error",
                                      s->error ? strerror(s->error) : NULL, "events", (unsigned long long)s->events,
                                      "bytes", (unsigned long long)s->bytes);
        if (!row || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list ? Py_BuildValue("(NK)", list, (unsigned long long)refused) : NULL;
}

static PyObject *recording(PyObject *module, PyObject *unused) { return PyBool_FromLong(xpr_recording() != 0); }

static PyMethodDef functions[] = {
    {"recorder_start", (PyCFunction)(void (*)(void))recorder_start, METH_VARARGS | METH_KEYWORDS,
     "recorder_start(path, *, budget_bytes=1073741824, ring_bytes=4194304, window_s=0, rings_in_memory=False)\n--\n\n"
     "Starts recording into a new shard at path.\n\n"
     "budget_bytes: events past this file size are dropped and counted. ring_bytes: of each thread's ring, rounded up to a\n"
     "power of two. window_s: keep so many last seconds (a flight recorder), 0: everything.\n"
     "rings_in_memory: not in a file, which a killed process leaves behind. Raises OSError if the file cannot be created,\n"
     "RuntimeError while a recording runs or is being finished."},
    {"recorder_stop", (PyCFunction)(void (*)(void))recorder_stop, METH_VARARGS | METH_KEYWORDS,
     "recorder_stop(timeout_s=5.0)\n--\n\n"
     "Stops recording and waits for the shard, at most timeout_s. Returns its totals; {} if nothing recorded."},
    {"recorder_status", recorder_status, METH_NOARGS,
     "recorder_status()\n--\n\nThe totals of the running recording, else of the last one."},
    {"flight_describe", flight_describe, METH_VARARGS,
     "flight_describe(folder, shard_name, run_file_name, head, limit, /)\n--\n\n"
     "Where snapshots of the running flight recorder go: below folder, which exists, one folder each with these two files.\n\n"
     "head: the run file's JSON without its last brace. limit: most snapshots. Raises OSError where none runs."},
    {"flight_snapshot", flight_snapshot, METH_VARARGS,
     "flight_snapshot(name, about, timeout_s, /)\n--\n\n"
     "Writes what is kept into the folder name, and waits for it; with timeout_s 0 it only asks.\n\n"
     "about: a JSON object. Raises OSError: EBUSY while another one is written, EDQUOT past the limit, ETIMEDOUT, ENOTCONN\n"
     "where no flight recorder runs, or why it could not be written."},
    {"flight_signal", flight_signal, METH_O,
     "flight_signal(on, /)\n--\n\nWhether SIGUSR2 asks for a snapshot; the handler that was there is called as well."},
    {"flight_report", flight_report, METH_NOARGS,
     "flight_report()\n--\n\n([{name, about, error, events, bytes}], refused) of the flight recorder, the last one where none runs."},
    {"recording", recording, METH_NOARGS, "recording()\n--\n\nWhether a recording runs."},
    {"set_thread_hook", set_thread_hook, METH_O,
     "set_thread_hook(hook, /)\n--\n\nhook(os_tid) is called at the first event of each thread of each recording."},
    {"set_name_hook", set_name_hook, METH_O,
     "set_name_hook(hook, /)\n--\n\nhook(name) is called when an event's name is recorded for the first time in a recording."},
    {"set_step_listener", set_step_listener, METH_O,
     "set_step_listener(listener, /)\n--\n\n"
     "listener('enter', name, number) is called before a step's start is stamped, listener('exit', name, number) after its\n"
     "end is, also while nothing records."},
    {"set_step_marker", set_step_marker, METH_O,
     "set_step_marker(factory, /)\n--\n\n"
     "While recording, factory(name, step_num=number, xprof_tid=the OS's thread id) makes a context manager that is\n"
     "entered and left inside each step."},
    {NULL, NULL, 0, NULL},
};

int xpr_add_session(PyObject *module) {
    PyObject *step_num = PyUnicode_InternFromString("step_num"), *tid = PyUnicode_InternFromString("xprof_tid");
    marker_keys = step_num && tid ? PyTuple_Pack(2, step_num, tid) : NULL;
    Py_XDECREF(step_num);
    Py_XDECREF(tid);
    name_enter = PyUnicode_InternFromString("__enter__");
    name_exit = PyUnicode_InternFromString("__exit__");
    if (!marker_keys || !name_enter || !name_exit) return -1;
    return PyModule_AddFunctions(module, functions);
}
