/* decode_xspace and decode_hlo: the C decoders as dictionaries of columns.
 *
 * Ownership: a Column takes over one array of a decoded structure and frees it with itself; the rest of the
 * structure is freed before returning. Threading: the GIL is released while decoding; the caller's buffer is held. */
#include <stdlib.h>
#include <string.h>

#include "columns/memory.h"
#include "decode/hlo.h"
#include "decode/xspace.h"
#include "module.h"

static PyTypeObject *column_type;
static PyObject *decode_error_type;

typedef struct {
    PyObject_HEAD
    void *data;
    Py_ssize_t count;
    Py_ssize_t item_size;
    char format[2];
} column_object;

static void column_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    xpr_column_free(((column_object *)self)->data);
    type->tp_free(self);
    Py_DECREF(type);
}

static int column_getbuffer(PyObject *self, Py_buffer *view, int flags) {
    static char nothing[8];
    column_object *column = (column_object *)self;
    memset(view, 0, sizeof *view);
    view->buf = column->data ? column->data : nothing;
    view->obj = Py_NewRef(self);
    view->len = column->count * column->item_size;
    view->itemsize = column->item_size;
    view->ndim = 1;
    if (flags & PyBUF_FORMAT) view->format = column->format;
    if (flags & PyBUF_ND) view->shape = &column->count;
    if ((flags & PyBUF_STRIDES) == PyBUF_STRIDES) view->strides = &column->item_size;
    return 0;
}

static Py_ssize_t column_length(PyObject *self) { return ((column_object *)self)->count; }

static PyType_Slot column_slots[] = {
    {Py_tp_doc, "A column made in C: a writable buffer of int64, int32, int8 or uint8, for numpy.asarray."},
    {Py_tp_dealloc, column_dealloc},
    {Py_bf_getbuffer, column_getbuffer},
    {Py_mp_length, column_length},
    {0, NULL},
};

static PyType_Spec column_spec = {
    .name = "xprof_py._native.Column",
    .basicsize = sizeof(column_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = column_slots,
};

/* A Column over *data, which it takes over, also when it fails. */
PyObject *xpr_py_column(void **data, size_t count, char format) {
    void *taken = *data;
    *data = NULL;
    size_t size = xpr_column_size(format);
    /* Growth leaves up to half of the room unused: give it back. */
    void *trimmed = taken && count ? xpr_column_resize(taken, count * size) : NULL;
    if (trimmed) taken = trimmed;
    column_object *column = (column_object *)column_type->tp_alloc(column_type, 0);
    if (column == NULL) {
        xpr_column_free(taken);
        return NULL;
    }
    column->data = taken;
    column->count = (Py_ssize_t)count;
    column->item_size = (Py_ssize_t)size;
    column->format[0] = format;
    column->format[1] = '\0';
    return (PyObject *)column;
}

int xpr_py_set_new(PyObject *dict, const char *name, PyObject *value) {
    if (value == NULL) return -1;
    int result = PyDict_SetItemString(dict, name, value);
    Py_DECREF(value);
    return result;
}

int xpr_py_add_table(PyObject *dict, const char *name, xpr_table *table) {
    PyObject *columns = PyDict_New();
    if (columns == NULL) return -1;
    for (int i = 0; i < table->width; i++) {
        PyObject *column = xpr_py_column(&table->data[i], table->count, table->spec[i].type);
        if (xpr_py_set_new(columns, table->spec[i].name, column) < 0) {
            Py_DECREF(columns);
            return -1;
        }
    }
    return xpr_py_set_new(dict, name, columns);
}

/* (offsets, bytes): what pyarrow.LargeStringArray.from_buffers takes. */
int xpr_py_add_strings(PyObject *dict, const char *name, xpr_strings *strings) {
    size_t bytes = strings->count ? (size_t)strings->offsets[strings->count] : 0;
    if (strings->offsets == NULL && (strings->offsets = calloc(1, sizeof *strings->offsets)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    void *offset_data = strings->offsets, *byte_data = strings->bytes;
    strings->offsets = NULL;
    strings->bytes = NULL;
    PyObject *offsets = xpr_py_column(&offset_data, strings->count + 1, 'q');
    PyObject *text = xpr_py_column(&byte_data, bytes, 'B');
    PyObject *pair = offsets && text ? PyTuple_Pack(2, offsets, text) : NULL;
    Py_XDECREF(offsets);
    Py_XDECREF(text);
    return xpr_py_set_new(dict, name, pair);
}

void xpr_py_raise_decode_error(const xpr_decode_error *error) {
    if (error->reason == XPR_OUT_OF_MEMORY) {
        PyErr_NoMemory();
        return;
    }
    PyObject *exception = PyObject_CallFunction(decode_error_type, "s", error->reason);
    PyObject *offset = PyLong_FromSize_t(error->offset);
    PyObject *place = PyUnicode_FromString(error->place);
    PyObject *reason = PyUnicode_FromString(error->reason);
    if (exception && offset && place && reason && PyObject_SetAttrString(exception, "offset", offset) == 0 &&
        PyObject_SetAttrString(exception, "place", place) == 0 &&
        PyObject_SetAttrString(exception, "reason", reason) == 0)
        PyErr_SetObject(decode_error_type, exception);
    Py_XDECREF(exception);
    Py_XDECREF(offset);
    Py_XDECREF(place);
    Py_XDECREF(reason);
}

PyObject *xpr_py_xspace_columns(xpr_xspace *space) {
    PyObject *dict = PyDict_New();
    if (dict == NULL) return NULL;
    uint64_t repaired = space->event_names.strings.repaired + space->stat_names.strings.repaired +
                        space->texts.strings.repaired + space->plane_names.repaired + space->line_names.repaired +
                        space->line_display_names.repaired + space->metadata_display_names.repaired +
                        space->hostnames.repaired + space->errors.repaired + space->warnings.repaired;
    if (xpr_py_add_table(dict, "planes", &space->planes) < 0 || xpr_py_add_table(dict, "lines", &space->lines) < 0 ||
        xpr_py_add_table(dict, "event_metadata", &space->event_metadata) < 0 ||
        xpr_py_add_table(dict, "stat_metadata", &space->stat_metadata) < 0 || xpr_py_add_table(dict, "events", &space->events) < 0 ||
        xpr_py_add_table(dict, "aggregated", &space->aggregated) < 0 ||
        xpr_py_add_table(dict, "event_stats", &space->event_stats) < 0 ||
        xpr_py_add_table(dict, "metadata_stats", &space->metadata_stats) < 0 ||
        xpr_py_add_table(dict, "plane_stats", &space->plane_stats) < 0 ||
        xpr_py_add_strings(dict, "plane_names", &space->plane_names) < 0 ||
        xpr_py_add_strings(dict, "line_names", &space->line_names) < 0 ||
        xpr_py_add_strings(dict, "line_display_names", &space->line_display_names) < 0 ||
        xpr_py_add_strings(dict, "metadata_display_names", &space->metadata_display_names) < 0 ||
        xpr_py_add_strings(dict, "hostnames", &space->hostnames) < 0 || xpr_py_add_strings(dict, "errors", &space->errors) < 0 ||
        xpr_py_add_strings(dict, "warnings", &space->warnings) < 0 ||
        xpr_py_add_strings(dict, "event_names", &space->event_names.strings) < 0 ||
        xpr_py_add_strings(dict, "stat_names", &space->stat_names.strings) < 0 ||
        xpr_py_add_strings(dict, "texts", &space->texts.strings) < 0 ||
        xpr_py_set_new(dict, "events_without_metadata", PyLong_FromUnsignedLongLong(space->events_without_metadata)) < 0 ||
        xpr_py_set_new(dict, "stats_without_metadata", PyLong_FromUnsignedLongLong(space->stats_without_metadata)) < 0 ||
        xpr_py_set_new(dict, "repaired_strings", PyLong_FromUnsignedLongLong(repaired)) < 0) {
        Py_DECREF(dict);
        return NULL;
    }
    return dict;
}

static PyObject *decode_xspace(PyObject *self, PyObject *buffer) {
    Py_buffer view;
    if (PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE) < 0) return NULL;
    xpr_xspace space;
    xpr_decode_error error;
    int result;
    Py_BEGIN_ALLOW_THREADS;
    result = xpr_xspace_decode(view.buf, (size_t)view.len, &space, &error);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&view);
    if (result < 0) {
        xpr_py_raise_decode_error(&error);
        return NULL;
    }
    PyObject *dict = xpr_py_xspace_columns(&space);
    xpr_xspace_free(&space);
    return dict;
}

/* The keys of attributes and texts as a tuple of str. */
static PyObject *attribute_names(void) {
    PyObject *names = PyTuple_New(XPR_HLO_ATTRIBUTES);
    for (Py_ssize_t i = 0; names != NULL && i < XPR_HLO_ATTRIBUTES; i++) {
        PyObject *name = PyUnicode_FromString(xpr_hlo_attribute_names[i]);
        if (name == NULL) Py_CLEAR(names);
        else PyTuple_SET_ITEM(names, i, name);
    }
    return names;
}

static PyObject *hlo_columns(xpr_hlo *hlo) {
    PyObject *dict = PyDict_New();
    if (dict == NULL) return NULL;
    uint64_t repaired = hlo->name.repaired + hlo->computation_names.repaired + hlo->instruction_names.repaired +
                        hlo->op_names.repaired + hlo->file_names.repaired + hlo->function_names.repaired +
                        hlo->opcodes.strings.repaired + hlo->source_files.strings.repaired;
    /* Texts are not counted: a backend_config is bytes, and some backends put no text there. */
    if (xpr_py_set_new(dict, "id", PyLong_FromLongLong(hlo->id)) < 0 || xpr_py_add_strings(dict, "name", &hlo->name) < 0 ||
        xpr_py_add_table(dict, "computations", &hlo->computations) < 0 ||
        xpr_py_add_table(dict, "instructions", &hlo->instructions) < 0 || xpr_py_add_table(dict, "operands", &hlo->operands) < 0 ||
        xpr_py_add_table(dict, "calls", &hlo->calls) < 0 || xpr_py_add_table(dict, "locations", &hlo->locations) < 0 ||
        xpr_py_add_table(dict, "frames", &hlo->frames) < 0 || xpr_py_add_table(dict, "shapes", &hlo->shapes) < 0 ||
        xpr_py_add_table(dict, "dimensions", &hlo->dimensions) < 0 ||
        xpr_py_add_table(dict, "attributes", &hlo->attributes) < 0 || xpr_py_add_table(dict, "texts", &hlo->texts) < 0 ||
        xpr_py_add_table(dict, "sequences", &hlo->sequences) < 0 || xpr_py_add_table(dict, "schedule", &hlo->schedule) < 0 ||
        xpr_py_add_table(dict, "buffers", &hlo->buffers) < 0 ||
        xpr_py_add_table(dict, "allocations", &hlo->allocations) < 0 || xpr_py_add_table(dict, "assigned", &hlo->assigned) < 0 ||
        xpr_py_add_table(dict, "heap_traces", &hlo->heap_traces) < 0 ||
        xpr_py_add_table(dict, "heap_events", &hlo->heap_events) < 0 ||
        xpr_py_set_new(dict, "has_buffer_assignment", PyBool_FromLong(hlo->has_buffer_assignment)) < 0 ||
        xpr_py_add_strings(dict, "text_values", &hlo->text_values.strings) < 0 ||
        xpr_py_set_new(dict, "attribute_names", attribute_names()) < 0 ||
        xpr_py_set_new(dict, "replica_count", PyLong_FromLongLong(hlo->replica_count)) < 0 ||
        xpr_py_set_new(dict, "partition_count", PyLong_FromLongLong(hlo->partition_count)) < 0 ||
        xpr_py_add_strings(dict, "computation_names", &hlo->computation_names) < 0 ||
        xpr_py_add_strings(dict, "instruction_names", &hlo->instruction_names) < 0 ||
        xpr_py_add_strings(dict, "op_names", &hlo->op_names) < 0 || xpr_py_add_strings(dict, "file_names", &hlo->file_names) < 0 ||
        xpr_py_add_strings(dict, "function_names", &hlo->function_names) < 0 ||
        xpr_py_add_strings(dict, "opcodes", &hlo->opcodes.strings) < 0 ||
        xpr_py_add_strings(dict, "source_files", &hlo->source_files.strings) < 0 ||
        xpr_py_set_new(dict, "repaired_strings", PyLong_FromUnsignedLongLong(repaired)) < 0) {
        Py_DECREF(dict);
        return NULL;
    }
    return dict;
}

static PyObject *decode_hlo(PyObject *self, PyObject *buffer) {
    Py_buffer view;
    if (PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE) < 0) return NULL;
    xpr_hlo hlo;
    xpr_decode_error error;
    int result;
    Py_BEGIN_ALLOW_THREADS;
    result = xpr_hlo_decode(view.buf, (size_t)view.len, &hlo, &error);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&view);
    if (result < 0) {
        xpr_py_raise_decode_error(&error);
        return NULL;
    }
    PyObject *dict = hlo_columns(&hlo);
    xpr_hlo_free(&hlo);
    return dict;
}

static PyMethodDef methods[] = {
    {"decode_xspace", decode_xspace, METH_O,
     "decode_xspace(buffer) -> dict\n\n"
     "The columns of a serialized XSpace (native/decode/xspace.h): tables as dictionaries of Column, string columns\n"
     "as (offsets, bytes). Raises DecodeError where the wire format breaks."},
    {"decode_hlo", decode_hlo, METH_O,
     "decode_hlo(buffer) -> dict\n\n"
     "The columns of a serialized HloProto (native/decode/hlo.h). Raises DecodeError where the wire format breaks."},
    {NULL, NULL, 0, NULL},
};

int xpr_py_add_decode(PyObject *module) {
    column_type = (PyTypeObject *)PyType_FromSpec(&column_spec);
    if (column_type == NULL) return -1;
    decode_error_type = PyErr_NewExceptionWithDoc(
        "xprof_py._native.DecodeError",
        "Bytes that are not the format they should be: `offset` in bytes, `place` (a path), `reason`.",
        PyExc_ValueError, NULL);
    if (decode_error_type == NULL) return -1;
    if (PyModule_AddObjectRef(module, "Column", (PyObject *)column_type) < 0) return -1;
    if (PyModule_AddObjectRef(module, "DecodeError", decode_error_type) < 0) return -1;
    return PyModule_AddFunctions(module, methods);
}
