/* ChromeScanner: native/decode/chrome_json.h for Python.
 *
 * Ownership: the object owns its scanner; finish() hands the columns over. Threading: the GIL is released while a piece
 * is read; a scanner in use by one thread refuses another. */
#include "decode/chrome_json.h"

#include "module.h"

typedef struct {
    PyObject_HEAD
    xpr_chrome chrome;
    bool busy, finished;
} scanner_object;

static PyObject *scanner_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *none[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":ChromeScanner", none)) return NULL;
    scanner_object *self = (scanner_object *)type->tp_alloc(type, 0);
    if (self) xpr_chrome_init(&self->chrome);
    return (PyObject *)self;
}

static void scanner_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    xpr_chrome_free(&((scanner_object *)self)->chrome);
    type->tp_free(self);
    Py_DECREF(type);
}

static bool begin(scanner_object *self) {
    if (self->busy || self->finished) {
        PyErr_SetString(PyExc_RuntimeError, self->busy ? "the scanner is in use by another thread" : "is finished");
        return false;
    }
    return self->busy = true;
}

static PyObject *scanner_feed(PyObject *object, PyObject *buffer) {
    scanner_object *self = (scanner_object *)object;
    Py_buffer view;
    if (!begin(self)) return NULL;
    if (PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE) < 0) {
        self->busy = false;
        return NULL;
    }
    xpr_decode_error error;
    int result;
    Py_BEGIN_ALLOW_THREADS;
    result = xpr_chrome_feed(&self->chrome, view.buf, (size_t)view.len, &error);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&view);
    self->busy = false;
    if (result == 0) Py_RETURN_NONE;
    self->finished = true;
    xpr_py_raise_decode_error(&error);
    return NULL;
}

static PyObject *arg_names(void) {
    PyObject *names = PyTuple_New(XPR_CHROME_KEYS);
    for (Py_ssize_t i = 0; names != NULL && i < XPR_CHROME_KEYS; i++) {
        PyObject *name = PyUnicode_FromString(xpr_chrome_keys[i]);
        if (name == NULL) Py_CLEAR(names);
        else PyTuple_SET_ITEM(names, i, name);
    }
    return names;
}

static PyObject *columns(xpr_chrome *chrome) {
    PyObject *dict = PyDict_New();
    if (dict == NULL) return NULL;
    uint64_t repaired = chrome->categories.strings.repaired + chrome->names.strings.repaired +
                        chrome->labels.strings.repaired + chrome->texts.strings.repaired +
                        chrome->top_keys.repaired + chrome->top_values.repaired;
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {{"odd_strings", chrome->odd_strings},   {"odd_at", chrome->odd_at},
                   {"large_numbers", chrome->large_numbers}, {"without_phase", chrome->nameless},
                   {"truncated_at", chrome->truncated_at}, {"length", chrome->length}, {"repaired_strings", repaired}};
    int result = 0;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        result |= xpr_py_set_new(dict, numbers[i].name, PyLong_FromUnsignedLongLong(numbers[i].value));
    if (result < 0 || xpr_py_set_new(dict, "truncated", PyBool_FromLong(chrome->truncated)) < 0 ||
        xpr_py_set_new(dict, "arg_names", arg_names()) < 0 ||
        xpr_py_add_table(dict, "events", &chrome->events) < 0 || xpr_py_add_table(dict, "args", &chrome->args) < 0 ||
        xpr_py_add_table(dict, "damages", &chrome->damages) < 0 ||
        xpr_py_add_strings(dict, "categories", &chrome->categories.strings) < 0 ||
        xpr_py_add_strings(dict, "names", &chrome->names.strings) < 0 ||
        xpr_py_add_strings(dict, "labels", &chrome->labels.strings) < 0 ||
        xpr_py_add_strings(dict, "texts", &chrome->texts.strings) < 0 ||
        xpr_py_add_strings(dict, "top_keys", &chrome->top_keys) < 0 ||
        xpr_py_add_strings(dict, "top_values", &chrome->top_values) < 0) {
        Py_DECREF(dict);
        return NULL;
    }
    return dict;
}

static PyObject *scanner_finish(PyObject *object, PyObject *ignored) {
    scanner_object *self = (scanner_object *)object;
    if (!begin(self)) return NULL;
    xpr_decode_error error;
    int result;
    Py_BEGIN_ALLOW_THREADS;
    result = xpr_chrome_finish(&self->chrome, &error);
    Py_END_ALLOW_THREADS;
    self->busy = false;
    self->finished = true;
    if (result == 0) return columns(&self->chrome);
    xpr_py_raise_decode_error(&error);
    return NULL;
}

static PyMethodDef scanner_methods[] = {
    {"feed", scanner_feed, METH_O, "feed(bytes): the next piece. Raises DecodeError where it cannot be a trace."},
    {"finish", scanner_finish, METH_NOARGS,
     "finish() -> dict: tables as dictionaries of Column, string columns as (offsets, bytes), and counts\n"
     "(native/decode/chrome_json.h). Raises DecodeError where the text holds nothing."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot scanner_slots[] = {
    {Py_tp_doc, "Chrome trace JSON, fed in pieces, to columns (native/decode/chrome_json.h)."},
    {Py_tp_new, scanner_new},
    {Py_tp_dealloc, scanner_dealloc},
    {Py_tp_methods, scanner_methods},
    {0, NULL},
};

static PyType_Spec scanner_spec = {
    .name = "xprof_py._native.ChromeScanner",
    .basicsize = sizeof(scanner_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = scanner_slots,
};

int xpr_py_add_chrome_json(PyObject *module) {
    PyObject *type = PyType_FromSpec(&scanner_spec);
    if (type == NULL) return -1;
    int result = PyModule_AddObjectRef(module, "ChromeScanner", type);
    Py_DECREF(type);
    return result;
}
