/* ChromeScanner and ChromeStretch: native/decode/chrome_json.h and chrome_slices.h for Python.
 *
 * Ownership: the object owns its scanner; finish() hands the columns over. Threading: the GIL is released while a piece
 * is read; a scanner or a stretch in use by one thread refuses another. */
#include "decode/chrome_json.h"
#include "decode/chrome_slices.h"
#include "module.h"

typedef struct {
    PyObject_HEAD
    xpr_chrome chrome;
    bool busy, finished;
} scanner_object;

typedef struct {
    PyObject_HEAD
    xpr_chrome_stretch stretch;
    Py_ssize_t wanted;
    bool busy, full, scanned, joined;
} stretch_object;

static PyTypeObject *stretch_type;

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

static PyObject *scanner_join(PyObject *object, PyObject *of) {
    scanner_object *self = (scanner_object *)object;
    if (!PyObject_TypeCheck(of, stretch_type)) {
        PyErr_SetString(PyExc_TypeError, "join() takes a ChromeStretch");
        return NULL;
    }
    stretch_object *other = (stretch_object *)of;
    if (other->busy || other->joined) {
        PyErr_SetString(PyExc_RuntimeError, other->busy ? "the stretch is in use by another thread" : "is joined");
        return NULL;
    }
    if (!begin(self)) return NULL;
    other->busy = other->joined = true;
    other->full = other->scanned = true;
    xpr_decode_error error;
    bool proven;
    int result;
    Py_BEGIN_ALLOW_THREADS;
    result = xpr_chrome_join(&self->chrome, &other->stretch, &proven, &error);
    Py_END_ALLOW_THREADS;
    self->busy = other->busy = false;
    if (result == 0) return PyBool_FromLong(proven);
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
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {{"odd_strings", chrome->odd_strings},   {"odd_at", chrome->odd_at},
                   {"large_numbers", chrome->large_numbers}, {"without_phase", chrome->nameless},
                   {"truncated_at", chrome->truncated_at}, {"length", chrome->length},
                   {"repaired_strings", xpr_chrome_repaired(chrome)}};
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
    {"join", scanner_join, METH_O,
     "join(stretch) -> bool: the next stretch of the text, which is done with then; whether what it had read could be used.\n"
     "Raises as feed() does."},
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

static stretch_object *new_stretch(PyTypeObject *type, Py_ssize_t wanted) {
    stretch_object *self = (stretch_object *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    xpr_chrome_begin_stretch(&self->stretch);
    self->wanted = wanted;
    return self;
}

static PyObject *stretch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"wanted", NULL};
    Py_ssize_t wanted;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n:ChromeStretch", names, &wanted)) return NULL;
    if (wanted < 1 || wanted > XPR_CHROME_LONGEST) {
        PyErr_SetString(PyExc_ValueError, "wanted must be 1 byte to 64 MB");
        return NULL;
    }
    return (PyObject *)new_stretch(type, wanted);
}

static void stretch_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    xpr_chrome_free_stretch(&((stretch_object *)self)->stretch);
    type->tp_free(self);
    Py_DECREF(type);
}

static bool begin_stretch(stretch_object *self, bool over, const char *why) {
    if (self->busy || over) {
        PyErr_SetString(PyExc_RuntimeError, self->busy ? "the stretch is in use by another thread" : why);
        return false;
    }
    return self->busy = true;
}

static PyObject *stretch_hold(PyObject *object, PyObject *args) {
    stretch_object *self = (stretch_object *)object, *next = NULL;
    PyObject *spare = Py_None;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "y*|O:hold", &view, &spare)) return NULL;
    if (spare == Py_None)
        next = new_stretch(stretch_type, self->wanted);
    else if (PyObject_TypeCheck(spare, stretch_type) && ((stretch_object *)spare)->joined && !((stretch_object *)spare)->busy)
        next = (stretch_object *)Py_NewRef(spare);
    else
        PyErr_SetString(PyExc_TypeError, "spare must be a ChromeStretch that is joined");
    if (next == NULL || !begin_stretch(self, self->full, "is full")) {
        PyBuffer_Release(&view);
        Py_XDECREF(next);
        return NULL;
    }
    next->busy = true;
    int cut = -1;
    Py_BEGIN_ALLOW_THREADS;
    if (xpr_chrome_hold(&self->stretch.chrome, view.buf, (size_t)view.len))
        cut = xpr_chrome_cut_stretch(&self->stretch, (size_t)self->wanted, &next->stretch);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&view);
    self->busy = next->busy = false;
    self->full = cut != 0;
    if (cut == 1) {
        next->full = next->scanned = next->joined = false;
        return (PyObject *)next;
    }
    Py_DECREF(next);
    if (cut == 0) Py_RETURN_NONE;
    return PyErr_NoMemory();
}

static PyObject *stretch_scan(PyObject *object, PyObject *ignored) {
    stretch_object *self = (stretch_object *)object;
    if (!begin_stretch(self, self->scanned, "is scanned")) return NULL;
    self->full = self->scanned = true;
    Py_BEGIN_ALLOW_THREADS;
    xpr_chrome_read_stretch(&self->stretch);
    Py_END_ALLOW_THREADS;
    self->busy = false;
    Py_RETURN_NONE;
}

static PyMethodDef stretch_methods[] = {
    {"hold", stretch_hold, METH_VARARGS,
     "hold(bytes, spare=None) -> ChromeStretch | None: the next piece of the text, smaller than `wanted`; the stretch that\n"
     "begins in it, where one does: then this one is full. `spare`: a joined one, to become that."},
    {"scan", stretch_scan, METH_NOARGS, "scan(): read it as if an event began where it begins; once, from any thread."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot stretch_slots[] = {
    {Py_tp_doc, "ChromeStretch(wanted): Chrome trace JSON, at least so many bytes, for ChromeScanner.join\n"
                "(native/decode/chrome_slices.h). A new one holds the text's beginning."},
    {Py_tp_new, stretch_new},
    {Py_tp_dealloc, stretch_dealloc},
    {Py_tp_methods, stretch_methods},
    {0, NULL},
};

static PyType_Spec stretch_spec = {
    .name = "xprof_py._native.ChromeStretch",
    .basicsize = sizeof(stretch_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = stretch_slots,
};

static int add_type(PyObject *module, const char *name, PyObject *type) {
    return type == NULL ? -1 : PyModule_AddObjectRef(module, name, type);
}

int xpr_py_add_chrome_json(PyObject *module) {
    PyObject *scanner = PyType_FromSpec(&scanner_spec);
    int result = add_type(module, "ChromeScanner", scanner);
    Py_XDECREF(scanner);
    if (result < 0) return result;
    /* Stays for as long as the process does. */
    stretch_type = (PyTypeObject *)PyType_FromSpec(&stretch_spec);
    return add_type(module, "ChromeStretch", (PyObject *)stretch_type);
}
