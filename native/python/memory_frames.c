/* A thread's Python frames, read from memory while the thread runs: no GIL, no signal, nothing that it could notice.
 *
 * One call of the kernel copies all that is needed, within a microsecond: the thread's state, the address of its top
 * frame, and twice, one behind the other, its data stack (where its frames lie side by side, the outermost first) with the
 * frames that lie elsewhere. Meanwhile the thread goes on, so that what was copied first may be older. But a frame says
 * itself how it stands: `stacktop` is -1 while the interpreter works in it, and tells the depth of its values while it has
 * called another one or is done. So a frame that was left, and whose bytes lie there still, is not taken for the top, nor
 * for another's callee; and neighbours are copied within a few ns, in which no thread leaves two functions and enters two
 * others. That an interrupt falls between them shows in the time that the copying took, and in the second copy, which must
 * hold the same functions. What does not fit is read again, and counted as torn where it never fits.
 *
 * Layouts are taken from the interpreter's own headers. They were checked for the versions below; every capture reads its
 * own thread's frames both ways first, and uses the GIL where they differ. */
#define Py_BUILD_CORE 1
#include "stack_frames.h"

#if !defined(Py_GIL_DISABLED) && PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000 && \
    __has_include("internal/pycore_frame.h")
#define KNOWS_LAYOUT 1
#include "internal/pycore_frame.h"
#endif

#ifdef KNOWS_LAYOUT

#include <stddef.h>

#include "recorder/clock.h"

enum {
    TRIES = 24,           /* of a thread that moves on */
    CHANGES = 64,         /* of where to look, in one look */
    MOST_STACK_BYTES = 16 << 10,
    MORE_NS = 1000,       /* that a read may take beyond the quickest; then something came between */
    LOOSE_FORGOTTEN = 8,  /* frames elsewhere that are read in vain, before they are forgotten */
    CHUNK_HEAD = offsetof(_PyStackChunk, data),
    FRAME_BYTES = offsetof(_PyInterpreterFrame, localsplus),
};

#if PY_VERSION_HEX >= 0x030D0000
#define CODE_OF(frame) ((uintptr_t)(frame)->f_executable)
#define INSTRUCTION_OF(frame) ((uintptr_t)(frame)->instr_ptr)
#define HEAD_OF(state, copy) ((uintptr_t)(state) + offsetof(PyThreadState, current_frame))
#else
#define CODE_OF(frame) ((uintptr_t)(frame)->f_code)
#define INSTRUCTION_OF(frame) ((uintptr_t)(frame)->prev_instr)
#define HEAD_OF(state, copy) ((uintptr_t)(copy)->cframe + offsetof(_PyCFrame, current_frame))
#endif

/* Whether C code lies between the frame and the one that called it, and whether the frame stands for C code alone. */
#if PY_VERSION_HEX >= 0x030C0000
#define IS_C(frame) ((frame)->owner == FRAME_OWNED_BY_CSTACK)
#define CALLED_BY_C(frame, caller) (IS_C(frame) || IS_C(caller))
#else
#define IS_C(frame) false
#define CALLED_BY_C(frame, caller) ((frame)->is_entry)
#endif

struct link {
    uintptr_t address, previous;
    struct xpr_code_place code;
    bool is_c;
};

struct chain {
    uint32_t count;
    bool is_cut; /* there are more */
    struct link links[XPR_MAX_LINKS];
};

enum collected { COLLECTED, LOOK_ELSEWHERE, INCONSISTENT, NOT_LISTED, ENDED };

static struct xpr_memory memory;

static bool is_plausible(uintptr_t address) { return address >= 4096 && address % sizeof(void *) == 0 && address >> 47 == 0; }

void xpr_watch(struct xpr_watched *watched, PyThreadState *state) {
    *watched = (struct xpr_watched){.state = state, .id = PyThreadState_GetID(state), .ident = state->thread_id};
}

/* --- one read ----------------------------------------------------------------------------------------------------- */

static uint32_t places_of(const struct xpr_watched *w, struct xpr_place_in_memory *places) {
    uint32_t n = 0;
    places[n++] = (struct xpr_place_in_memory){(uintptr_t)w->state, sizeof(PyThreadState)};
    if (w->back_link) places[n++] = (struct xpr_place_in_memory){w->back_link, sizeof(void *)};
    if (!w->head) return n;
    places[n++] = (struct xpr_place_in_memory){w->head, sizeof(void *)};
    for (int copy = 0; copy < 2; copy++) {
        if (w->high > w->low) places[n++] = (struct xpr_place_in_memory){w->low, w->high - w->low};
        for (uint32_t i = 0; i < w->loose_count; i++) places[n++] = (struct xpr_place_in_memory){w->loose[i], FRAME_BYTES};
    }
    places[n++] = (struct xpr_place_in_memory){w->head, sizeof(void *)};
    return n;
}

/* Where to read the data stack: from its begin, or not too far below its top, to somewhat above it. True if that is new. */
static bool follow_data_stack(struct xpr_watched *w, const PyThreadState *state) {
    uintptr_t low = 0, high = 0, top = (uintptr_t)state->datastack_top, limit = (uintptr_t)state->datastack_limit;
    if (state->datastack_chunk && is_plausible(top) && is_plausible(limit) && top <= limit) {
        low = (uintptr_t)state->datastack_chunk + CHUNK_HEAD;
        if (top < low) return false; /* the two were not written at once */
        if (top - low > MOST_STACK_BYTES) low = top - (top - low) % (MOST_STACK_BYTES / 2) - MOST_STACK_BYTES / 2;
        high = limit - top > 1024 ? top + 1024 : limit;
        bool reaches = low == w->low && w->high >= (limit - top > 256 ? top + 256 : limit) && w->high < high + 2048;
        if (reaches) return false;
    }
    bool is_new = low != w->low || high != w->high;
    w->low = low;
    w->high = high;
    return is_new;
}

/* The frame in the copy that begins at `copy`, NULL where it was not read. */
static const uint8_t *frame_in(const struct xpr_watched *w, const uint8_t *copy, uintptr_t address, bool *is_loose) {
    *is_loose = false;
    if (address >= w->low && address + FRAME_BYTES <= w->high) return copy + (address - w->low);
    *is_loose = true;
    for (uint32_t i = 0; i < w->loose_count; i++)
        if (w->loose[i] == address) return copy + (w->high - w->low) + i * (size_t)FRAME_BYTES;
    return NULL;
}

/* Whether a frame, as both copies have it, can be what its place in the chain says. `is_still`: the top frame must not have
 * moved at all. `callee`: NULL for the top frame. */
static bool fits(const _PyInterpreterFrame *one, const _PyInterpreterFrame *two, const _PyInterpreterFrame *callee,
                 bool callee_is_loose, bool is_still) {
    if (one->previous != two->previous || one->owner != two->owner) return false;
    if (IS_C(one)) return callee != NULL;
    if (CODE_OF(one) != CODE_OF(two)) return false;
    bool has_not_moved = INSTRUCTION_OF(one) == INSTRUCTION_OF(two) && one->stacktop == two->stacktop;
    /* The top: the interpreter works in it; else it is being left, and what it held thrown away. */
    if (!callee) return one->stacktop == -1 || (is_still && has_not_moved);
    /* A callee elsewhere was copied somewhat later. */
    if (callee_is_loose && !has_not_moved) return false;
    return CALLED_BY_C(callee, one) || one->stacktop >= 0;
}

/* Adds the frames from `address` on that do not lie on the data stack, so that the next read finds them. */
static void find_loose(struct xpr_watched *w, uintptr_t address) {
    for (int walked = 0; walked < XPR_MAX_LINKS && is_plausible(address) && w->loose_count < XPR_MAX_LINKS; walked++) {
        _PyInterpreterFrame frame;
        if (!xpr_memory_read(&memory, &(struct xpr_place_in_memory){address, FRAME_BYTES}, 1)) return;
        memcpy(&frame, memory.bytes, FRAME_BYTES);
        bool is_known = address >= w->low && address + FRAME_BYTES <= w->high;
        for (uint32_t i = 0; i < w->loose_count && !is_known; i++) is_known = w->loose[i] == address;
        if (!is_known) w->loose[w->loose_count++] = address;
        address = (uintptr_t)frame.previous;
    }
}

/* What one read found, behind the state. */
struct copies {
    const uint8_t *first; /* the second lies behind it */
    size_t bytes;         /* of one */
    uintptr_t head, head_after;
};

/* The chain from the frame at `top` outwards. */
static enum collected walk(struct xpr_watched *w, const struct copies *copies, uintptr_t top, struct chain *chain) {
    _PyInterpreterFrame one, two, callee;
    uint32_t loose_used = 0;
    bool is_still = top == copies->head && top == copies->head_after, is_loose = false;
    chain->count = 0;
    for (uintptr_t address = top; address && chain->count < XPR_MAX_LINKS; address = (uintptr_t)one.previous) {
        bool callee_is_loose = is_loose;
        if (!is_plausible(address)) return INCONSISTENT;
        const uint8_t *frame = frame_in(w, copies->first, address, &is_loose);
        if (!frame) {
            if (w->loose_count == XPR_MAX_LINKS) w->loose_count = 0;
            find_loose(w, address);
            return LOOK_ELSEWHERE;
        }
        memcpy(&one, frame, FRAME_BYTES);
        memcpy(&two, frame + copies->bytes, FRAME_BYTES);
        if (!fits(&one, &two, chain->count ? &callee : NULL, callee_is_loose || is_loose, is_still)) return INCONSISTENT;
        chain->links[chain->count++] = (struct link){
            address, (uintptr_t)one.previous,
            {CODE_OF(&one), INSTRUCTION_OF(&one), one.owner == FRAME_OWNED_BY_GENERATOR}, IS_C(&one)};
        loose_used += is_loose;
        callee = one;
    }
    chain->is_cut = chain->count == XPR_MAX_LINKS;
    if (w->loose_count > loose_used + LOOSE_FORGOTTEN) {
        w->loose_count = 0;
        for (uint32_t i = 0; i < chain->count; i++) {
            uintptr_t address = chain->links[i].address;
            if (address < w->low || address + FRAME_BYTES > w->high) w->loose[w->loose_count++] = address;
        }
    }
    return COLLECTED;
}

/* The frame before the one at `address`; 0 where that was not read. */
static uintptr_t caller_of(const struct xpr_watched *w, const struct copies *copies, uintptr_t address) {
    bool is_loose;
    const uint8_t *frame = is_plausible(address) ? frame_in(w, copies->first, address, &is_loose) : NULL;
    uintptr_t caller = 0;
    if (frame) memcpy(&caller, frame + offsetof(_PyInterpreterFrame, previous), sizeof caller);
    return caller;
}

/* Whether reading took longer than it has to. The bound follows what the machine can do. */
static bool was_interrupted(int64_t took_ns) {
    static int64_t quickest_ns = 1000;
    if (took_ns < quickest_ns) {
        quickest_ns = took_ns;
    } else if (took_ns > quickest_ns + MORE_NS) {
        quickest_ns += quickest_ns / 4;
        return true;
    }
    return false;
}

static enum collected collect(struct xpr_watched *w, struct chain *chain) {
    struct xpr_place_in_memory places[5 + 2 * (1 + XPR_MAX_LINKS)];
    PyThreadState state;
    struct copies copies = {0};
    uintptr_t lister = 0;
    uint32_t count = places_of(w, places);
    int64_t began_ns = xpr_clock_read_ns(CLOCK_MONOTONIC);
    if (!xpr_memory_read(&memory, places, count)) {
        /* Something went away: ask the way anew. */
        bool asked_all = w->head || w->back_link;
        w->back_link = w->head = w->low = w->high = 0;
        w->loose_count = 0;
        return asked_all ? LOOK_ELSEWHERE : ENDED;
    }
    bool is_late = was_interrupted(xpr_clock_read_ns(CLOCK_MONOTONIC) - began_ns);
    const uint8_t *at = memory.bytes;
    memcpy(&state, at, sizeof state);
    at += sizeof state;
    if (w->back_link) memcpy(&lister, at, sizeof lister), at += sizeof lister;
    if (state.id != w->id || state.thread_id != w->ident || state.interp != PyInterpreterState_Main()) return ENDED;

    uintptr_t back_link = state.prev ? (uintptr_t)state.prev + offsetof(PyThreadState, next) : 0;
    uintptr_t head_place = HEAD_OF(w->state, &state);
    bool is_elsewhere = back_link != w->back_link || head_place != w->head;
    if (!is_plausible(head_place) || (back_link && !is_plausible(back_link))) return INCONSISTENT;
    w->back_link = back_link;
    w->head = head_place;
    is_elsewhere |= follow_data_stack(w, &state);
    if (is_elsewhere) return LOOK_ELSEWHERE;
    /* A state that was thrown away keeps its bytes for a while, but nobody lists it. */
    if (back_link ? lister != (uintptr_t)w->state : PyInterpreterState_ThreadHead(PyInterpreterState_Main()) != w->state)
        return NOT_LISTED;

    memcpy(&copies.head, at, sizeof copies.head);
    copies.first = at + sizeof copies.head;
    copies.bytes = w->high - w->low + w->loose_count * (size_t)FRAME_BYTES;
    memcpy(&copies.head_after, copies.first + 2 * copies.bytes, sizeof copies.head_after);
    chain->count = 0;
    chain->is_cut = false;
    if (!copies.head && !copies.head_after) return COLLECTED; /* it runs no Python */
    if (is_late) return INCONSISTENT;
    /* When the first copy was made, the top was the one of before, or had come by the end, or had just called it. */
    const uintptr_t tops[] = {copies.head, copies.head_after, caller_of(w, &copies, copies.head),
                              caller_of(w, &copies, copies.head_after)};
    for (int i = 0; i < 4; i++) {
        enum collected got = tops[i] ? walk(w, &copies, tops[i], chain) : INCONSISTENT;
        if (got != INCONSISTENT) return got;
    }
    return INCONSISTENT;
}

/* --- stacks ------------------------------------------------------------------------------------------------------- */

/* Reads until all fits. */
static enum xpr_read collect_whole(struct xpr_watched *w, struct chain *chain) {
    enum collected got = INCONSISTENT;
    for (int tries = 0, changes = 0; tries < TRIES && changes < CHANGES;) {
        got = collect(w, chain);
        if (got == COLLECTED) return XPR_READ;
        if (got == ENDED) return XPR_ENDED;
        if (got == LOOK_ELSEWHERE)
            changes++;
        else
            tries++;
    }
    /* The list may be changing just now, but not each time. */
    return got == NOT_LISTED ? XPR_ENDED : XPR_TORN;
}

/* Whether from frame `from` outwards all is as it was; of the top frame the instruction may have moved on. */
static bool is_unchanged(const struct chain *before, const struct chain *now, uint32_t from) {
    if (now->count < before->count - from) return false;
    const struct link *old = before->links + from, *new = now->links + now->count - (before->count - from);
    for (uint32_t i = 0; i < before->count - from; i++) {
        bool may_move = new + i == now->links || (i == 0 && from == 0);
        if (old[i].address != new[i].address || old[i].previous != new[i].previous || old[i].code.code != new[i].code.code ||
            (old[i].code.instruction != new[i].code.instruction && !may_move))
            return false;
    }
    return true;
}

static bool still_there(struct xpr_watched *w, const struct chain *chain, uint32_t frame) {
    static struct chain again;
    for (int i = 0; i < TRIES; i++) {
        enum collected got = collect(w, &again);
        if (got == COLLECTED) return is_unchanged(chain, &again, frame);
        if (got == ENDED) return false;
    }
    return false;
}

/* The ids of a chain's frames, innermost first, into `ids`; -1 where a frame went away meanwhile. */
static int ids_of(struct xpr_watched *w, const struct chain *chain, uint32_t *ids) {
    static char file[XPR_FRAME_TEXT_BYTES], function[XPR_FRAME_TEXT_BYTES];
    struct xpr_frame_text text = {.file = file, .function = function};
    struct xpr_code_place places[XPR_MAX_LINKS];
    enum xpr_frame_kind kinds[XPR_MAX_LINKS];
    uint32_t found[XPR_MAX_LINKS], of_link[XPR_MAX_LINKS], count = 0;
    for (uint32_t i = 0; i < chain->count; i++) {
        if (chain->links[i].is_c) continue;
        of_link[count] = i;
        places[count++] = chain->links[i].code;
    }
    if (!count) return 0;
    if (!xpr_find_code_places(&memory, places, count, kinds, found)) return -1;
    int depth = 0;
    bool has_learnt = false;
    for (uint32_t i = 0; i < count; i++) {
        if (kinds[i] == XPR_FRAME_TORN) return -1;
        if (kinds[i] == XPR_FRAME_INCOMPLETE) continue;
        if (depth == XPR_MAX_STACK_DEPTH) {
            ids[depth++] = 0; /* there are more */
            break;
        }
        /* A function that calls itself is there many times. */
        for (uint32_t j = 0; j < i && kinds[i] == XPR_FRAME_NEW; j++)
            if (places[j].code == places[i].code && places[j].instruction == places[i].instruction) {
                kinds[i] = kinds[j];
                found[i] = found[j];
            }
        if (kinds[i] == XPR_FRAME_NEW) {
            /* The frame keeps its code: while it is there, what was read was true. */
            if (!xpr_read_code_place(&memory, places[i], &text) || !still_there(w, chain, of_link[i])) return -1;
            found[i] = xpr_keep_code_place(&text);
            kinds[i] = XPR_FRAME_KNOWN;
            has_learnt = true;
        }
        ids[depth++] = found[i];
    }
    if (chain->is_cut && depth < XPR_MAX_STACK_DEPTH) ids[depth++] = 0;
    /* Learning takes time, in which one caller may have made place for another. */
    return !has_learnt || still_there(w, chain, 0) ? depth : -1;
}

enum xpr_read xpr_stack_from_memory(struct xpr_watched *watched, uint32_t *stack) {
    static struct chain chain;
    uint32_t ids[XPR_MAX_STACK_DEPTH + 1];
    for (int tries = 0; tries < TRIES; tries++) {
        enum xpr_read got = collect_whole(watched, &chain);
        if (got != XPR_READ) return got;
        int depth = ids_of(watched, &chain, ids);
        if (depth < 0) continue;
        *stack = xpr_intern_stack(ids, (uint32_t)depth);
        return XPR_READ;
    }
    return XPR_TORN;
}

const char *xpr_memory_frames_open(void) {
    if (memory.bytes) return NULL;
    int error = xpr_memory_open(&memory);
    xpr_forget_code_places();
    return error ? strerror(error) : NULL;
}

void xpr_memory_frames_close(void) { xpr_memory_close(&memory); }

/* --- the self-test ------------------------------------------------------------------------------------------------ */

static bool is_text(PyObject *wanted, const char *text, size_t bytes) {
    Py_ssize_t wanted_bytes;
    const char *utf8 = PyUnicode_AsUTF8AndSize(wanted, &wanted_bytes);
    if (!utf8) {
        PyErr_Clear();
        return true; /* lone surrogates in the name of a program's file: nothing to compare with here */
    }
    bool is_cut = PyUnicode_GET_LENGTH(wanted) > XPR_FRAME_TEXT_CHARACTERS;
    return (is_cut ? (size_t)wanted_bytes > bytes : (size_t)wanted_bytes == bytes) && memcmp(utf8, text, bytes) == 0;
}

static const char *frame_differs(PyFrameObject *frame, struct xpr_code_place place) {
    static char file[XPR_FRAME_TEXT_BYTES], function[XPR_FRAME_TEXT_BYTES];
    struct xpr_frame_text text = {.file = file, .function = function};
    if (!xpr_read_code_place(&memory, place, &text)) return "a frame's code cannot be read";
    PyCodeObject *code = PyFrame_GetCode(frame);
    int line = PyFrame_GetLineNumber(frame);
    const char *what = NULL;
    if (!is_text(code->co_filename, text.file, text.file_bytes)) what = "a frame's file reads otherwise";
    if (!is_text(code->co_qualname, text.function, text.function_bytes)) what = "a frame's function reads otherwise";
    if (text.line != (line > 0 ? (uint32_t)line : 0)) what = "a frame's line reads otherwise";
    Py_DECREF(code);
    return what;
}

/* The frames of `chain` beside those that Python shows, complete ones alone. */
static const char *chain_differs(PyThreadState *state, const struct chain *chain) {
    const char *what = NULL;
    PyFrameObject *frame = PyThreadState_GetFrame(state);
    for (uint32_t i = 0; i < chain->count && !what; i++) {
        enum xpr_frame_kind kind;
        uint32_t id;
        if (chain->links[i].is_c) continue;
        if (!xpr_find_code_places(&memory, &chain->links[i].code, 1, &kind, &id) || kind == XPR_FRAME_TORN)
            what = "a frame's code does not look like one";
        else if (kind == XPR_FRAME_INCOMPLETE)
            continue;
        else
            what = frame ? frame_differs(frame, chain->links[i].code) : "there are more frames than Python shows";
        PyFrameObject *outer = frame ? PyFrame_GetBack(frame) : NULL;
        Py_XDECREF(frame);
        frame = outer;
    }
    if (frame && !chain->is_cut && !what) what = "there are fewer frames than Python shows";
    Py_XDECREF(frame);
    return what;
}

const char *xpr_memory_frames_differ(void) {
    static struct chain chain;
    struct xpr_watched watched;
    PyThreadState *state = PyThreadState_Get();
    xpr_watch(&watched, state);
    if (collect_whole(&watched, &chain) != XPR_READ) return "the own thread's frames cannot be read";
    return chain_differs(state, &chain);
}

#else

void xpr_watch(struct xpr_watched *watched, PyThreadState *state) {}
const char *xpr_memory_frames_open(void) { return "the layout of this Python's frames is not known"; }
void xpr_memory_frames_close(void) {}
enum xpr_read xpr_stack_from_memory(struct xpr_watched *watched, uint32_t *stack) { return XPR_TORN; }
const char *xpr_memory_frames_differ(void) { return "the layout of this Python's frames is not known"; }

#endif
