/* A C extension that annotates itself with xprof_py/trace.h; it is compiled as C11 and as C++17 and links nothing of ours. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>

#include "xprof_py/trace.h"

XPROF_PY_SITE(outer, "outer");
XPROF_PY_SITE_KEY(inner, "inner", "bytes");
XPROF_PY_SITE(instant, "instant");
XPROF_PY_SITE(depth, "depth");
XPROF_PY_ASYNC_SITE(request, "request");

/* outer( inner inner ... instant ) and a counter */
static void work(long n) {
    xprof_py_span whole = xprof_py_begin();
    for (long i = 0; i < n; i++) {
        xprof_py_span part = xprof_py_begin();
        xprof_py_end_value(&inner, part, i);
    }
    xprof_py_mark(&instant);
    xprof_py_counter(&depth, 0.5);
    xprof_py_end(&outer, whole);
}

static void *work_in_thread(void *n) {
    work(*(long *)n);
    return NULL;
}

static PyObject *py_work(PyObject *module, PyObject *n) {
    (void)module;
    long count = PyLong_AsLong(n);
    if (PyErr_Occurred()) return NULL;
    work(count);
    Py_RETURN_NONE;
}

/* work(n) on threads that Python knows nothing of, its lock released. */
static PyObject *py_threads(PyObject *module, PyObject *args) {
    (void)module;
    long threads, n;
    if (!PyArg_ParseTuple(args, "ll", &threads, &n)) return NULL;
    pthread_t started[16];
    if (threads > 16) threads = 16;
    Py_BEGIN_ALLOW_THREADS
    for (long i = 0; i < threads; i++)
        if (pthread_create(&started[i], NULL, work_in_thread, &n)) threads = i;
    for (long i = 0; i < threads; i++) pthread_join(started[i], NULL);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(threads);
}

static xprof_py_async_span pending[4];

static void *complete(void *which) {
    xprof_py_async_end(&request, *(xprof_py_async_span *)which);
    return NULL;
}

/* Four requests that overlap; each ends on a thread of its own, the first one last. */
static PyObject *py_requests(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    for (int i = 0; i < 4; i++) pending[i] = xprof_py_async_begin(1000 + i);
    for (int i = 3; i >= 0; i--) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, complete, &pending[i])) return PyErr_NoMemory();
        pthread_join(thread, NULL);
    }
    Py_RETURN_NONE;
}

static PyObject *py_begin(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    pending[0] = xprof_py_async_begin(7);
    Py_RETURN_NONE;
}

static PyObject *py_end(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    complete(&pending[0]);
    Py_RETURN_NONE;
}

static PyObject *py_attached(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyBool_FromLong(xprof_py_trace_v1.table != NULL);
}

static PyMethodDef functions[] = {
    {"work", py_work, METH_O, NULL},          {"threads", py_threads, METH_VARARGS, NULL},
    {"requests", py_requests, METH_NOARGS, NULL}, {"begin", py_begin, METH_NOARGS, NULL},
    {"end", py_end, METH_NOARGS, NULL},       {"attached", py_attached, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "trace_example", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_trace_example(void) { return PyModule_Create(&definition); }
