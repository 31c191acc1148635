/* @trace without an object of its own, for CPython 3.12 and later: the function stays itself, and while a capture runs its
 * vectorcall slot is one that records a span around the plain one. Off it costs nothing at all.
 *
 * From 3.12 on every call of a function asks for its slot; 3.11 runs it past the slot. `__init__` is left out: in 3.13 the
 * call of a class that has specialised runs it past the slot too. What a span of the function says lies in its __dict__, and
 * dies with it. */
#include "recorder_python.h"

#if PY_VERSION_HEX >= 0x030C0000

typedef struct swapped {
    PyObject_HEAD
    PyObject *function; /* a weak reference */
    PyObject *name, *kwnames, *values;
    uint8_t kind;
    struct swapped *next, **place; /* in the list of all */
} swapped;

static swapped *all;
static vectorcallfunc plain;
static PyObject *key_swapped;
static PyTypeObject swapped_type;

/* A new reference; NULL and no exception: it is gone. */
static PyObject *function_of(const swapped *s) {
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *function;
    return PyWeakref_GetRef(s->function, &function) > 0 ? function : NULL;
#else
    PyObject *function = PyWeakref_GET_OBJECT(s->function);
    return function == Py_None ? NULL : Py_NewRef(function);
#endif
}

/* A new reference, because the function may drop its own while it runs; NULL and no exception: it has none. functools.wraps
 * copies the __dict__: what it finds there may be another function's. */
static swapped *swapped_of(PyObject *function) {
    PyObject *dict = ((PyFunctionObject *)function)->func_dict;
    PyObject *found = dict ? PyDict_GetItemWithError(dict, key_swapped) : NULL;
    if (!found) PyErr_Clear();
    if (!found || Py_TYPE(found) != &swapped_type) return NULL;
    PyObject *owner = function_of((swapped *)found);
    Py_XDECREF(owner);
    return owner == function ? (swapped *)Py_NewRef(found) : NULL;
}

static PyObject *swapped_vectorcall(PyObject *function, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    swapped *s = xpr_recording() ? swapped_of(function) : NULL;
    if (!s) return plain(function, args, nargsf, kwnames);
    xpr_span *span = xpr_span_lend(s->kind, s->name, &PyTuple_GET_ITEM(s->values, 0), (uint32_t)PyTuple_GET_SIZE(s->values),
                                   s->kwnames);
    if (span) xpr_span_enter(span);
    PyObject *result = plain(function, args, nargsf, kwnames);
    /* What the recorder does on the way out must neither see nor change the function's exception. */
    PyObject *error = result ? NULL : PyErr_GetRaisedException();
    if (span) {
        xpr_span_exit(span);
        xpr_span_give_back(span);
    }
    Py_DECREF(s);
    if (error) PyErr_SetRaisedException(error);
    return result;
}

void xpr_swap_functions(bool recording) {
    for (swapped *s = all; s; s = s->next) {
        PyObject *function = function_of(s);
        if (function) PyFunction_SetVectorcall((PyFunctionObject *)function, recording ? swapped_vectorcall : plain);
        Py_XDECREF(function); /* not the last one: nothing runs here that could drop the others */
    }
}

/* No tp_clear: a cycle goes through the function, which has one. */
static int swapped_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((swapped *)self)->name);
    Py_VISIT(((swapped *)self)->values);
    return 0;
}

static void swapped_dealloc(PyObject *self) {
    swapped *s = (swapped *)self;
    PyObject_GC_UnTrack(self);
    *s->place = s->next;
    if (s->next) s->next->place = s->place;
    Py_DECREF(s->function);
    Py_DECREF(s->name);
    Py_DECREF(s->kwnames);
    Py_DECREF(s->values);
    PyObject_GC_Del(self);
}

/* cloudpickle takes the __dict__ along: the other side's function is a plain one. */
static PyObject *swapped_reduce(PyObject *self, PyObject *unused) { return Py_BuildValue("O()", Py_TYPE(Py_None)); }

static PyMethodDef methods[] = {
    {"__reduce__", swapped_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject swapped_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "xprof_py._native.swapped",
    .tp_doc = "What the spans of a function say whose calls are recorded through its own slot.",
    .tp_basicsize = sizeof(swapped),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_traverse = swapped_traverse,
    .tp_dealloc = swapped_dealloc,
    .tp_methods = methods,
};

static PyObject *swap(PyObject *module, PyObject *args) {
    PyObject *function, *name, *kwnames, *values;
    int kind;
    if (!PyArg_ParseTuple(args, "OiOO!O!:swap", &function, &kind, &name, &PyTuple_Type, &kwnames, &PyTuple_Type, &values))
        return NULL;
    if (PyTuple_GET_SIZE(kwnames) != PyTuple_GET_SIZE(values)) {
        PyErr_SetString(PyExc_ValueError, "as many keys as values");
        return NULL;
    }
    if (!PyFunction_Check(function)) Py_RETURN_FALSE;
    PyFunctionObject *f = (PyFunctionObject *)function;
    if (!plain) plain = f->vectorcall; /* nobody has swapped one of ours yet */
    swapped *before = swapped_of(function);
    bool is_taken = before || f->vectorcall != plain || PyUnicode_CompareWithASCIIString(f->func_name, "__init__") == 0;
    Py_XDECREF(before);
    if (is_taken) Py_RETURN_FALSE;
    PyObject *dict = PyObject_GenericGetDict(function, NULL);
    PyObject *weak = dict ? PyWeakref_NewRef(function, NULL) : NULL;
    swapped *s = weak ? PyObject_GC_New(swapped, &swapped_type) : NULL;
    if (!s) {
        Py_XDECREF(dict);
        Py_XDECREF(weak);
        return NULL;
    }
    s->function = weak;
    s->name = Py_NewRef(name);
    s->kwnames = Py_NewRef(kwnames);
    s->values = Py_NewRef(values);
    s->kind = (uint8_t)kind;
    s->next = all;
    s->place = &all;
    if (all) all->place = &s->next;
    all = s;
    PyObject_GC_Track(s);
    int failed = PyDict_SetItem(dict, key_swapped, (PyObject *)s);
    Py_DECREF(dict);
    if (!failed && xpr_recording()) PyFunction_SetVectorcall(f, swapped_vectorcall);
    Py_DECREF(s);
    if (failed) return NULL;
    Py_RETURN_TRUE;
}

#else

void xpr_swap_functions(bool recording) { (void)recording; }

static PyObject *swap(PyObject *module, PyObject *args) { Py_RETURN_FALSE; }

#endif

static PyMethodDef functions[] = {
    {"swap", swap, METH_VARARGS,
     "swap(function, kind, name, keys, values, /)\n--\n\n"
     "Records the calls of a function of Python through its own slot; False where that cannot be done: before CPython 3.12,\n"
     "for what is no such function, __init__, or a function whose slot is taken."},
    {NULL, NULL, 0, NULL},
};

int xpr_add_swapped(PyObject *module) {
#if PY_VERSION_HEX >= 0x030C0000
    key_swapped = PyUnicode_InternFromString("__xprof_py_span__");
    if (!key_swapped || PyType_Ready(&swapped_type) < 0) return -1;
#endif
    return PyModule_AddFunctions(module, functions);
}
