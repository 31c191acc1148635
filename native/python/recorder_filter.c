/* Which spans and marks are wanted: those of a level and of categories, set at run time. Without a filter all are. */
#include "recorder_python.h"

bool xpr_filtering;
static bool limits_level;
static long most_level;
static PyObject *categories; /* frozenset, NULL: all */
static PyObject *key_level, *key_category;

static PyObject *value_of(const xpr_span *span, PyObject *key) {
    Py_ssize_t n = PyTuple_GET_SIZE(span->kwnames);
    for (Py_ssize_t i = 0; i < n; i++)
        if (PyTuple_GET_ITEM(span->kwnames, i) == key) return span->values[i]; /* both are interned */
    return NULL;
}

bool xpr_wanted(const xpr_span *span) {
    if (!span->kwnames || (span->kind != XPR_SPAN && span->kind != XPR_MARK)) return true;
    PyObject *level = limits_level ? value_of(span, key_level) : NULL;
    if (level && PyLong_Check(level)) {
        int overflow;
        long number = PyLong_AsLongAndOverflow(level, &overflow);
        if (overflow > 0 || (!overflow && number > most_level)) return false;
    }
    PyObject *category = categories ? value_of(span, key_category) : NULL;
    if (!category || !PyUnicode_CheckExact(category)) return true;
    int found = PySet_Contains(categories, category);
    if (found < 0) PyErr_Clear();
    return found != 0;
}

static PyObject *set_filter(PyObject *module, PyObject *args) {
    PyObject *level, *chosen;
    if (!PyArg_ParseTuple(args, "OO:set_filter", &level, &chosen)) return NULL;
    long most = 0;
    if (level != Py_None && (most = PyLong_AsLong(level)) == -1 && PyErr_Occurred()) return NULL;
    PyObject *set = chosen == Py_None ? NULL : PyFrozenSet_New(chosen);
    if (chosen != Py_None && !set) return NULL;
    PyObject *old = categories;
    categories = set;
    limits_level = level != Py_None;
    most_level = most;
    xpr_filtering = limits_level || set;
    Py_XDECREF(old);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"set_filter", set_filter, METH_VARARGS, "set_filter(level, categories, /)\n--\n\nSee xprof_py.set_filter; None: no limit."},
    {NULL, NULL, 0, NULL},
};

int xpr_add_filter(PyObject *module) {
    key_level = PyUnicode_InternFromString("level");
    key_category = PyUnicode_InternFromString("category");
    if (!key_level || !key_category) return -1;
    return PyModule_AddFunctions(module, functions);
}
