// XPROF_PY_SCOPE in C++17: nested, two in one function, left by an exception; and two files of one library.
#include <stdexcept>

#include "xprof_py/trace.h"

namespace {
int fall(int depth) {
    XPROF_PY_SCOPE("fall");
    XPROF_PY_SCOPE("fall too");
    if (depth == 0) throw std::runtime_error("landed");
    return fall(depth - 1);
}
}  // namespace

extern "C" __attribute__((visibility("default"))) int trace_scope(int depth) {
    try {
        return fall(depth);
    } catch (const std::runtime_error &) {
        return -1;
    }
}
