// XPROF_PY_SCOPE in C++17: nested, several in one function, one with a level and a category, left by an exception; and two files of one library.
#include <stdexcept>

#include "xprof_py/trace.h"

namespace {
int fall(int depth) {
    XPROF_PY_SCOPE("fall");
    XPROF_PY_SCOPE("fall too");
    XPROF_PY_SCOPE_FILTERED("fall finely", 3, "gravity");
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
