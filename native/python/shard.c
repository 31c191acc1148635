/* The shard's decoder (decode/shard.h) for numpy. The GIL is released while it works; the caller's buffers are held.
 *
 * Ownership: results are Columns. */
#include "decode/shard.h"
#include "decode/shard_args.h"

#include <stdbool.h>

#include "module.h"

enum { TICKS, AT_PS, PS_PER_TICK, MAP_ARRAYS };

static const char *what_is_wrong_with(const Py_buffer *map) {
    for (int i = 0; i < MAP_ARRAYS; i++)
        if (map[i].itemsize != 8) return "every array of the map has 8 bytes a value";
    Py_ssize_t points = map[TICKS].len / 8, pieces = map[PS_PER_TICK].len / 8;
    if (map[AT_PS].len / 8 != points) return "as many ticks as times";
    if (pieces < 1 || points < pieces) return "one rate at least, and no more than points";
    return NULL;
}

static PyObject *columns_of(struct xpr_shard_events *e) {
    PyObject *dict = PyDict_New();
    if (!dict) return NULL;
    const struct {
        const char *name;
        void **data;
        size_t count;
        char format;
    } columns[] = {
        {"start_ps", (void **)&e->start_ps, e->count, 'q'},
        {"duration_ps", (void **)&e->duration_ps, e->count, 'q'},
        {"first", (void **)&e->first, e->count, 'i'},
        {"name", (void **)&e->name, e->count, 'i'},
        {"kind", (void **)&e->kind, e->count, 'B'},
        {"line_rows", (void **)&e->line_rows, e->lines, 'q'},
        {"line_unsorted", (void **)&e->line_unsorted, e->lines, 'B'},
        {"name_used", (void **)&e->name_used, e->names, 'B'},
    };
    const struct {
        const char *name;
        long long value;
    } totals[] = {
        {"broken", (long long)e->broken},
        {"open", (long long)e->open},
        {"with_arguments", (long long)e->with_arguments},
        {"odd_names", (long long)e->odd_names},
        {"end_ps", e->end_ps},
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof columns / sizeof *columns && !failed; i++)
        failed = xpr_py_set_new(dict, columns[i].name, xpr_py_column(columns[i].data, columns[i].count, columns[i].format));
    for (size_t i = 0; i < sizeof totals / sizeof *totals && !failed; i++)
        failed = xpr_py_set_new(dict, totals[i].name, PyLong_FromLongLong(totals[i].value));
    if (failed) Py_CLEAR(dict);
    return dict;
}

static PyObject *decode_shard_events(PyObject *module, PyObject *args) {
    PyObject *bodies, *objects[MAP_ARRAYS];
    Py_ssize_t lines, names;
    if (!PyArg_ParseTuple(args, "O!nOOOn:decode_shard_events", &PyList_Type, &bodies, &lines, &objects[0], &objects[1],
                          &objects[2], &names))
        return NULL;
    Py_ssize_t count = PyList_GET_SIZE(bodies), held = 0;
    Py_buffer *views = PyMem_Calloc((size_t)count + MAP_ARRAYS, sizeof *views);
    struct xpr_slot_run *runs = PyMem_Calloc((size_t)count + 1, sizeof *runs);
    struct xpr_shard_events events = {0};
    const char *wrong = lines < 0 || names < 0 ? "a count below 0" : NULL;
    PyObject *result = NULL;
    if (!views || !runs) {
        PyErr_NoMemory();
        goto release;
    }
    for (; held < MAP_ARRAYS; held++)
        if (PyObject_GetBuffer(objects[held], &views[held], PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0) goto release;
    if (!wrong) wrong = what_is_wrong_with(views);
    for (Py_ssize_t i = 0; i < count && !wrong; i++, held++) {
        PyObject *body;
        Py_ssize_t line;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(bodies, i), "nO", &line, &body)) goto release;
        Py_buffer *view = &views[held];
        if (PyObject_GetBuffer(body, view, PyBUF_C_CONTIGUOUS) < 0) goto release;
        if (line < 0 || line >= lines) wrong = "no such line";
        if (view->len % 32) wrong = "a part of a slot";
        runs[i] = (struct xpr_slot_run){view->buf, (size_t)view->len / 32, (size_t)line};
    }
    if (wrong) {
        PyErr_Format(PyExc_ValueError, "decode_shard_events: %s", wrong);
        goto release;
    }
    struct xpr_tick_map map = {views[TICKS].buf, views[AT_PS].buf, views[PS_PER_TICK].buf, (size_t)views[TICKS].len / 8,
                               (size_t)views[PS_PER_TICK].len / 8};
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    failed = xpr_decode_shard_events(runs, (size_t)count, (size_t)lines, map, (size_t)names, &events);
    Py_END_ALLOW_THREADS;
    result = failed ? PyErr_NoMemory() : columns_of(&events);
release:
    xpr_shard_events_free(&events);
    while (held > 0) PyBuffer_Release(&views[--held]);
    PyMem_Free(runs);
    PyMem_Free(views);
    return result;
}

static PyObject *columns_of_args(struct xpr_shard_args *a) {
    PyObject *dict = PyDict_New();
    if (!dict) return NULL;
    int failed = xpr_py_set_new(dict, "event", xpr_py_column((void **)&a->event, a->count, 'q'));
    if (!failed) failed = xpr_py_set_new(dict, "key", xpr_py_column((void **)&a->key, a->count, 'i'));
    if (!failed) failed = xpr_py_set_new(dict, "kind", xpr_py_column((void **)&a->kind, a->count, 'B'));
    if (!failed) failed = xpr_py_set_new(dict, "value", xpr_py_column((void **)&a->value, a->count, 'q'));
    if (!failed) failed = xpr_py_set_new(dict, "key_used", xpr_py_column((void **)&a->key_used, a->key_ids, 'B'));
    if (!failed) failed = xpr_py_set_new(dict, "text_used", xpr_py_column((void **)&a->text_used, a->text_ids, 'B'));
    if (!failed) failed = xpr_py_set_new(dict, "odd_texts", PyLong_FromUnsignedLongLong(a->odd_texts));
    if (!failed) failed = xpr_py_set_new(dict, "without_schema", PyLong_FromUnsignedLongLong(a->without_schema));
    if (failed) Py_CLEAR(dict);
    return dict;
}

enum { FIRST, COUNTS, AT, KEYS, KINDS, ARG_ARRAYS };

/* The schemas of the arrays, whose every index is within them; NULL, or what is wrong. */
static const char *arg_schemas_of(const Py_buffer *views, struct xpr_arg_schemas *schemas) {
    static const Py_ssize_t widths[ARG_ARRAYS] = {4, 1, 4, 4, 8};
    for (int i = 0; i < ARG_ARRAYS; i++)
        if (views[i].itemsize != widths[i]) return "an array has another width";
    *schemas = (struct xpr_arg_schemas){views[COUNTS].buf, views[AT].buf, views[KEYS].buf, views[KINDS].buf,
                                        (size_t)views[COUNTS].len, (size_t)views[KEYS].len / 4, 0};
    if ((size_t)views[AT].len / 4 != schemas->schemas || (size_t)views[KINDS].len / 8 != schemas->schemas)
        return "as many places and kinds as schemas";
    for (size_t i = 0; i < schemas->schemas; i++) {
        if (schemas->counts[i] == XPR_NO_SUCH_SCHEMA) continue;
        if (schemas->counts[i] > XPR_MOST_ARGS_OF_SLOTS || schemas->at[i] > schemas->key_places ||
            schemas->counts[i] > schemas->key_places - schemas->at[i])
            return "a schema's keys are not there";
    }
    for (size_t i = 0; i < schemas->key_places; i++)
        if (schemas->keys[i] >= schemas->key_ids) schemas->key_ids = (size_t)schemas->keys[i] + 1;
    return schemas->key_ids > XPR_MOST_KEY_IDS ? "keys are rows of a table" : NULL;
}

static PyObject *decode_shard_args(PyObject *module, PyObject *args) {
    PyObject *bodies, *objects[ARG_ARRAYS];
    Py_ssize_t texts;
    if (!PyArg_ParseTuple(args, "O!OOOOOn:decode_shard_args", &PyList_Type, &bodies, &objects[FIRST], &objects[COUNTS],
                          &objects[AT], &objects[KEYS], &objects[KINDS], &texts))
        return NULL;
    Py_ssize_t count = PyList_GET_SIZE(bodies), held = 0;
    Py_buffer *views = PyMem_Calloc((size_t)count + ARG_ARRAYS, sizeof *views);
    struct xpr_slot_run *runs = PyMem_Calloc((size_t)count + 1, sizeof *runs);
    struct xpr_shard_args found = {0};
    struct xpr_arg_schemas schemas;
    PyObject *result = NULL;
    if (!views || !runs) {
        PyErr_NoMemory();
        goto release;
    }
    for (; held < ARG_ARRAYS; held++)
        if (PyObject_GetBuffer(objects[held], &views[held], PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0) goto release;
    const char *wrong = texts < 0 ? "a count below 0" : arg_schemas_of(views, &schemas);
    size_t slots = 0;
    for (Py_ssize_t i = 0; i < count && !wrong; i++, held++) {
        Py_buffer *view = &views[held];
        if (PyObject_GetBuffer(PyList_GET_ITEM(bodies, i), view, PyBUF_C_CONTIGUOUS) < 0) goto release;
        if (view->len % 32) wrong = "a part of a slot";
        runs[i] = (struct xpr_slot_run){view->buf, (size_t)view->len / 32, 0};
        slots += runs[i].slots;
    }
    const uint32_t *first = views[FIRST].buf;
    size_t events = (size_t)views[FIRST].len / 4;
    for (size_t i = 0; i < events && !wrong; i++)
        if (first[i] >= slots) wrong = "no such slot";
    if (wrong) {
        PyErr_Format(PyExc_ValueError, "decode_shard_args: %s", wrong);
        goto release;
    }
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    failed = xpr_decode_shard_args(runs, (size_t)count, first, events, &schemas, (size_t)texts, &found);
    Py_END_ALLOW_THREADS;
    result = failed ? PyErr_NoMemory() : columns_of_args(&found);
release:
    xpr_shard_args_free(&found);
    while (held > 0) PyBuffer_Release(&views[--held]);
    PyMem_Free(runs);
    PyMem_Free(views);
    return result;
}

static PyObject *shard_checksum(PyObject *module, PyObject *args) {
    Py_buffer view;
    Py_ssize_t own;
    if (!PyArg_ParseTuple(args, "y*n:shard_checksum", &view, &own)) return NULL;
    uint64_t sum = 0;
    bool fits = view.len % 8 == 0 && own >= 0 && own % 8 == 0;
    if (fits) {
        Py_BEGIN_ALLOW_THREADS;
        sum = xpr_shard_checksum(view.buf, (size_t)view.len / 8, (size_t)own / 8);
        Py_END_ALLOW_THREADS;
    } else {
        PyErr_SetString(PyExc_ValueError, "shard_checksum wants whole words");
    }
    PyBuffer_Release(&view);
    return fits ? PyLong_FromUnsignedLongLong(sum) : NULL;
}

static PyMethodDef methods[] = {
    {"decode_shard_events", decode_shard_events, METH_VARARGS,
     "decode_shard_events(bodies, lines, ticks, at_ps, ps_per_tick, names, /)\n--\n\n"
     "The events of slots as columns (native/decode/shard.h). bodies: a list of (line, bytes of whole slots), lines below\n"
     "`lines`. ticks, at_ps, ps_per_tick: the map of ticks, uint64, int64, float64. names: ids below it are numbered.\n"
     "Raises ValueError for what does not fit together."},
    {"decode_shard_args", decode_shard_args, METH_VARARGS,
     "decode_shard_args(bodies, first, counts, at, keys, kinds, texts, /)\n--\n\n"
     "The arguments of events as columns (native/decode/shard_args.h). bodies: as for decode_shard_events, without their lines.\n"
     "first: the number of each event's first slot, uint32. counts (uint8), at (uint32), kinds (uint64): of each schema, 255 for\n"
     "none; keys: uint32. texts: ids of texts below it are numbered. Raises ValueError for what does not fit together."},
    {"shard_checksum", shard_checksum, METH_VARARGS,
     "shard_checksum(structure, own, /)\n--\n\n"
     "The checksum of shard_format.h; the word at byte `own` is taken as 0. Raises ValueError for half words."},
    {NULL, NULL, 0, NULL},
};

int xpr_py_add_shard(PyObject *module) { return PyModule_AddFunctions(module, methods); }
