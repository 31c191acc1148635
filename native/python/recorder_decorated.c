/* A plain function under @trace: an object that records a span around each call.
 *
 * It behaves like the function: it binds as a method, has its attributes, and pickles by name. Coroutine and generator
 * functions are wrapped in Python (xprof_py/decorated.py), where their kind can be kept. */
#include "recorder_python.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function, *name, *kwnames;
    PyObject *values; /* tuple */
    PyObject *dict, *weak;
    uint8_t kind;
} decorated;

static PyTypeObject decorated_type;

static PyObject *decorated_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    decorated *d = (decorated *)self;
    if (!xpr_recording()) return PyObject_Vectorcall(d->function, args, nargsf, kwnames);
    /* Whoever calls holds this object, and so its name and values, until the call is over. */
    xpr_span *span = xpr_span_lend(d->kind, d->name, &PyTuple_GET_ITEM(d->values, 0), (uint32_t)PyTuple_GET_SIZE(d->values),
                                   d->kwnames);
    if (!span) return PyObject_Vectorcall(d->function, args, nargsf, kwnames);
    xpr_span_enter(span);
    PyObject *result = PyObject_Vectorcall(d->function, args, nargsf, kwnames);
    if (result) {
        xpr_span_exit(span);
    } else {
        /* What the recorder does on the way out must neither see nor change the function's exception. */
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        xpr_span_exit(span);
        PyErr_Restore(type, value, traceback);
    }
    xpr_span_give_back(span);
    return result;
}

static PyObject *decorated_get(PyObject *self, PyObject *object, PyObject *type) {
    return object && object != Py_None ? PyMethod_New(self, object) : Py_NewRef(self);
}

/* What the object does not have itself (`__code__`, `lower` of a jitted function) the function may have. */
static PyObject *decorated_getattro(PyObject *self, PyObject *name) {
    PyObject *value = PyObject_GenericGetAttr(self, name);
    if (value || !PyErr_ExceptionMatches(PyExc_AttributeError)) return value;
    PyErr_Clear();
    return PyObject_GetAttr(((decorated *)self)->function, name);
}

static PyObject *decorated_repr(PyObject *self) { return PyUnicode_FromFormat("<traced %R>", ((decorated *)self)->function); }

static int decorated_traverse(PyObject *self, visitproc visit, void *arg) {
    decorated *d = (decorated *)self;
    Py_VISIT(d->function);
    Py_VISIT(d->name);
    Py_VISIT(d->values);
    Py_VISIT(d->dict);
    return 0;
}

static int decorated_clear(PyObject *self) {
    decorated *d = (decorated *)self;
    /* The function, the name and the values stay: the object may still be called while its cycle is taken apart. */
    Py_CLEAR(d->dict);
    return 0;
}

static void decorated_dealloc(PyObject *self) {
    decorated *d = (decorated *)self;
    PyObject_GC_UnTrack(self);
    if (d->weak) PyObject_ClearWeakRefs(self);
    Py_XDECREF(d->function);
    Py_XDECREF(d->name);
    Py_XDECREF(d->kwnames);
    Py_XDECREF(d->values);
    Py_XDECREF(d->dict);
    PyObject_GC_Del(self);
}

static PyObject *decorated_reduce(PyObject *self, PyObject *unused) {
    decorated *d = (decorated *)self;
    PyObject *module = PyImport_ImportModule("xprof_py.decorated");
    PyObject *reduce = module ? PyObject_GetAttrString(module, "reduce") : NULL;
    Py_XDECREF(module);
    if (!reduce) return NULL;
    PyObject *result = PyObject_CallFunction(reduce, "OOiOOO", self, d->function, (int)d->kind, d->name, d->kwnames, d->values);
    Py_DECREF(reduce);
    return result;
}

static PyMethodDef methods[] = {
    {"__reduce__", decorated_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getsets[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject decorated_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "xprof_py._native.decorated",
    .tp_doc = "A function whose calls are recorded as spans; made by @trace.",
    .tp_basicsize = sizeof(decorated),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_HAVE_GC |
                Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_vectorcall_offset = offsetof(decorated, vectorcall),
    .tp_dictoffset = offsetof(decorated, dict),
    .tp_weaklistoffset = offsetof(decorated, weak),
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = decorated_get,
    .tp_getattro = decorated_getattro,
    .tp_repr = decorated_repr,
    .tp_traverse = decorated_traverse,
    .tp_clear = decorated_clear,
    .tp_dealloc = decorated_dealloc,
    .tp_methods = methods,
    .tp_getset = getsets,
};

static PyObject *decorated_new(PyObject *module, PyObject *args) {
    PyObject *function, *name, *kwnames, *values;
    int kind;
    if (!PyArg_ParseTuple(args, "OiOO!O!:decorated", &function, &kind, &name, &PyTuple_Type, &kwnames, &PyTuple_Type, &values))
        return NULL;
    if (PyTuple_GET_SIZE(kwnames) != PyTuple_GET_SIZE(values)) {
        PyErr_SetString(PyExc_ValueError, "as many keys as values");
        return NULL;
    }
    decorated *d = PyObject_GC_New(decorated, &decorated_type);
    if (!d) return NULL;
    d->vectorcall = decorated_vectorcall;
    d->function = Py_NewRef(function);
    d->name = Py_NewRef(name);
    d->kwnames = Py_NewRef(kwnames);
    d->values = Py_NewRef(values);
    d->dict = d->weak = NULL;
    d->kind = (uint8_t)kind;
    PyObject_GC_Track(d);
    return (PyObject *)d;
}

PyObject *xpr_decorate(PyObject *function, uint8_t kind, PyObject *name, PyObject *kwnames, PyObject *const *values) {
    PyObject *module = PyImport_ImportModule("xprof_py.decorated");
    PyObject *decorate = module ? PyObject_GetAttrString(module, "decorate") : NULL;
    Py_XDECREF(module);
    PyObject *keys = kwnames ? Py_NewRef(kwnames) : PyTuple_New(0);
    Py_ssize_t count = keys ? PyTuple_GET_SIZE(keys) : 0;
    PyObject *kept = keys ? PyTuple_New(count) : NULL;
    PyObject *result = NULL;
    if (kept && decorate) {
        for (Py_ssize_t i = 0; i < count; i++) PyTuple_SET_ITEM(kept, i, Py_NewRef(values[i]));
        result = PyObject_CallFunction(decorate, "OiOOO", function, (int)kind, name ? name : Py_None, keys, kept);
    }
    Py_XDECREF(kept);
    Py_XDECREF(keys);
    Py_XDECREF(decorate);
    return result;
}

static PyMethodDef functions[] = {
    {"decorated", decorated_new, METH_VARARGS,
     "decorated(function, kind, name, keys, values, /)\n--\n\nThe function, its calls recorded as spans of the kind."},
    {NULL, NULL, 0, NULL},
};

int xpr_add_decorated(PyObject *module) {
    if (PyType_Ready(&decorated_type) < 0) return -1;
    return PyModule_AddFunctions(module, functions);
}
