/* Start and stop of the collector of device activity. */
#include "module.h"

#include "device/cupti.h"

enum { MAX_CANDIDATES = 64 };

static PyObject *cuda_is_loaded(PyObject *module, PyObject *unused) { return PyBool_FromLong(xpr_cuda_is_loaded()); }

static PyObject *cuda_why_not(PyObject *module, PyObject *unused) {
    char why[XPR_CUPTI_WHY_BYTES] = "";
    bool there;
    Py_BEGIN_ALLOW_THREADS;
    there = xpr_cuda_is_there(why);
    Py_END_ALLOW_THREADS;
    if (there) Py_RETURN_NONE;
    return PyUnicode_DecodeFSDefault(why);
}

/* Adds name: value to the dictionary, taking the value over. */
static bool add(PyObject *dict, const char *name, PyObject *value) {
    bool good = value && PyDict_SetItemString(dict, name, value) == 0;
    Py_XDECREF(value);
    return good;
}

static PyObject *text_or_none(const char *text) {
    return *text ? PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace") : Py_NewRef(Py_None);
}

static PyObject *number(uint64_t value) { return PyLong_FromUnsignedLongLong(value); }

static PyObject *lines(const char *text) {
    PyObject *whole = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    PyObject *parts = whole ? PyUnicode_Splitlines(whole, 0) : NULL;
    Py_XDECREF(whole);
    return parts;
}

static PyObject *report_dict(const struct xpr_cupti_report *r) {
    const struct xpr_collector_record *t = &r->totals;
    PyObject *dict = PyDict_New();
    bool good = dict && add(dict, "ran", PyBool_FromLong(r->ran)) && add(dict, "ended", PyBool_FromLong(r->ended)) &&
                add(dict, "library", text_or_none(r->path)) && add(dict, "why", text_or_none(r->why)) &&
                add(dict, "holder", text_or_none(r->holder)) && add(dict, "notes", lines(r->notes)) &&
                add(dict, "version", number(t->version)) && add(dict, "shared", PyBool_FromLong(t->shared)) &&
                add(dict, "os_threads", PyBool_FromLong(r->os_threads)) &&
                add(dict, "clock_offset_ns", r->clock_width_ns < 0 ? Py_NewRef(Py_None) : PyLong_FromLongLong(r->clock_offset_ns)) &&
                add(dict, "clock_width_ns", r->clock_width_ns < 0 ? Py_NewRef(Py_None) : PyLong_FromLongLong(r->clock_width_ns)) &&
                add(dict, "activities", number(r->activities)) && add(dict, "calls", number(r->calls)) &&
                add(dict, "graph_nodes", number(r->graph_nodes)) && add(dict, "dropped", number(t->dropped_source)) &&
                add(dict, "buffers_refused", number(t->dropped_buffers)) && add(dict, "buffers", number(t->buffers)) &&
                add(dict, "cut_buffers", number(r->cut_buffers)) && add(dict, "no_memory", number(r->no_memory)) &&
                add(dict, "unknown_kinds", number(t->unknown_kinds)) && add(dict, "clamped", number(t->clamped)) &&
                add(dict, "ranges_refused", number(r->ranges_refused)) && add(dict, "late_ranges", number(r->late_ranges)) &&
                add(dict, "flushes", number(r->flushes)) && add(dict, "cpu_ns", number(t->cpu_ns));
    if (!good) Py_CLEAR(dict);
    return dict;
}

static int64_t nanoseconds(double seconds) {
    if (!(seconds > 0)) return 0;
    return (int64_t)((seconds < 1e6 ? seconds : 1e6) * 1e9);
}

/* The paths in `list`, NULL at the end; they point into the strings of `held`, which the caller releases. */
static bool read_candidates(PyObject *list, const char **paths, PyObject **held) {
    *held = PySequence_Fast(list, "candidates: wants a sequence of paths");
    if (!*held) return false;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(*held);
    if (count > MAX_CANDIDATES) count = MAX_CANDIDATES;
    for (Py_ssize_t i = 0; i < count; i++)
        if (!(paths[i] = PyUnicode_AsUTF8(PySequence_Fast_GET_ITEM(*held, i)))) return false;
    paths[count] = NULL;
    return true;
}

static PyObject *run(PyObject *list, struct xpr_cupti_options *options) {
    const char *paths[MAX_CANDIDATES + 1];
    PyObject *held = NULL;
    struct xpr_cupti_report report;
    bool good = read_candidates(list, paths, &held);
    if (good) {
        options->candidates = paths;
        Py_BEGIN_ALLOW_THREADS;
        xpr_cupti_start(options, &report);
        Py_END_ALLOW_THREADS;
    }
    Py_XDECREF(held);
    return good ? report_dict(&report) : NULL;
}

static PyObject *cupti_find(PyObject *module, PyObject *list) {
    const char *paths[MAX_CANDIDATES + 1];
    PyObject *held = NULL;
    char why[XPR_CUPTI_WHY_BYTES] = "";
    struct xpr_cupti cupti;
    bool good = read_candidates(list, paths, &held), found = false;
    if (good) {
        Py_BEGIN_ALLOW_THREADS;
        found = xpr_cupti_load(&cupti, paths, why);
        Py_END_ALLOW_THREADS;
    }
    Py_XDECREF(held);
    if (!good) return NULL;
    return Py_BuildValue("NN", text_or_none(found ? cupti.path : ""), text_or_none(found ? "" : why));
}

static PyObject *cupti_check(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"candidates", "start_timeout_s", NULL};
    PyObject *candidates;
    double start_timeout_s = 10;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|d:cupti_check", names, &candidates, &start_timeout_s)) return NULL;
    struct xpr_cupti_options options = {.buffer_bytes = 1 << 20, .only_check = true};
    options.start_timeout_ns = nanoseconds(start_timeout_s);
    return run(candidates, &options);
}

static PyObject *cupti_start(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"candidates", "start_timeout_s", "buffer_bytes", "buffers", "flush_s", "whole_graphs", NULL};
    PyObject *candidates;
    double start_timeout_s = 10, flush_s = 1;
    unsigned buffer_bytes = 1 << 20, buffers = 64;
    int whole_graphs = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|dIIdp:cupti_start", names, &candidates, &start_timeout_s,
                                     &buffer_bytes, &buffers, &flush_s, &whole_graphs))
        return NULL;
    if (buffer_bytes < 1024 || buffer_bytes > 64u << 20 || !buffers || !(flush_s >= 0.001)) {
        PyErr_SetString(PyExc_ValueError, "wants buffers of 1 KiB to 64 MiB, at least one, and flushes 1 ms apart or more");
        return NULL;
    }
    struct xpr_cupti_options options = {
        .buffer_bytes = buffer_bytes,
        .buffers = buffers,
        .flush_ns = nanoseconds(flush_s),
        .start_timeout_ns = nanoseconds(start_timeout_s),
        .whole_graphs = whole_graphs,
    };
    return run(candidates, &options);
}

static PyObject *cupti_stop(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"timeout_s", NULL};
    double timeout_s = 5;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|d:cupti_stop", names, &timeout_s)) return NULL;
    struct xpr_cupti_report report;
    Py_BEGIN_ALLOW_THREADS;
    xpr_cupti_stop(nanoseconds(timeout_s), &report);
    Py_END_ALLOW_THREADS;
    return report_dict(&report);
}

static PyMethodDef functions[] = {
    {"cuda_is_loaded", cuda_is_loaded, METH_NOARGS,
     "cuda_is_loaded()\n--\n\nWhether NVIDIA's driver is loaded in this process, as it is in a program that uses CUDA."},
    {"cuda_why_not", cuda_why_not, METH_NOARGS,
     "cuda_why_not()\n--\n\nWhy this machine has no NVIDIA driver, None where it has. Calls nothing in it."},
    {"cupti_find", cupti_find, METH_O,
     "cupti_find(candidates, /)\n--\n\n"
     "(path, None) of the libcupti that would be used, (None, why) where there is none. Loads it, and calls nothing in it."},
    {"cupti_check", (PyCFunction)(void (*)(void))cupti_check, METH_VARARGS | METH_KEYWORDS,
     "cupti_check(candidates, start_timeout_s=10.0)\n--\n\n"
     "Subscribes to CUPTI and lets go of it at once; what cupti_start would return. It brings the driver up."},
    {"cupti_start", (PyCFunction)(void (*)(void))cupti_start, METH_VARARGS | METH_KEYWORDS,
     "cupti_start(candidates, start_timeout_s=10.0, buffer_bytes=1048576, buffers=64, flush_s=1.0, whole_graphs=False)\n--\n\n"
     "Collects what GPUs do into the shard that is being recorded, until cupti_stop.\n\n"
     "candidates: paths of libcupti.so.*, tried after the one that the process has. Returns a report: why (None: it runs),\n"
     "library, version, shared, holder, notes and so on. Raises ValueError for sizes that make no sense."},
    {"cupti_stop", (PyCFunction)(void (*)(void))cupti_stop, METH_VARARGS | METH_KEYWORDS,
     "cupti_stop(timeout_s=5.0)\n--\n\n"
     "Takes what CUPTI still has, gives CUPTI back and returns the report; 'ended' is False where that takes longer."},
    {NULL, NULL, 0, NULL},
};

int xpr_py_add_cupti(PyObject *module) { return PyModule_AddFunctions(module, functions); }
