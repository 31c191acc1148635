/* Start and stop of the power sampler. */
#include "module.h"

#include <errno.h>

#include "device/power.h"

static bool copy_text(char *place, size_t room, const char *text, const char *what) {
    size_t bytes = strlen(text);
    if (bytes >= room) {
        PyErr_Format(PyExc_ValueError, "%s: wants at most %zu bytes", what, room - 1);
        return false;
    }
    memcpy(place, text, bytes + 1);
    return true;
}

static int64_t nanoseconds(double seconds) {
    if (!(seconds >= 0)) return 0;
    return (int64_t)((seconds > 1e6 ? 1e6 : seconds) * 1e9);
}

static PyObject *power_start(PyObject *module, PyObject *args) {
    const char *library, *visible;
    int by_bus, only_open;
    long long period_ns;
    if (!PyArg_ParseTuple(args, "szpLp:power_start", &library, &visible, &by_bus, &period_ns, &only_open)) return NULL;
    struct xpr_power_options *options = PyMem_Calloc(1, sizeof *options);
    if (!options) return PyErr_NoMemory();
    bool ok = copy_text(options->library, sizeof options->library, library, "library") &&
              copy_text(options->visible, sizeof options->visible, visible ? visible : "", "CUDA_VISIBLE_DEVICES");
    if (ok && period_ns < 1000000) {
        PyErr_SetString(PyExc_ValueError, "period_ns: wants 1000000 or more");
        ok = false;
    }
    options->visible_is_set = visible != NULL;
    options->by_bus = by_bus;
    options->period_ns = period_ns;
    options->only_open = only_open;
    int error = ok ? xpr_power_start(options) : 0;
    PyMem_Free(options);
    if (!ok) return NULL;
    if (error == EBUSY) {
        PyErr_SetString(PyExc_RuntimeError, "a power sampler runs already, or is stuck in NVML");
        return NULL;
    }
    if (error) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

/* None for "not told". */
static PyObject *told(uint32_t number) {
    return number == UINT32_MAX ? Py_NewRef(Py_None) : PyLong_FromUnsignedLong(number);
}

static PyObject *devices_list(const struct xpr_power_report *r) {
    PyObject *devices = PyList_New(0);
    for (uint32_t i = 0; devices && i < r->count; i++) {
        const struct xpr_nvml_device *d = &r->devices[i];
        PyObject *device = Py_BuildValue("{sIsNsssssNsN}", "index", (unsigned)d->index, "ordinal", told(d->ordinal), "uuid", d->uuid,
                                         "name", d->name, "power_limit_mw", told(d->limit_mw), "lost", PyBool_FromLong(d->lost));
        if (!device || PyList_Append(devices, device) < 0) Py_CLEAR(devices);
        Py_XDECREF(device);
    }
    return devices;
}

static PyObject *report_dict(const struct xpr_power_report *r, bool ended) {
    static const char *const states[] = {"opening", "sampling", "failed"};
    return Py_BuildValue("{sNsssssssssNsKsKsKsKsKsL}", "ended", PyBool_FromLong(ended), "state", states[r->state], "error",
                         r->error, "note", r->note, "stuck", r->stuck, "devices", devices_list(r), "looks",
                         (unsigned long long)r->looks, "postponed", (unsigned long long)r->postponed, "failed_calls",
                         (unsigned long long)r->totals.failed_calls, "cpu_ns", (unsigned long long)r->totals.cpu_ns,
                         "open_cpu_ns", (unsigned long long)r->open_cpu_ns, "wall_ns", (long long)r->wall_ns);
}

static PyObject *waited(PyObject *args, double timeout_s, bool stop) {
    if (!PyArg_ParseTuple(args, stop ? "|d:power_stop" : "|d:power_wait", &timeout_s)) return NULL;
    struct xpr_power_report *r = PyMem_Calloc(1, sizeof *r);
    if (!r) return PyErr_NoMemory();
    bool ended = false;
    Py_BEGIN_ALLOW_THREADS;
    if (stop)
        ended = xpr_power_stop(nanoseconds(timeout_s), r);
    else
        xpr_power_wait(nanoseconds(timeout_s), r);
    Py_END_ALLOW_THREADS;
    PyObject *result = report_dict(r, ended);
    PyMem_Free(r);
    return result;
}

static PyObject *power_wait(PyObject *module, PyObject *args) { return waited(args, 5.0, false); }
static PyObject *power_stop(PyObject *module, PyObject *args) { return waited(args, 1.0, true); }

static PyMethodDef functions[] = {
    {"power_start", power_start, METH_VARARGS,
     "power_start(library, visible, by_bus, period_ns, only_open, /)\n--\n\n"
     "Starts the power sampler, whose rows go into the shard that is being recorded; NVML is opened on its thread.\n\n"
     "library: of NVML, as dlopen takes it. visible: CUDA_VISIBLE_DEVICES, None where it is not set; by_bus: CUDA counts\n"
     "devices by PCI bus. only_open: find the devices and end. Raises RuntimeError while one runs, ValueError for what does\n"
     "not fit, OSError where there is no thread for it."},
    {"power_wait", power_wait, METH_VARARGS,
     "power_wait(timeout_s=5.0, /)\n--\n\nWaits until the devices are found, or why not is known; returns the report so far."},
    {"power_stop", power_stop, METH_VARARGS,
     "power_stop(timeout_s=1.0, /)\n--\n\nStops the power sampler and returns its report; 'ended' is false where a call of NVML\n"
     "did not return in time, which 'stuck' names."},
    {NULL, NULL, 0, NULL},
};

int xpr_py_add_power(PyObject *module) { return PyModule_AddFunctions(module, functions); }
