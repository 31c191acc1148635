/* Two ways to read a thread's Python frames into one interned stack: with the GIL (gil_frames.c), through Python's public
 * calls; and from memory (memory_frames.c, memory_code.c), without the GIL and without the thread's knowing. */
#ifndef XPROF_PY_STACK_FRAMES_H
#define XPROF_PY_STACK_FRAMES_H

#include "module.h"
#include "recorder/own_memory.h"
#include "recorder/samples.h"

/* --- with the GIL: gil_frames.c */

/* The thread's state, NULL if it has ended. `id` 0: known by its ident alone. */
PyThreadState *xpr_find_thread(uint64_t id, unsigned long ident);
uint32_t xpr_stack_with_gil(PyThreadState *state);
void xpr_forget_frames_with_gil(void);

/* --- from memory: memory_frames.c. One thread at a time, but for the self-test's reader, which is its own. */

enum {
    XPR_MAX_LINKS = XPR_MAX_STACK_DEPTH + 32, /* frames walked: some are incomplete, or stand for C code */
};

/* A thread whose frames are read, and where they were the last time: that saves asking the way. */
struct xpr_watched {
    PyThreadState *state;
    uint64_t id;
    unsigned long ident;
    uintptr_t back_link, head, low, high; /* places to read: who lists the state; its top frame's address; its data stack */
    uint32_t loose_count;
    uintptr_t loose[XPR_MAX_LINKS]; /* frames that lie elsewhere: generators', those of C calls, an older chunk's */
};

enum xpr_read {
    XPR_READ,
    XPR_TORN,  /* it moved each time, or what was found cannot be true: nothing is known */
    XPR_ENDED, /* this state is no longer that of the thread */
};

/* With the GIL, which nothing after it needs. */
void xpr_watch(struct xpr_watched *watched, PyThreadState *state);
/* NULL, or why frames cannot be read from memory: then the memory is closed. */
const char *xpr_memory_frames_open(void);
void xpr_memory_frames_close(void);
enum xpr_read xpr_stack_from_memory(struct xpr_watched *watched, uint32_t *stack);
/* With the GIL: reads the calling thread's own frames both ways. NULL if they are the same; else what is not, as text that
 * stays until the next call. */
const char *xpr_memory_frames_differ(void);

/* --- code objects in memory: memory_code.c */

/* What one frame says: a place in a code object. */
struct xpr_code_place {
    uintptr_t code, instruction;
    bool has_begun; /* whatever its instruction: a generator's frame */
};

struct xpr_frame_text {
    char *file, *function; /* UTF-8, in buffers of XPR_FRAME_TEXT_BYTES */
    size_t file_bytes, function_bytes;
    uint32_t line; /* 0: none */
};

enum {
    XPR_FRAME_TEXT_CHARACTERS = XPR_MAX_STRING_BYTES, /* of a name; what is longer is cut off when it is interned */
    XPR_FRAME_TEXT_BYTES = 6 * XPR_FRAME_TEXT_CHARACTERS,
    XPR_MAX_LINE_TABLE_BYTES = 64 << 10, /* read at once; a place behind them has no line */
};

enum xpr_frame_kind { XPR_FRAME_TORN, XPR_FRAME_INCOMPLETE, XPR_FRAME_KNOWN, XPR_FRAME_NEW };

/* For each place its kind, and its id where it is known. False: nothing could be read. */
bool xpr_find_code_places(struct xpr_memory *memory, const struct xpr_code_place *places, uint32_t count,
                          enum xpr_frame_kind *kinds, uint32_t *ids);
/* The texts of one place, whether known or not; false where they cannot be read. */
bool xpr_read_code_place(struct xpr_memory *memory, struct xpr_code_place place, struct xpr_frame_text *text);
/* Interns what the last xpr_read_code_place found, which the caller has made sure was true; its id. */
uint32_t xpr_keep_code_place(const struct xpr_frame_text *text);
void xpr_forget_code_places(void);

#endif
