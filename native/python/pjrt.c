/* The profiler extension of loaded PJRT plugins. */
#include "module.h"

#include "device/pjrt.h"

static PyObject *pjrt_plugins(PyObject *module, PyObject *unused) {
    /* A program without plugins asks at each of its steps. */
    if (!xpr_pjrt_find(NULL, 0)) return PyList_New(0);
    struct xpr_pjrt_plugin *plugins = PyMem_Calloc(XPR_MAX_PLUGINS, sizeof *plugins);
    if (!plugins) return PyErr_NoMemory();
    unsigned count = xpr_pjrt_find(plugins, XPR_MAX_PLUGINS);
    PyObject *list = PyList_New(0);
    for (unsigned i = 0; list && i < count; i++) {
        const struct xpr_pjrt_plugin *p = &plugins[i];
        PyObject *path = PyUnicode_DecodeFSDefault(p->path);
        PyObject *plugin = path ? Py_BuildValue("{sOsisisNss}", "path", path, "major", (int)p->major, "minor", (int)p->minor,
                                                "profiler", PyBool_FromLong(p->profiler != NULL), "why", p->why)
                                : NULL;
        Py_XDECREF(path);
        if (!plugin || PyList_Append(list, plugin) < 0) Py_CLEAR(list);
        Py_XDECREF(plugin);
    }
    PyMem_Free(plugins);
    return list;
}

static PyObject *pjrt_start(PyObject *module, PyObject *args) {
    PyObject *path;
    const char *options;
    Py_ssize_t bytes;
    if (!PyArg_ParseTuple(args, "O&y#:pjrt_start", PyUnicode_FSConverter, &path, &options, &bytes)) return NULL;
    struct xpr_pjrt_plugin *plugins = PyMem_Calloc(XPR_MAX_PLUGINS, sizeof *plugins);
    char error[XPR_PJRT_ERROR_BYTES] = "no such plugin is loaded";
    bool ok = false;
    if (plugins) {
        Py_BEGIN_ALLOW_THREADS;
        unsigned count = xpr_pjrt_find(plugins, XPR_MAX_PLUGINS);
        for (unsigned i = 0; i < count; i++)
            if (strcmp(plugins[i].path, PyBytes_AS_STRING(path)) == 0)
                ok = xpr_pjrt_start(&plugins[i], options, (size_t)bytes, error);
        Py_END_ALLOW_THREADS;
    }
    PyMem_Free(plugins);
    Py_DECREF(path);
    if (!plugins) return PyErr_NoMemory();
    if (!ok) return PyErr_Format(PyExc_RuntimeError, "%s", error);
    Py_RETURN_NONE;
}

static PyObject *pjrt_stop(PyObject *module, PyObject *unused) {
    uint8_t *xspace;
    size_t bytes;
    char error[XPR_PJRT_ERROR_BYTES];
    bool ok;
    Py_BEGIN_ALLOW_THREADS;
    ok = xpr_pjrt_stop(&xspace, &bytes, error);
    Py_END_ALLOW_THREADS;
    PyObject *result = ok ? PyBytes_FromStringAndSize((const char *)xspace, (Py_ssize_t)bytes)
                          : PyErr_Format(PyExc_RuntimeError, "%s", error);
    free(xspace);
    return result;
}

static PyMethodDef functions[] = {
    {"pjrt_plugins", pjrt_plugins, METH_NOARGS,
     "pjrt_plugins()\n--\n\n"
     "The PJRT plugins among the libraries that are loaded: [{path, major, minor (-1: not told), profiler, why}], `why` where\n"
     "profiler is false."},
    {"pjrt_start", pjrt_start, METH_VARARGS,
     "pjrt_start(path, options, /)\n--\n\n"
     "Starts the profiler of the loaded plugin with serialized tensorflow.ProfileOptions. Raises RuntimeError with its words."},
    {"pjrt_stop", pjrt_stop, METH_NOARGS,
     "pjrt_stop()\n--\n\n"
     "Ends the session and returns the XSpace's bytes. Raises RuntimeError where they are lost; the session is over then too."},
    {NULL, NULL, 0, NULL},
};

int xpr_py_add_pjrt(PyObject *module) { return PyModule_AddFunctions(module, functions); }
