/* What a capture is built on: start, stop, status and the hooks. */
#include "recorder_python.h"

#include <errno.h>
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
    PyObject *name = xpr_step_name(step);
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
    PyObject *name = xpr_step_name(step);
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
        Py_CLEAR(marker);
    }
    Py_XDECREF(entered);
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
    static char *names[] = {"path", "budget_bytes", "ring_bytes", NULL};
    PyObject *path = NULL;
    unsigned long long budget_bytes = 1ull << 30, ring_bytes = 4ull << 20;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&|$KK:recorder_start", names, PyUnicode_FSConverter, &path,
                                     &budget_bytes, &ring_bytes))
        return NULL;
    int error;
    Py_BEGIN_ALLOW_THREADS;
    error = xpr_recorder_start(PyBytes_AS_STRING(path), budget_bytes, ring_bytes);
    Py_END_ALLOW_THREADS;
    if (!error) {
        hook_errors = 0;
        xpr_take_reentered();
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
        "{sOsOsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsssN}", "recording", r->recording ? Py_True : Py_False, "finished",
        r->finished ? Py_True : Py_False, "recorded",
        (unsigned long long)(r->accepted - r->dropped_budget - r->dropped_error), "written", (unsigned long long)r->written,
        "dropped", dropped, "dropped_ring", (unsigned long long)r->dropped_ring, "dropped_budget",
        (unsigned long long)r->dropped_budget, "dropped_error", (unsigned long long)r->dropped_error, "threads",
        (unsigned long long)r->threads, "names", (unsigned long long)r->strings.strings, "more_names",
        (unsigned long long)r->strings.more_names, "more_texts", (unsigned long long)r->strings.more_texts, "dropped_args",
        (unsigned long long)r->strings.dropped_args, "reentered", (unsigned long long)reentered, "hook_errors",
        (unsigned long long)errors, "write_errors", (unsigned long long)r->write_errors, "bytes",
        (unsigned long long)r->bytes, "clock", clocks[xpr_clock_kind], "error", error);
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

static PyObject *recording(PyObject *module, PyObject *unused) { return PyBool_FromLong(xpr_recording() != 0); }

static PyMethodDef functions[] = {
    {"recorder_start", (PyCFunction)(void (*)(void))recorder_start, METH_VARARGS | METH_KEYWORDS,
     "recorder_start(path, *, budget_bytes=1073741824, ring_bytes=4194304)\n--\n\n"
     "Starts recording into a new shard at path.\n\n"
     "budget_bytes: events past this file size are dropped and counted. ring_bytes: of each thread's ring, rounded up to a\n"
     "power of two. Raises OSError if the file cannot be created, RuntimeError while a recording runs or is being finished."},
    {"recorder_stop", (PyCFunction)(void (*)(void))recorder_stop, METH_VARARGS | METH_KEYWORDS,
     "recorder_stop(timeout_s=5.0)\n--\n\n"
     "Stops recording and waits for the shard, at most timeout_s. Returns its totals; {} if nothing recorded."},
    {"recorder_status", recorder_status, METH_NOARGS,
     "recorder_status()\n--\n\nThe totals of the running recording, else of the last one."},
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
