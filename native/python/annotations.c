#include "module.h"
int xpr_py_add_recorder(PyObject *module) { return module ? 0 : -1; }
