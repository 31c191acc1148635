/* The one extension module, xprof_py._native. */
#include "module.h"
#include "recorder/trace_table.h"

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "xprof_py._native", "C core of xprof_py: recorder, decoders and kernels.", -1, NULL,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    if (xpr_py_add_recorder(module) < 0 || xpr_py_add_prober(module) < 0 || xpr_py_add_cupti(module) < 0 ||
        xpr_py_add_power(module) < 0 || xpr_py_add_pjrt(module) < 0 || xpr_py_add_column_memory(module) < 0 || xpr_py_add_decode(module) < 0 ||
        xpr_py_add_xspace_slices(module) < 0 || xpr_py_add_chrome_json(module) < 0 ||
        xpr_py_add_kernels(module) < 0 || xpr_py_add_lines(module) < 0 || xpr_py_add_replay(module) < 0 ||
        xpr_py_add_shard(module) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    xpr_publish_trace_table();
    return module;
}
