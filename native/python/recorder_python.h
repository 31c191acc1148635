/* Between the files of native/python that record: spans (annotations.c, recorder_decorated.c), values (recorder_values.c),
 * hooks and the session's functions (recorder_session.c). Everything here needs the GIL. */
#ifndef XPROF_PY_RECORDER_PYTHON_H
#define XPROF_PY_RECORDER_PYTHON_H

#include "module.h"
#include "recorder/recorder.h"

/* Numbers of schema.Kind that the recorder writes. */
enum xpr_kind {
    XPR_SPAN = 1,
    XPR_STEP = 2,
    XPR_INPUT = 3,
    XPR_CHECKPOINT = 4,
    XPR_MARK = 5,
    XPR_COUNTER = 6,
    XPR_COMPILE = 7,
    XPR_GC = 8,
};

enum { XPR_INLINE_VALUES = 4 };

/* One use of trace, step, input_wait or checkpoint. Lives in a slab that is never given back, so that the spans which are
 * open at a stop can be found without a list that every span would have to join and leave. */
typedef struct xpr_span {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *name;       /* as given, unread; NULL: the kind's own name */
    PyObject *kwnames;    /* tuple of the arguments' keys, or NULL */
    PyObject **values;    /* of the arguments; for a step its number comes first and has no key */
    uint32_t generation;  /* of the capture in which it was entered, 0: not to be recorded */
    uint32_t depth;       /* how often it is entered and not yet left, counted also while nothing records */
    uint32_t count;       /* of values */
    uint8_t kind;         /* enum xpr_kind */
    uint32_t thread;      /* index of the thread that entered it; this and what follows: valid while generation is not 0 */
    uint64_t start;       /* ticks */
    uint64_t word;        /* xpr_event_word, without a schema */
    int64_t cpu_ns;       /* of a step: its thread's CPU clock as it began, then the CPU time that it used; -1: not known */
    PyObject *marker;     /* a step's entered marker, or NULL */
    struct xpr_span *next_free;
    PyObject *inline_values[XPR_INLINE_VALUES];
} xpr_span;

/* annotations.c */
extern PyTypeObject xpr_trace_type, xpr_step_type;
/* A span for one entry and one exit in C, which is no Python object: it borrows all that it is given until it is given
 * back. NULL, and no exception set: no memory. */
xpr_span *xpr_span_lend(uint8_t kind, PyObject *name, PyObject *const *values, uint32_t count, PyObject *kwnames);
void xpr_span_give_back(xpr_span *span);
void xpr_span_enter(xpr_span *span);
void xpr_span_exit(xpr_span *span);
/* Adds every span that is open in the capture to the shard, with no duration. */
void xpr_add_open_spans(uint32_t generation);
uint64_t xpr_reentered(void);
uint64_t xpr_take_reentered(void); /* and begins to count anew */

/* recorder_values.c: none of these leaves an exception set. */
struct xpr_log *xpr_log_slow(uint32_t generation);
/* The calling thread's log if it is set up for the capture and the thread hook has run, else NULL: then xpr_log_slow. */
static inline struct xpr_log *xpr_log_greeted(uint32_t generation) {
    struct xpr_log *log = xpr_this_log;
    return __builtin_expect(log != NULL, 1) && __builtin_expect(log->greeted_in == generation, 1) ? log : NULL;
}
uint32_t xpr_name_id(PyObject *name, uint32_t generation, unsigned kind);

/* Names by the address of their object: direct-mapped. Each entry holds a reference, so an address cannot come to mean another. */
enum { XPR_KNOWN_NAMES = 1024 };
struct xpr_known_name {
    PyObject *text;
    uint32_t id, generation;
};
extern struct xpr_known_name xpr_known_names[XPR_KNOWN_NAMES];
static inline struct xpr_known_name *xpr_known_name_at(PyObject *text) {
    uintptr_t address = (uintptr_t)text >> 4;
    return &xpr_known_names[(address ^ address >> 10) & (XPR_KNOWN_NAMES - 1)];
}

/* The name that a span's event has, borrowed. */
PyObject *xpr_name_without(const xpr_span *span); /* of one that was given none */
static inline PyObject *xpr_name_of(const xpr_span *span) { return span->name ? span->name : xpr_name_without(span); }
/* Fills the slots' third word, of which `word` is what it is without values, and the values. Returns how many slots the event takes. */
unsigned xpr_encode(struct xpr_event *slots, const xpr_span *span, uint64_t word, uint32_t generation);
/* The schema of a span's only argument, 0: it cannot be recorded, and is counted. */
uint16_t xpr_encode_only(const xpr_span *span, uint32_t generation, uint64_t *value);
/* Makes the number of a step that was given something else than an int one: what it says without being waited for, else one more than
 * the last such step's, which is said once in a capture. Runs the program's code. */
void xpr_settle_number(xpr_span *step);
/* The number of a step and the schema of an event that holds it alone; 0: it is no integer, or has more than one digit. */
uint16_t xpr_step_number(const xpr_span *step, uint32_t generation, uint64_t *number);
void xpr_forget_names(void);

/* recorder_decorated.c: what @trace makes of a function. name may be NULL: the function's own. */
PyObject *xpr_decorate(PyObject *function, uint8_t kind, PyObject *name, PyObject *kwnames, PyObject *const *values);

/* recorder_swapped.c: has functions record their calls through their own slots, or no longer. */
void xpr_swap_functions(bool recording);

/* recorder_session.c: hooks. Each swallows and counts what the hook raises. */
extern PyObject *xpr_step_listener, *xpr_step_marker; /* NULL: none */
void xpr_call_thread_hook(void);
void xpr_call_name_hook(PyObject *name);
void xpr_call_step_listener(const char *what, const xpr_span *step);
PyObject *xpr_enter_step_marker(const xpr_span *step);
void xpr_exit_step_marker(PyObject *marker);

/* recorder_filter.c: whether a filter is set, and then whether it lets the span or mark through. */
extern bool xpr_filtering;
bool xpr_wanted(const xpr_span *span);

/* stack_sampler.c: a thread that records its first step or input span offers itself to the stack sampler. */
void xpr_sampler_offer(struct xpr_log *log);

int xpr_add_values(PyObject *module);
int xpr_add_spans(PyObject *module);
int xpr_add_decorated(PyObject *module);
int xpr_add_swapped(PyObject *module);
int xpr_add_session(PyObject *module);
int xpr_add_filter(PyObject *module);
int xpr_add_sampler(PyObject *module);

#endif
