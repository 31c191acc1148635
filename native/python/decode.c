#include "module.h"
int xpr_py_add_decode(PyObject *module) { return module ? 0 : -1; }
