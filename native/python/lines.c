/* fit_line: kernels/envelope.h for numpy arrays. The GIL is released while it works; the caller's buffers are held. */
#include <string.h>

#include "kernels/envelope.h"
#include "module.h"

enum { UPPER_T, UPPER_Y, LOWER_T, LOWER_Y, AT, LOW, HIGH, ARRAYS };

PyDoc_STRVAR(fit_line_doc,
             "fit_line(upper_t, upper_y, lower_t, lower_y, at, low, high, slope_min, slope_max)\n"
             "    -> (at, value, slope, margin, slope_low, slope_high)\n\n"
             "The line of largest margin below the upper and above the lower points, both in order of time; into low and\n"
             "high, the extremes over all possible lines at the times `at`. All arrays are contiguous float64. Raises\n"
             "ValueError for arrays that do not fit together or have no points.");

static PyObject *fit_line(PyObject *module, PyObject *args) {
    PyObject *objects[ARRAYS];
    double slope_min, slope_max;
    if (!PyArg_ParseTuple(args, "OOOOOOOdd:fit_line", &objects[0], &objects[1], &objects[2], &objects[3], &objects[4],
                          &objects[5], &objects[6], &slope_min, &slope_max))
        return NULL;
    Py_buffer views[ARRAYS];
    PyObject *result = NULL;
    int held = 0;
    for (; held < ARRAYS; held++) {
        int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (held >= LOW ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(objects[held], &views[held], flags) < 0) goto done;
        if (views[held].format == NULL || strcmp(views[held].format, "d") != 0) {
            held++;
            PyErr_SetString(PyExc_ValueError, "fit_line: every array must be float64");
            goto done;
        }
    }
    if (views[UPPER_T].len != views[UPPER_Y].len || views[LOWER_T].len != views[LOWER_Y].len ||
        views[AT].len != views[LOW].len || views[AT].len != views[HIGH].len || !views[UPPER_T].len ||
        !views[LOWER_T].len) {
        PyErr_SetString(PyExc_ValueError, "fit_line: arrays of different lengths, or a side without points");
        goto done;
    }
    struct xpr_points upper = {views[UPPER_T].buf, views[UPPER_Y].buf, (size_t)views[UPPER_T].len / sizeof(double)};
    struct xpr_points lower = {views[LOWER_T].buf, views[LOWER_Y].buf, (size_t)views[LOWER_T].len / sizeof(double)};
    struct xpr_line line;
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    failed = xpr_fit_line(upper, lower, slope_min, slope_max, &line, views[AT].buf,
                          (size_t)views[AT].len / sizeof(double), views[LOW].buf, views[HIGH].buf);
    Py_END_ALLOW_THREADS;
    result = failed ? PyErr_NoMemory()
                    : Py_BuildValue("dddddd", line.at, line.value, line.slope, line.margin, line.slope_low,
                                    line.slope_high);
done:
    while (held--) PyBuffer_Release(&views[held]);
    return result;
}

static PyMethodDef methods[] = {{"fit_line", fit_line, METH_VARARGS, fit_line_doc}, {NULL, NULL, 0, NULL}};

int xpr_py_add_lines(PyObject *module) { return PyModule_AddFunctions(module, methods); }
