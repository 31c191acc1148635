/* XSpaceSlices: native/decode/xspace_slices.h for Python.
 *
 * Ownership: the object holds the caller's buffer until it is joined. Threading: the GIL is released while slices are
 * cut, read and joined; what is read when is checked under it. */
#include "decode/xspace_slices.h"

#include <stdlib.h>
#include <string.h>

#include "module.h"

typedef struct {
    PyObject_HEAD
    Py_buffer view;
    xpr_xspace_slices *slices; /* NULL once joined */
    char *begun;               /* per slice */
    Py_ssize_t count, finished;
} slices_object;

static PyObject *slices_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"buffer", "wanted", NULL};
    PyObject *buffer;
    Py_ssize_t wanted;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "On:XSpaceSlices", names, &buffer, &wanted)) return NULL;
    if (wanted < 1 || wanted > 1 << 16) {
        PyErr_SetString(PyExc_ValueError, "wanted must be 1 to 65536 slices");
        return NULL;
    }
    slices_object *self = (slices_object *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    if (PyObject_GetBuffer(buffer, &self->view, PyBUF_SIMPLE) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    self->slices = xpr_xspace_cut(self->view.buf, (size_t)self->view.len, (size_t)wanted);
    Py_END_ALLOW_THREADS;
    self->count = self->slices ? (Py_ssize_t)xpr_xspace_slice_count(self->slices) : 0;
    self->begun = calloc((size_t)self->count + 1, 1);
    if (self->slices && self->begun) return (PyObject *)self;
    Py_DECREF(self);
    return PyErr_NoMemory();
}

static void release(slices_object *self) {
    xpr_xspace_slices_free(self->slices);
    self->slices = NULL;
    if (self->view.obj) PyBuffer_Release(&self->view);
}

static void slices_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    slices_object *self = (slices_object *)object;
    release(self);
    free(self->begun);
    type->tp_free(object);
    Py_DECREF(type);
}

static Py_ssize_t slices_length(PyObject *object) { return ((slices_object *)object)->count; }

static PyObject *slices_read(PyObject *object, PyObject *number) {
    slices_object *self = (slices_object *)object;
    Py_ssize_t index = PyLong_AsSsize_t(number);
    if (index == -1 && PyErr_Occurred()) return NULL;
    if (index < 0 || index >= self->count) {
        PyErr_SetString(PyExc_IndexError, "no such slice");
        return NULL;
    }
    if (self->begun[index]) {
        PyErr_SetString(PyExc_RuntimeError, "the slice has been read");
        return NULL;
    }
    self->begun[index] = 1;
    Py_BEGIN_ALLOW_THREADS;
    xpr_xspace_read(self->slices, (size_t)index);
    Py_END_ALLOW_THREADS;
    self->finished++;
    Py_RETURN_NONE;
}

static PyObject *slices_join(PyObject *object, PyObject *ignored) {
    slices_object *self = (slices_object *)object;
    if (self->slices == NULL || self->finished != self->count) {
        PyErr_SetString(PyExc_RuntimeError, self->slices ? "not all slices have been read" : "is joined");
        return NULL;
    }
    xpr_xspace_slices *slices = self->slices;
    self->slices = NULL;
    xpr_xspace space;
    xpr_decode_error error;
    int result;
    Py_BEGIN_ALLOW_THREADS;
    result = xpr_xspace_join(slices, &space, &error);
    xpr_xspace_slices_free(slices);
    Py_END_ALLOW_THREADS;
    release(self);
    if (result < 0) {
        xpr_py_raise_decode_error(&error);
        return NULL;
    }
    PyObject *dict = xpr_py_xspace_columns(&space);
    xpr_xspace_free(&space);
    return dict;
}

static PyMethodDef slices_methods[] = {
    {"read", slices_read, METH_O, "read(index): decode one slice, each once, from any thread."},
    {"join", slices_join, METH_NOARGS,
     "join() -> dict: what decode_xspace returns of the same bytes, when all slices have been read. Raises DecodeError."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slices_slots[] = {
    {Py_tp_doc, "XSpaceSlices(buffer, wanted): a serialized XSpace, to be decoded by several threads; len() slices.\n"
                "The buffer must not change until join() (native/decode/xspace_slices.h)."},
    {Py_tp_new, slices_new},
    {Py_tp_dealloc, slices_dealloc},
    {Py_tp_methods, slices_methods},
    {Py_mp_length, slices_length},
    {0, NULL},
};

static PyType_Spec slices_spec = {
    .name = "xprof_py._native.XSpaceSlices",
    .basicsize = sizeof(slices_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slices_slots,
};

int xpr_py_add_xspace_slices(PyObject *module) {
    PyObject *type = PyType_FromSpec(&slices_spec);
    if (type == NULL) return -1;
    int result = PyModule_AddObjectRef(module, "XSpaceSlices", type);
    Py_DECREF(type);
    return result;
}
