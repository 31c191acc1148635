/* Python.h lives in native/python only; each file there adds its own names to the one extension module. */
#ifndef XPROF_PY_MODULE_H
#define XPROF_PY_MODULE_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Both return 0, or -1 with a Python exception set. */
int xpr_py_add_recorder(PyObject *module);
int xpr_py_add_decode(PyObject *module);
int xpr_py_add_kernels(PyObject *module);

#endif
