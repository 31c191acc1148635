/* Frames read with the GIL, through Python's public calls. Runs no Python code and keeps nothing alive. */
#include "stack_frames.h"

enum { FRAME_CACHE = 2048 };

/* Keyed by what tells one place of one function from another; no reference is held, so that the sampler keeps nothing of
 * the program's alive. */
static struct {
    const void *code, *file, *function;
    int first_line, instruction;
    uint32_t id;
} frame_cache[FRAME_CACHE];

void xpr_forget_frames_with_gil(void) { memset(frame_cache, 0, sizeof frame_cache); }

static uint32_t text_id(PyObject *text) {
    bool is_new;
    Py_ssize_t bytes;
    const char *utf8 = text && PyUnicode_Check(text) ? PyUnicode_AsUTF8AndSize(text, &bytes) : NULL;
    if (utf8) return xpr_intern(utf8, (size_t)bytes, XPR_USE_TEXT, &is_new);
    PyErr_Clear();
    /* Lone surrogates, as in the name of a file that is not UTF-8. */
    PyObject *encoded = text && PyUnicode_Check(text) ? PyUnicode_AsEncodedString(text, "utf-8", "backslashreplace") : NULL;
    PyErr_Clear();
    uint32_t id = encoded ? xpr_intern(PyBytes_AS_STRING(encoded), (size_t)PyBytes_GET_SIZE(encoded), XPR_USE_TEXT, &is_new)
                          : XPR_MORE_TEXTS;
    Py_XDECREF(encoded);
    return id;
}

static uint32_t frame_id(PyFrameObject *frame) {
    PyCodeObject *code = PyFrame_GetCode(frame);
    int instruction = PyFrame_GetLasti(frame);
    uintptr_t hash = ((uintptr_t)code >> 4) * 31 + (uintptr_t)(unsigned)instruction;
    unsigned at = (unsigned)(hash ^ hash >> 11) % FRAME_CACHE;
    if (frame_cache[at].code != code || frame_cache[at].instruction != instruction ||
        frame_cache[at].file != code->co_filename || frame_cache[at].function != code->co_qualname ||
        frame_cache[at].first_line != code->co_firstlineno || !frame_cache[at].id) {
        int line = PyFrame_GetLineNumber(frame);
        frame_cache[at].id = xpr_intern_frame(text_id(code->co_filename), text_id(code->co_qualname), line > 0 ? (uint32_t)line : 0);
        frame_cache[at].code = code;
        frame_cache[at].file = code->co_filename;
        frame_cache[at].function = code->co_qualname;
        frame_cache[at].first_line = code->co_firstlineno;
        frame_cache[at].instruction = instruction;
    }
    uint32_t id = frame_cache[at].id;
    Py_DECREF(code); /* the frame holds it as well */
    return id;
}

uint32_t xpr_stack_with_gil(PyThreadState *state) {
    uint32_t frames[XPR_MAX_STACK_DEPTH + 1];
    uint32_t depth = 0;
    PyFrameObject *frame = PyThreadState_GetFrame(state);
    while (frame && depth < XPR_MAX_STACK_DEPTH) {
        frames[depth++] = frame_id(frame);
        PyFrameObject *outer = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = outer;
    }
    if (frame) {
        frames[depth++] = 0;
        Py_DECREF(frame);
    }
    PyErr_Clear();
    return xpr_intern_stack(frames, depth);
}

/* Threads are found anew each time: a state that is kept could be that of a thread that has ended. */
PyThreadState *xpr_find_thread(uint64_t id, unsigned long ident) {
    PyThreadState *state = PyInterpreterState_ThreadHead(PyInterpreterState_Main());
    for (; state; state = PyThreadState_Next(state))
        if (state->thread_id == ident && (!id || PyThreadState_GetID(state) == id)) return state;
    return NULL;
}
