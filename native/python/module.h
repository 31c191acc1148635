/* Python.h lives in native/python only; each file there adds its own names to the one extension module. */
#ifndef XPROF_PY_MODULE_H
#define XPROF_PY_MODULE_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* All return 0, or -1 with a Python exception set. */
int xpr_py_add_recorder(PyObject *module);
int xpr_py_add_prober(PyObject *module);
int xpr_py_add_decode(PyObject *module);
int xpr_py_add_kernels(PyObject *module); /* after decode: it makes Columns */
int xpr_py_add_lines(PyObject *module);

/* A Column of `count` values over the malloc'ed *data, which it takes over, also when it fails. decode.c */
PyObject *xpr_py_column(void **data, size_t count, char format);

#endif
