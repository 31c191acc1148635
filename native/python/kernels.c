/* The kernels on sorted columns, for numpy: every argument is a contiguous buffer of the stated type.
 *
 * Ownership: results are Columns. Threading: the GIL is released while a kernel runs; the buffers are held. */
#include "columns/memory.h"
#include "kernels/innermost.h"
#include "kernels/place_events.h"
#include "kernels/rows_by_code.h"
#include "kernels/shares.h"

#include "module.h"

enum { BUFFERS = 12 };
static const char buffer_types[BUFFERS + 1] = "qqibqbqqqbqq";

static bool is_type(const Py_buffer *view, char type) {
    const char *format = view->format ? view->format : "B";
    if (*format == '@' || *format == '=' || *format == '<') format++;
    if (type == 'q') return view->itemsize == 8 && (*format == 'q' || *format == 'l');
    if (type == 'i') return view->itemsize == 4 && (*format == 'i' || *format == 'l');
    return view->itemsize == 1 && *format == type;
}

static Py_ssize_t length_of(const Py_buffer *view) { return view->len / view->itemsize; }

/* Lengths that belong together, rows that exist and names that have a meaning: the kernel itself looks at none. */
static const char *what_is_wrong(const Py_buffer *views, Py_ssize_t first, Py_ssize_t count) {
    Py_ssize_t events = length_of(&views[0]);
    if (length_of(&views[1]) != events || length_of(&views[2]) != events) return "event columns differ in length";
    if (first < 0 || count < 0 || first > events || count > events - first) return "no such rows of events";
    if (length_of(&views[4]) != length_of(&views[5])) return "special columns differ in length";
    for (int i = 7; i < 10; i++)
        if (length_of(&views[i]) != length_of(&views[6])) return "columns of more spans differ in length";
    if (length_of(&views[10]) != length_of(&views[11])) return "keep columns differ in length";
    const int32_t *name = views[2].buf;
    uint32_t names = length_of(&views[3]) > INT32_MAX ? INT32_MAX : (uint32_t)length_of(&views[3]);
    bool out = false; /* without an early end the compiler looks at several at once */
    for (size_t row = (size_t)first, end = (size_t)(first + count); row < end;) {
        size_t from = row, stop = xpr_end_of_rows(row, end);
        for (; row < stop; row++) out |= (uint32_t)name[row] >= names;
        xpr_column_passed(name, from * sizeof *name, stop * sizeof *name);
    }
    return out ? "a name without a meaning" : NULL;
}

static PyObject *pieces_columns(xpr_pieces *pieces) {
    void *data[4] = {pieces->start_ps, pieces->end_ps, pieces->event, pieces->says};
    size_t count = pieces->count;
    memset(pieces, 0, sizeof *pieces);
    PyObject *columns = PyTuple_New(4);
    for (int i = 0; i < 4; i++) {
        PyObject *column = columns ? xpr_py_column(&data[i], count, i < 3 ? 'q' : 'b') : NULL;
        if (column == NULL) {
            for (int left = i; left < 4; left++) free(data[left]);
            Py_XDECREF(columns);
            return NULL;
        }
        PyTuple_SET_ITEM(columns, i, column);
    }
    return columns;
}

static PyObject *innermost(PyObject *self, PyObject *args) {
    PyObject *objects[BUFFERS];
    Py_ssize_t first, count;
    int strong, join_alike;
    if (!PyArg_ParseTuple(args, "OOOnnOOOOOOOOOip:innermost", &objects[0], &objects[1], &objects[2], &first, &count,
                          &objects[3], &objects[4], &objects[5], &objects[6], &objects[7], &objects[8], &objects[9],
                          &objects[10], &objects[11], &strong, &join_alike))
        return NULL;
    Py_buffer views[BUFFERS];
    int held = 0;
    PyObject *result = NULL;
    for (; held < BUFFERS; held++) {
        if (PyObject_GetBuffer(objects[held], &views[held], PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) < 0) goto release;
        if (!is_type(&views[held], buffer_types[held])) {
            PyErr_Format(PyExc_TypeError, "innermost: buffer %d is not of type '%c'", held, buffer_types[held]);
            held++;
            goto release;
        }
    }
    const char *wrong = what_is_wrong(views, first, count);
    if (wrong) {
        PyErr_Format(PyExc_ValueError, "innermost: %s", wrong);
        goto release;
    }
    xpr_line_spans line = {views[0].buf, views[1].buf, views[2].buf, (size_t)first, (size_t)count, views[3].buf,
                           views[4].buf, views[5].buf, (size_t)length_of(&views[4])};
    xpr_more_spans more = {views[6].buf, views[7].buf, views[8].buf, views[9].buf, (size_t)length_of(&views[6])};
    xpr_keep keep = {views[10].buf, views[11].buf, (size_t)length_of(&views[10])};
    xpr_pieces pieces;
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    failed = xpr_innermost(&line, &more, &keep, (int8_t)strong, join_alike != 0, &pieces);
    Py_END_ALLOW_THREADS;
    result = failed ? PyErr_NoMemory() : pieces_columns(&pieces);
release:
    while (held > 0) PyBuffer_Release(&views[--held]);
    return result;
}

enum { LINE, METADATA, START, DURATION, NAME, LINE_BASE, NAME_OF_METADATA, EVENT_BUFFERS };
static const char event_types[EVENT_BUFFERS + 1] = "iiqqiqi";

static PyObject *place_events(PyObject *self, PyObject *args) {
    PyObject *objects[EVENT_BUFFERS];
    if (!PyArg_ParseTuple(args, "OOOOOOO:place_events", &objects[0], &objects[1], &objects[2], &objects[3], &objects[4],
                          &objects[5], &objects[6]))
        return NULL;
    Py_buffer views[EVENT_BUFFERS];
    int held = 0;
    PyObject *result = NULL;
    for (; held < EVENT_BUFFERS; held++) {
        int flags = PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (held >= START && held <= NAME ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(objects[held], &views[held], flags) < 0) goto release;
        if (!is_type(&views[held], event_types[held])) {
            PyErr_Format(PyExc_TypeError, "place_events: buffer %d is not of type '%c'", held, event_types[held]);
            held++;
            goto release;
        }
    }
    size_t count = (size_t)length_of(&views[LINE]);
    for (int i = METADATA; i <= NAME; i++)
        if ((size_t)length_of(&views[i]) != count) {
            PyErr_SetString(PyExc_ValueError, "place_events: event columns differ in length");
            goto release;
        }
    xpr_events_to_place events = {views[LINE].buf,
                                  views[METADATA].buf,
                                  views[START].buf,
                                  views[DURATION].buf,
                                  views[NAME].buf,
                                  count,
                                  views[LINE_BASE].buf,
                                  (size_t)length_of(&views[LINE_BASE]),
                                  views[NAME_OF_METADATA].buf,
                                  (size_t)length_of(&views[NAME_OF_METADATA])};
    xpr_placed_events placed;
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    failed = xpr_place_events(&events, &placed);
    Py_END_ALLOW_THREADS;
    if (failed) {
        PyErr_SetString(PyExc_ValueError, "place_events: an event of no line or without metadata");
        goto release;
    }
    result = Py_BuildValue("NnL", PyBool_FromLong(placed.in_order), (Py_ssize_t)placed.negative,
                           (long long)placed.end_ps);
release:
    while (held > 0) PyBuffer_Release(&views[--held]);
    return result;
}

static PyObject *all_within(PyObject *self, PyObject *args) {
    Py_buffer view;
    PyObject *object;
    long long limit;
    if (!PyArg_ParseTuple(args, "OL:all_within", &object, &limit)) return NULL;
    if (PyObject_GetBuffer(object, &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) < 0) return NULL;
    if (!is_type(&view, 'q')) {
        PyBuffer_Release(&view);
        PyErr_SetString(PyExc_TypeError, "all_within: the column is not int64");
        return NULL;
    }
    bool within;
    Py_BEGIN_ALLOW_THREADS;
    within = xpr_all_within(view.buf, (size_t)length_of(&view), limit);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&view);
    return PyBool_FromLong(within);
}

static PyObject *rows_by_code(PyObject *self, PyObject *args) {
    PyObject *objects[2];
    Py_buffer views[2];
    if (!PyArg_ParseTuple(args, "OO:rows_by_code", &objects[0], &objects[1])) return NULL;
    int held = 0;
    PyObject *rows_column = NULL, *begin_column = NULL;
    void *begin = NULL, *next = NULL, *rows = NULL;
    for (; held < 2; held++)
        if (PyObject_GetBuffer(objects[held], &views[held], PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) < 0) goto release;
    if (!is_type(&views[0], 'i') || views[1].itemsize != 1) {
        PyErr_SetString(PyExc_TypeError, "rows_by_code: code must be int32 and keep of one byte");
        goto release;
    }
    size_t count = (size_t)length_of(&views[0]), codes = (size_t)length_of(&views[1]);
    if (count > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "rows_by_code: more than 2^31 rows");
        goto release;
    }
    begin = calloc(codes + 1, sizeof(int64_t));
    next = malloc((codes + 1) * sizeof(int64_t));
    if (begin == NULL || next == NULL) {
        PyErr_NoMemory();
        goto release;
    }
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    failed = xpr_count_codes(views[0].buf, count, views[1].buf, codes, begin);
    if (!failed && (rows = xpr_column_alloc(((size_t)((int64_t *)begin)[codes] + 1) * sizeof(int32_t))) != NULL)
        xpr_rows_by_code(views[0].buf, count, views[1].buf, codes, begin, next, rows);
    Py_END_ALLOW_THREADS;
    if (failed) {
        PyErr_SetString(PyExc_ValueError, "rows_by_code: a code out of range");
    } else if (rows == NULL) {
        PyErr_NoMemory();
    } else {
        rows_column = xpr_py_column(&rows, (size_t)((int64_t *)begin)[codes], 'i');
        begin_column = xpr_py_column(&begin, codes + 1, 'q');
    }
release:
    free(begin);
    free(next);
    xpr_column_free(rows);
    while (held > 0) PyBuffer_Release(&views[--held]);
    PyObject *result = rows_column && begin_column ? PyTuple_Pack(2, rows_column, begin_column) : NULL;
    Py_XDECREF(rows_column);
    Py_XDECREF(begin_column);
    return result;
}

enum { SHARE_PIECES = 8, SHARE_BUFFERS = 13 };

/* The kernel itself looks at no index. Returns what does not fit, or NULL. */
static const char *shares_wrong(const Py_buffer *views) {
    for (int i = 0; i < SHARE_BUFFERS; i++)
        if (views[i].len != views[i < SHARE_PIECES ? 0 : SHARE_PIECES].len) return "columns differ in length";
    const int64_t *first = views[SHARE_PIECES].buf, *behind = views[SHARE_PIECES + 1].buf;
    for (Py_ssize_t i = 0; i < length_of(&views[SHARE_PIECES]); i++)
        if (first[i] < 0 || behind[i] < first[i] || behind[i] > length_of(&views[0])) return "no such pieces";
    return NULL;
}

static PyObject *shares_columns(xpr_shares *shares) {
    PyObject *columns = PyTuple_New(XPR_SHARE_COLUMNS);
    for (int i = 0; columns != NULL && i < XPR_SHARE_COLUMNS; i++) {
        void *column_of = shares->columns[i];
        shares->columns[i] = NULL;
        PyObject *column = xpr_py_column(&column_of, shares->count, 'q');
        if (column == NULL) Py_CLEAR(columns);
        else PyTuple_SET_ITEM(columns, i, column);
    }
    xpr_shares_free(shares);
    return columns;
}

static PyObject *share_out(PyObject *self, PyObject *args) {
    Py_buffer views[SHARE_BUFFERS];
    int held = 0;
    PyObject *result = NULL;
    if (PyTuple_GET_SIZE(args) != SHARE_BUFFERS)
        return PyErr_Format(PyExc_TypeError, "share_out: %d columns are wanted", SHARE_BUFFERS);
    while (held < SHARE_BUFFERS) {
        Py_buffer *view = &views[held];
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(args, held), view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) < 0) goto release;
        held++;
        if (!is_type(view, 'q')) {
            PyErr_SetString(PyExc_TypeError, "share_out: a column is not int64");
            goto release;
        }
    }
    const char *wrong = shares_wrong(views);
    if (wrong) {
        PyErr_Format(PyExc_ValueError, "share_out: %s", wrong);
        goto release;
    }
    xpr_host_pieces pieces = {views[0].buf, views[1].buf, views[2].buf, views[3].buf,
                              views[4].buf, views[5].buf, views[6].buf, views[7].buf};
    xpr_late_gaps gaps = {views[8].buf, views[9].buf, views[10].buf, views[11].buf, views[12].buf,
                          (size_t)length_of(&views[SHARE_PIECES])};
    xpr_shares shares;
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    failed = xpr_share_out(&pieces, &gaps, &shares);
    Py_END_ALLOW_THREADS;
    result = failed ? PyErr_NoMemory() : shares_columns(&shares);
release:
    while (held > 0) PyBuffer_Release(&views[--held]);
    return result;
}

static PyMethodDef methods[] = {
    {"share_out", share_out, METH_VARARGS,
     "share_out(start_ps, end_ps, cause, step, function, text, event, stack,\n"
     "          first, behind, since_ps, until_ps, first_step) -> (gap, cause, step, length_ps, text, event, stack)\n\n"
     "The pieces of host work that gaps are shared by, summed up (native/kernels/shares.h); all int64. Raises TypeError\n"
     "and ValueError for columns that do not fit together."},
    {"rows_by_code", rows_by_code, METH_VARARGS,
     "rows_by_code(code, keep) -> (rows, begin)\n\n"
     "Rows (int32) of an int32 column by code and then in order; those of code c are begin[c] (int64) to begin[c + 1].\n"
     "`keep`: a byte per code, 0 leaves its rows out. Raises TypeError and ValueError for what does not fit together."},
    {"place_events", place_events, METH_VARARGS,
     "place_events(line, metadata, start_ps, duration_ps, name, line_base_ps, name_of_metadata)\n"
     "-> (in_order, negative, end_ps)\n\n"
     "The events of an XSpace, or a stretch of them, on one time axis and with their names, in place\n"
     "(native/kernels/place_events.h). Times int64, the rest int32.\n"
     "Raises TypeError and ValueError for columns that do not fit together."},
    {"all_within", all_within, METH_VARARGS,
     "all_within(column, limit) -> bool\n\nWhether all values of an int64 column are above -limit and below limit."},
    {"innermost", innermost, METH_VARARGS,
     "innermost(start_ps, duration_ps, name, first, count, name_says, special_rows, special_says, more_start_ps,\n"
     "          more_end_ps, more_event, more_says, keep_start_ps, keep_end_ps, strong, join_alike)\n"
     "-> (start_ps, end_ps, event, says) of the pieces\n\n"
     "Rows [first, first + count) of the event columns and the other spans, flattened (native/kernels/innermost.h).\n"
     "Times, rows and events int64, name int32, what they say int8. Raises TypeError and ValueError for columns that\n"
     "do not fit together."},
    {NULL, NULL, 0, NULL},
};

int xpr_py_add_kernels(PyObject *module) { return PyModule_AddFunctions(module, methods); }
