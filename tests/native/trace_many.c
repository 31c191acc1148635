/* Many spans through trace.h, each with a number of its own, from whichever thread calls. */
#include "xprof_py/trace.h"

XPROF_PY_SITE_KEY(counted, "counted", "number");

__attribute__((visibility("default"))) void many(int64_t first, int64_t count);

void many(int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; i++) {
        xprof_py_span span = xprof_py_begin_at(&counted);
        xprof_py_end_value(&counted, span, i);
    }
}
