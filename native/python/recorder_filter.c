/* Which spans and marks are wanted: those of a level and of categories, set at run time. Without a filter all are. The core
 * is told as well (recorder/filter.h), for threads of C. */
#include "recorder_python.h"

#include "recorder/filter.h"

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

/* The program goes on: what it said of a span makes no sense to the filter, which then passes it. Once for each argument. */
static void say_that_it_passes(PyObject *key, PyObject *value, const char *wanted, bool *said) {
    if (*said) return;
    *said = true;
    PyObject *messages = PyImport_ImportModule("xprof_py.messages");
    PyObject *text = PyUnicode_FromFormat(
        "%U= of a span or mark wants %s, not %R: the filter passes such ones, whatever it is set to", key, wanted, value);
    PyObject *done = messages && text ? PyObject_CallMethod(messages, "warn", "O", text) : NULL;
    Py_XDECREF(done);
    Py_XDECREF(text);
    Py_XDECREF(messages);
    PyErr_Clear();
}

bool xpr_wanted(const xpr_span *span) {
    static bool said_level, said_category;
    if (!span->kwnames || (span->kind != XPR_SPAN && span->kind != XPR_MARK)) return true;
    PyObject *level = limits_level ? value_of(span, key_level) : NULL;
    if (level && PyLong_Check(level)) {
        int overflow;
        long number = PyLong_AsLongAndOverflow(level, &overflow);
        if (overflow > 0 || (!overflow && number > most_level)) return false;
    } else if (level && level != Py_None) {
        say_that_it_passes(key_level, level, "a whole number", &said_level);
    }
    PyObject *category = categories ? value_of(span, key_category) : NULL;
    if (category && category != Py_None && !PyUnicode_Check(category))
        say_that_it_passes(key_category, category, "a text", &said_category);
    if (!category || !PyUnicode_CheckExact(category)) return true;
    int found = PySet_Contains(categories, category);
    if (found < 0) PyErr_Clear();
    return found != 0;
}

/* False: an exception is set and the core's filter is as it was. What is no text is no category of C's. */
static bool tell_core(const long *level, PyObject *set) {
    PyObject *list = set ? PySequence_List(set) : NULL;
    if (set && !list) return false;
    Py_ssize_t all = list ? PyList_GET_SIZE(list) : 0, count = 0;
    const char **texts = list ? PyMem_Calloc((size_t)all + 1, sizeof *texts) : NULL;
    for (Py_ssize_t i = 0; texts && i < all; i++) {
        PyObject *text = PyList_GET_ITEM(list, i);
        if (PyUnicode_Check(text) && !(texts[count] = PyUnicode_AsUTF8(text))) PyErr_Clear();
        count += texts[count] != NULL;
    }
    int64_t most = level ? *level : 0;
    bool told = (!list || texts) && xpr_filter_set(level ? &most : NULL, texts, (size_t)count);
    PyMem_Free(texts);
    Py_XDECREF(list);
    if (!told) PyErr_NoMemory();
    return told;
}

static PyObject *filter_in_force(void) {
    PyObject *level = limits_level ? PyLong_FromLong(most_level) : Py_NewRef(Py_None);
    return level ? Py_BuildValue("(NO)", level, categories ? categories : Py_None) : NULL;
}

static PyObject *set_filter(PyObject *module, PyObject *args) {
    PyObject *level, *chosen;
    if (!PyArg_ParseTuple(args, "OO:set_filter", &level, &chosen)) return NULL;
    long most = 0;
    if (level != Py_None && (most = PyLong_AsLong(level)) == -1 && PyErr_Occurred()) return NULL;
    PyObject *set = chosen == Py_None ? NULL : PyFrozenSet_New(chosen);
    if (chosen != Py_None && !set) return NULL;
    PyObject *before = filter_in_force();
    if (!before || !tell_core(level == Py_None ? NULL : &most, set)) {
        Py_XDECREF(before);
        Py_XDECREF(set);
        return NULL;
    }
    PyObject *old = categories;
    categories = set;
    limits_level = level != Py_None;
    most_level = most;
    xpr_filtering = limits_level || set;
    Py_XDECREF(old);
    return before;
}

static PyMethodDef functions[] = {
    {"set_filter", set_filter, METH_VARARGS, 
     "set_filter(level, categories, /)\n--\n\n"
     "See xprof_py.set_filter; None: no limit. Returns (level, categories) of the filter before."},
    {NULL, NULL, 0, NULL},
};

int xpr_add_filter(PyObject *module) {
    key_level = PyUnicode_InternFromString("level");
    key_category = PyUnicode_InternFromString("category");
    if (!key_level || !key_category) return -1;
    return PyModule_AddFunctions(module, functions);
}
