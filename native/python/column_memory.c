/* The memory of columns (native/columns/memory.h) for Python and for numpy's arrays, and bytes that lie in it.
 *
 * numpy is not linked: its table of functions is looked up when it is asked for (`_ARRAY_API`, whose places do not
 * change), and an allocator is what numpy calls a handler (NEP 49). Threading: with the GIL, which reading from a file
 * gives up meanwhile. */
#include "columns/memory.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "module.h"

/* --- settings ------------------------------------------------------------------------------------------------------- */

static PyObject *set_column_budget(PyObject *self, PyObject *args) {
    Py_ssize_t bytes;
    PyObject *sequence;
    if (!PyArg_ParseTuple(args, "nO:set_column_budget", &bytes, &sequence)) return NULL;
    if (bytes < 0) {
        PyErr_SetString(PyExc_ValueError, "a budget below 0");
        return NULL;
    }
    PyObject *encoded[XPR_MEMORY_FOLDERS] = {NULL};
    const char *names[XPR_MEMORY_FOLDERS];
    PyObject *fast = PySequence_Fast(sequence, "folders must be a sequence"), *result = NULL;
    if (fast == NULL) return NULL;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(fast), held = 0;
    if (count > XPR_MEMORY_FOLDERS) {
        PyErr_Format(PyExc_ValueError, "more than %d folders", XPR_MEMORY_FOLDERS);
        goto done;
    }
    for (; held < count; held++) {
        if (!PyUnicode_FSConverter(PySequence_Fast_GET_ITEM(fast, held), &encoded[held])) goto done;
        names[held] = PyBytes_AS_STRING(encoded[held]);
    }
    xpr_set_column_budget((size_t)bytes, names, (size_t)count);
    result = Py_NewRef(Py_None);
done:
    while (held > 0) Py_DECREF(encoded[--held]);
    Py_DECREF(fast);
    return result;
}

static PyObject *column_memory(PyObject *self, PyObject *ignored) {
    xpr_memory_use use = xpr_column_memory_use();
    return Py_BuildValue("{snsnsnsz}", "in_memory", (Py_ssize_t)use.in_memory, "in_files", (Py_ssize_t)use.in_files,
                         "most_in_files", (Py_ssize_t)use.most_in_files, "refused",
                         use.refused == EMEDIUMTYPE ? "its files are memory" : use.refused ? strerror(use.refused) : NULL);
}

static PyObject *give_back(PyObject *self, PyObject *ignored) {
    xpr_column_give_back();
    Py_RETURN_NONE;
}

static PyObject *in_file(PyObject *self, PyObject *column) {
    Py_buffer view;
    if (PyObject_GetBuffer(column, &view, PyBUF_SIMPLE) < 0) return NULL;
    bool found = xpr_column_in_file(view.buf);
    PyBuffer_Release(&view);
    return PyBool_FromLong(found);
}

static PyObject *passed_column(PyObject *self, PyObject *column) {
    Py_buffer view;
    if (PyObject_GetBuffer(column, &view, PyBUF_SIMPLE) < 0) return NULL;
    xpr_column_passed(view.buf, 0, (size_t)view.len);
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

/* --- numpy ---------------------------------------------------------------------------------------------------------- */

/* numpy/ndarraytypes.h, version 1 of the handler. */
typedef struct {
    void *context;
    void *(*malloc)(void *context, size_t bytes);
    void *(*calloc)(void *context, size_t count, size_t size);
    void *(*realloc)(void *context, void *data, size_t bytes);
    void (*free)(void *context, void *data, size_t bytes);
} numpy_allocator;
typedef struct {
    char name[127];
    uint8_t version;
    numpy_allocator allocator;
} numpy_handler;
enum { NUMPY_SET_HANDLER = 304, NUMPY_DEFAULT_HANDLER = 306, NUMPY_HANDLER_VERSION = 1 };

static const numpy_allocator *numpys_own; /* small blocks are left to it, which keeps some of them at hand */

static void *counted(void *data, size_t bytes) {
    if (bytes >= XPR_LARGE_BYTES) xpr_column_note(data, bytes);
    return data;
}

static void *numpy_malloc(void *context, size_t bytes) {
    void *data = bytes >= XPR_LARGE_BYTES ? xpr_column_file(bytes) : NULL;
    return data ? data : counted(numpys_own->malloc(numpys_own->context, bytes), bytes);
}

static void *numpy_calloc(void *context, size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) return NULL;
    void *data = bytes >= XPR_LARGE_BYTES ? xpr_column_file(bytes) : NULL;
    return data ? memset(data, 0, bytes) : counted(numpys_own->calloc(numpys_own->context, count, size), bytes);
}

static void *numpy_realloc(void *context, void *data, size_t bytes) { return xpr_column_resize(data, bytes); }

static void numpy_free(void *context, void *data, size_t bytes) {
    if (data && bytes >= XPR_LARGE_BYTES && xpr_column_released(data)) return;
    numpys_own->free(numpys_own->context, data, bytes);
}

static numpy_handler handler = {
    "xprof_py_columns", NUMPY_HANDLER_VERSION, {NULL, numpy_malloc, numpy_calloc, numpy_realloc, numpy_free}};

/* numpy's table of functions; NULL with an exception. */
static void **numpy_functions(void) {
    PyObject *numpy = PyImport_ImportModule("numpy._core._multiarray_umath");
    if (numpy == NULL && PyErr_ExceptionMatches(PyExc_ModuleNotFoundError)) {
        PyErr_Clear();
        numpy = PyImport_ImportModule("numpy.core._multiarray_umath"); /* before 2.0 */
    }
    PyObject *table = numpy ? PyObject_GetAttrString(numpy, "_ARRAY_API") : NULL;
    void **functions = table ? PyCapsule_GetPointer(table, NULL) : NULL;
    Py_XDECREF(table);
    Py_XDECREF(numpy);
    return functions;
}

static PyObject *numpy_in_columns(PyObject *self, PyObject *wanted) {
    void **functions = numpy_functions();
    if (functions == NULL) return NULL;
    numpy_handler *known = PyCapsule_GetPointer(*(PyObject **)functions[NUMPY_DEFAULT_HANDLER], "mem_handler");
    if (known == NULL) return NULL;
    if (known->version != NUMPY_HANDLER_VERSION) {
        PyErr_Format(PyExc_RuntimeError, "numpy's allocators are of version %d", (int)known->version);
        return NULL;
    }
    numpys_own = &known->allocator;
    PyObject *capsule = wanted == Py_None ? PyCapsule_New(&handler, "mem_handler", NULL) : Py_NewRef(wanted);
    if (capsule == NULL) return NULL;
    PyObject *before = ((PyObject * (*)(PyObject *)) functions[NUMPY_SET_HANDLER])(capsule);
    Py_DECREF(capsule);
    return before;
}

/* --- Bytes ---------------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    char *data;
    size_t count, room;
    Py_ssize_t views;
    bool busy;
} bytes_object;

enum { AT_ONCE = 16 << 20 };

static PyObject *bytes_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *none[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":Bytes", none)) return NULL;
    return type->tp_alloc(type, 0);
}

static void bytes_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    xpr_column_free(((bytes_object *)object)->data);
    type->tp_free(object);
    Py_DECREF(type);
}

/* Room for so many more. Those before are not needed soon. */
static bool reserve(bytes_object *self, size_t more) {
    if (self->views || self->busy) {
        PyErr_SetString(PyExc_BufferError, "bytes that are in use cannot grow");
        return false;
    }
    if (more <= self->room - self->count) return true;
    size_t room = self->count + more > self->room * 2 ? self->count + more : self->room * 2;
    char *data = xpr_column_resize(self->data, room);
    if (data == NULL) {
        PyErr_NoMemory();
        return false;
    }
    self->data = data;
    self->room = room;
    return true;
}

static void passed(const bytes_object *self, size_t before) {
    /* The last piece is in memory still, for whoever reads from the end. */
    xpr_column_passed(self->data, before < AT_ONCE ? 0 : before - AT_ONCE, before);
}

static PyObject *bytes_append(PyObject *object, PyObject *piece) {
    bytes_object *self = (bytes_object *)object;
    Py_buffer view;
    if (PyObject_GetBuffer(piece, &view, PyBUF_SIMPLE) < 0) return NULL;
    bool fits = reserve(self, (size_t)view.len);
    if (fits && view.len) {
        memcpy(self->data + self->count, view.buf, (size_t)view.len);
        size_t before = self->count;
        self->count += (size_t)view.len;
        if (before / AT_ONCE != self->count / AT_ONCE) passed(self, before);
    }
    PyBuffer_Release(&view);
    if (!fits) return NULL;
    Py_RETURN_NONE;
}

static PyObject *bytes_read(PyObject *object, PyObject *args) {
    bytes_object *self = (bytes_object *)object;
    int file;
    Py_ssize_t expected;
    if (!PyArg_ParseTuple(args, "in:read", &file, &expected)) return NULL;
    if (!reserve(self, expected > 0 ? (size_t)expected + 1 : 1)) return NULL;
    for (;;) {
        size_t room = self->room - self->count, wanted = room < AT_ONCE ? room : AT_ONCE;
        if (wanted == 0) {
            if (!reserve(self, AT_ONCE)) return NULL;
            continue;
        }
        self->busy = true;
        ssize_t found;
        int error;
        Py_BEGIN_ALLOW_THREADS;
        found = read(file, self->data + self->count, wanted);
        error = errno;
        if (found > 0) passed(self, self->count);
        Py_END_ALLOW_THREADS;
        self->busy = false;
        if (found > 0) self->count += (size_t)found;
        if (found == 0) Py_RETURN_NONE;
        if (found < 0 && error != EINTR) {
            errno = error;
            return PyErr_SetFromErrno(PyExc_OSError);
        }
        if (PyErr_CheckSignals() < 0) return NULL;
    }
}

static int bytes_getbuffer(PyObject *object, Py_buffer *view, int flags) {
    static char nothing;
    bytes_object *self = (bytes_object *)object;
    int result = PyBuffer_FillInfo(view, object, self->data ? self->data : &nothing, (Py_ssize_t)self->count, 1, flags);
    if (result == 0) self->views++;
    return result;
}

static void bytes_releasebuffer(PyObject *object, Py_buffer *view) { ((bytes_object *)object)->views--; }

static Py_ssize_t bytes_length(PyObject *object) { return (Py_ssize_t)((bytes_object *)object)->count; }

static PyMethodDef bytes_methods[] = {
    {"append", bytes_append, METH_O, "append(piece): at the end. Raises BufferError while somebody looks at the bytes."},
    {"read", bytes_read, METH_VARARGS,
     "read(file, expected): what an open file holds from where it stands to its end, which may be more or less than\n"
     "`expected` bytes. Raises OSError, and BufferError while somebody looks at the bytes."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot bytes_slots[] = {
    {Py_tp_doc, "Bytes() that grow, in the memory of columns. A read-only buffer."},
    {Py_tp_new, bytes_new},
    {Py_tp_dealloc, bytes_dealloc},
    {Py_tp_methods, bytes_methods},
    {Py_bf_getbuffer, bytes_getbuffer},
    {Py_bf_releasebuffer, bytes_releasebuffer},
    {Py_sq_length, bytes_length},
    {0, NULL},
};

static PyType_Spec bytes_spec = {
    .name = "xprof_py._native.Bytes",
    .basicsize = sizeof(bytes_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = bytes_slots,
};

static PyMethodDef methods[] = {
    {"set_column_budget", set_column_budget, METH_VARARGS,
     "set_column_budget(bytes, folders): what columns may take of memory together before they lie in files without a\n"
     "name, in the first of at most four folders that takes them (native/columns/memory.h)."},
    {"column_memory", column_memory, METH_NOARGS,
     "column_memory() -> dict\n\nBytes of large columns `in_memory` and `in_files` now, `most_in_files` at one time; and\n"
     "`refused`: why one that should lie in a file is in memory, None where none is."},
    {"give_back_columns", give_back, METH_NOARGS,
     "give_back_columns(): what lies in files and is free is given back, not kept for the next columns."},
    {"in_file", in_file, METH_O, "in_file(column) -> bool: whether it lies in a file."},
    {"passed", passed_column, METH_O,
     "passed(column): it is not needed soon. If it lies in a file it leaves memory until somebody looks at it."},
    {"numpy_in_columns", numpy_in_columns, METH_O,
     "numpy_in_columns(before) -> before\n\nWith None: numpy's arrays that this thread's context makes from now on are\n"
     "such columns. What is returned is the allocator before, which the same function puts back. Raises RuntimeError\n"
     "where numpy's allocators are not as known, ValueError for what is none."},
    {NULL, NULL, 0, NULL},
};

int xpr_py_add_column_memory(PyObject *module) {
    PyObject *type = PyType_FromSpec(&bytes_spec);
    if (type == NULL) return -1;
    int added = PyModule_AddObjectRef(module, "Bytes", type);
    Py_DECREF(type);
    return added < 0 ? -1 : PyModule_AddFunctions(module, methods);
}
