/* Python.h lives in native/python only; each file there adds its own names to the one extension module. */
#ifndef XPROF_PY_MODULE_H
#define XPROF_PY_MODULE_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "columns/columns.h"
#include "decode/place.h"
#include "decode/xspace.h"

/* All return 0, or -1 with a Python exception set. */
int xpr_py_add_recorder(PyObject *module);
int xpr_py_add_prober(PyObject *module);
int xpr_py_add_cupti(PyObject *module);
int xpr_py_add_power(PyObject *module);
int xpr_py_add_pjrt(PyObject *module);
int xpr_py_add_column_memory(PyObject *module);
int xpr_py_add_decode(PyObject *module);
int xpr_py_add_xspace_slices(PyObject *module); /* after decode */
int xpr_py_add_chrome_json(PyObject *module);
int xpr_py_add_kernels(PyObject *module); /* after decode: it makes Columns */
int xpr_py_add_lines(PyObject *module);
int xpr_py_add_replay(PyObject *module);
int xpr_py_add_shard(PyObject *module); /* after decode */

/* A Column of `count` values over *data (of malloc, or columns/memory.h), which it takes over, also when it fails.
 * decode.c */
PyObject *xpr_py_column(void **data, size_t count, char format);
/* Into `dict`: a new reference (NULL fails), a table as a dictionary of Columns, strings as (offsets, bytes). The columns
 * are taken over. decode.c */
int xpr_py_set_new(PyObject *dict, const char *name, PyObject *value);
int xpr_py_add_table(PyObject *dict, const char *name, xpr_table *table);
int xpr_py_add_strings(PyObject *dict, const char *name, xpr_strings *strings);
/* The dictionary that decode_xspace returns; the columns are taken over. decode.c */
PyObject *xpr_py_xspace_columns(xpr_xspace *space);
/* Sets a DecodeError, or a MemoryError. decode.c */
void xpr_py_raise_decode_error(const xpr_decode_error *error);

#endif
