/* trace, step, input_wait, checkpoint, mark and counter.
 *
 * `with trace("x", layer=3):` costs one small object from a free list. It keeps its name and arguments unread; nothing looks
 * at them unless a capture runs when the span ends. `__enter__` and `__exit__` are descriptors that give back the object
 * itself, which can be called: that saves the two bound methods that a with statement would build otherwise. */
#include "recorder/cpu_clock.h"
#include "recorder_python.h"

enum { SLAB_SPANS = 64 };

struct slab {
    struct slab *next;
    xpr_span spans[SLAB_SPANS];
};

static struct slab *slabs;
static xpr_span *free_spans;
static uint64_t reentered;

static PyObject *span_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames);

static bool add_slab(void) {
    struct slab *slab = PyMem_Calloc(1, sizeof *slab);
    if (!slab) return false;
    slab->next = slabs;
    slabs = slab;
    for (int i = 0; i < SLAB_SPANS; i++) {
        slab->spans[i].vectorcall = span_vectorcall;
        slab->spans[i].values = slab->spans[i].inline_values;
        slab->spans[i].next_free = free_spans;
        free_spans = &slab->spans[i];
    }
    return true;
}

/* What a free span has, and a new one need not be given: values its own, generation and depth 0, no marker. */
static inline void set_free(xpr_span *span) {
    span->generation = 0;
    span->depth = 0;
    span->next_free = free_spans;
    free_spans = span;
}

static inline void begin_life(PyObject *object, PyTypeObject *type) {
#if defined(Py_REF_DEBUG) || defined(Py_GIL_DISABLED)
    PyObject_Init(object, type);
#else
    /* What PyObject_Init comes to for a type that is not on the heap; its call would be a tenth of all that a span costs. */
    Py_SET_REFCNT(object, 1);
    Py_SET_TYPE(object, type);
#endif
}

static inline __attribute__((always_inline)) xpr_span *take_free(uint8_t kind, PyObject *name, PyObject *kwnames, uint32_t count) {
    xpr_span *span = free_spans;
    free_spans = span->next_free;
    span->name = name;
    span->kwnames = kwnames;
    span->count = count;
    span->kind = kind;
    return span;
}

/* A new span of the kind. values: `count` of them; both they and the keys are kept, unread. NULL: MemoryError is set. */
static inline __attribute__((always_inline)) PyObject *span_new(PyTypeObject *type, uint8_t kind, PyObject *name,
                                                                PyObject *const *values, PyObject *kwnames, bool has_number) {
    if (__builtin_expect(!free_spans, 0) && !add_slab()) return PyErr_NoMemory();
    uint32_t count = has_number + (kwnames ? (uint32_t)PyTuple_GET_SIZE(kwnames) : 0);
    if (__builtin_expect(count > XPR_INLINE_VALUES, 0)) {
        PyObject **own = PyMem_Malloc(count * sizeof *own);
        if (!own) return PyErr_NoMemory();
        free_spans->values = own;
    }
    xpr_span *span = take_free(kind, Py_XNewRef(name), Py_XNewRef(kwnames), count);
    begin_life((PyObject *)span, type);
    for (uint32_t i = 0; i < count; i++) span->values[i] = Py_NewRef(values[i]);
    return (PyObject *)span;
}

xpr_span *xpr_span_lend(uint8_t kind, PyObject *name, PyObject *const *values, uint32_t count, PyObject *kwnames) {
    if (!free_spans && !add_slab()) return NULL;
    xpr_span *span = take_free(kind, name, kwnames, count);
    span->values = (PyObject **)values;
    return span;
}

void xpr_span_give_back(xpr_span *span) {
    span->values = span->inline_values;
    set_free(span);
}

/* The span is not open any more, whichever thread it is that leaves it. */
static __attribute__((noinline)) void note_left(uint32_t thread, uint32_t generation, uint64_t start) {
    struct xpr_log *log = xpr_log_here(generation);
    if (log && log->index == thread)
        xpr_log_leave(log, start);
    else
        xpr_log_left_elsewhere(thread, generation, start);
}

/* Entered and never left (an ExitStack that was dropped, say): nobody knows when it ended, so it is only counted. */
static __attribute__((noinline)) void dropped_while_open(xpr_span *span) {
    if (span->generation != xpr_recording()) return;
    reentered++;
    note_left(span->thread, span->generation, span->start);
}

static __attribute__((noinline)) void free_with_values(xpr_span *span) {
    if (span->generation) dropped_while_open(span);
    span->generation = 0; /* letting go of the program's objects can run its code, and that may stop the capture */
    for (uint32_t i = 0; i < span->count; i++) Py_DECREF(span->values[i]);
    if (span->values != span->inline_values) {
        PyMem_Free(span->values);
        span->values = span->inline_values;
    }
    Py_CLEAR(span->marker);
    Py_XDECREF(span->name);
    Py_XDECREF(span->kwnames);
    set_free(span);
}

static void span_dealloc(PyObject *self) {
    xpr_span *span = (xpr_span *)self;
    /* A step, which alone has a marker, has a value: its number. */
    if (__builtin_expect((span->count | span->generation) != 0, 0)) {
        free_with_values(span);
        return;
    }
    PyObject *name = span->name, *kwnames = span->kwnames;
    set_free(span);
    Py_XDECREF(name);
    Py_XDECREF(kwnames);
}

/* A name's first use calls the program's hook, after which nothing is as it was. Returns whether the span is still to begin. */
static __attribute__((noinline)) bool name_is_new(xpr_span *span, PyObject *name, uint32_t generation, uint32_t *id) {
    PyObject *held = Py_NewRef(name);
    *id = xpr_name_id(held, generation, span->kind);
    Py_DECREF(held);
    if (generation != xpr_recording() || !xpr_log_here(generation)) return false;
    if (span->depth != 1) { /* another thread entered it while the hook ran */
        reentered++;
        return false;
    }
    return true;
}

/* The calling thread's log after its hook has run; NULL: the span is not to begin any more. */
static __attribute__((noinline)) struct xpr_log *greet(xpr_span *span, uint32_t generation) {
    struct xpr_log *log = xpr_log_slow(generation);
    if (log && span->depth != 1) { /* another thread entered it while the hook ran */
        reentered++;
        return NULL;
    }
    return log;
}

/* What a step does beyond a span as it begins. */
static __attribute__((noinline)) void begin_step(xpr_span *step, struct xpr_log *log, uint32_t generation) {
    step->cpu_ns = xpr_cpu_clock_begin(log, &step->start);
    uint64_t number = 0, schema = xpr_step_number(step, generation, &number);
    xpr_log_enter(log, step->start, step->word | schema << 48, number);
    if (xpr_step_marker) {
        PyObject *marker = xpr_enter_step_marker(step);
        Py_XSETREF(step->marker, marker);
    }
}

static __attribute__((noinline)) void begin_any(xpr_span *span, uint32_t generation) {
    struct xpr_log *log = xpr_log_greeted(generation);
    if (!log && !(log = greet(span, generation))) return;
    uint8_t kind = span->kind;
    if ((kind == XPR_STEP || kind == XPR_INPUT) && !log->sampled) xpr_sampler_offer(log);
    PyObject *name = xpr_name_of(span);
    const struct xpr_known_name *known = xpr_known_name_at(name);
    uint32_t id = known->id;
    if ((known->text != name || known->generation != generation) && !name_is_new(span, name, generation, &id)) return;
    span->thread = log->index;
    span->generation = generation;
    span->word = xpr_event_word(id, kind);
    if (kind == XPR_STEP) {
        begin_step(span, log, generation);
    } else {
        span->start = xpr_clock_now();
        xpr_log_enter(log, span->start, span->word, 0);
    }
}

/* begin_any and end_any do all that a recorded span may need; begin_recorded and end_recorded what nearly every one needs, in
 * instructions that are counted (docs/annotations.md): neither makes a call, so neither saves a register. */
static __attribute__((noinline)) void begin_recorded(xpr_span *span, uint32_t generation) {
    struct xpr_log *log = xpr_log_greeted(generation);
    PyObject *name = span->name;
    const struct xpr_known_name *known = xpr_known_name_at(name);
    if (!log || !name || span->kind != XPR_SPAN || known->text != name || known->generation != generation ||
        !xpr_log_can_enter(log) || !xpr_clock_is_counter()) {
        begin_any(span, generation);
        return;
    }
    uint64_t word = xpr_event_word(known->id, XPR_SPAN);
    span->thread = log->index;
    span->generation = generation;
    span->word = word;
    uint64_t start = xpr_clock_counter();
    span->start = start;
    xpr_log_enter_plain(log, start, word);
}

static inline __attribute__((always_inline)) void enter(xpr_span *span) {
    if (__builtin_expect(span->kind == XPR_STEP, 0) && (xpr_step_listener || xpr_recording())) {
        if (!PyLong_CheckExact(span->values[0])) xpr_settle_number(span);
        if (xpr_step_listener) xpr_call_step_listener("enter", span);
    }
    uint32_t generation = xpr_recording();
    if (__builtin_expect(++span->depth > 1, 0)) {
        /* Which of several exits belongs to which entry cannot be told, so none of them is recorded. */
        reentered += (span->generation != 0) + (generation != 0);
        if (span->generation && span->generation == generation) note_left(span->thread, generation, span->start);
        span->generation = 0;
        return;
    }
    if (!generation || (xpr_filtering && !xpr_wanted(span))) return;
    begin_recorded(span, generation);
}

void xpr_span_enter(xpr_span *span) { enter(span); }

static __attribute__((noinline)) void append_values(xpr_span *span, struct xpr_log *log, uint64_t start, uint64_t duration,
                                                    uint32_t generation) {
    struct xpr_event slots[XPR_MAX_SLOTS];
    slots[0].start = start;
    slots[0].duration = duration;
    unsigned n = xpr_encode(slots, span, span->word, generation);
    xpr_log_append(log, slots, n);
}

/* The event of a span that has ended. */
static void append(xpr_span *span, struct xpr_log *log, uint64_t start, uint64_t end, uint32_t generation) {
    uint64_t duration = end > start ? end - start : 0;
    bool has_cpu_time = false;
    if (span->kind == XPR_STEP) { /* one that another thread leaves used the CPU of two */
        span->cpu_ns = span->thread == log->index ? xpr_cpu_clock_end(log, span->cpu_ns, duration) : -1;
        has_cpu_time = span->cpu_ns >= 0;
    }
    if (span->count > 1 || has_cpu_time) {
        append_values(span, log, start, duration, generation);
        return;
    }
    uint64_t value = 0, schema = span->count ? xpr_encode_only(span, generation, &value) : 0;
    xpr_log_append_one(log, start, duration, span->word | schema << 48, schema ? value : 0);
}

static __attribute__((noinline)) void end_any(xpr_span *span, uint64_t end, uint32_t generation) {
    uint64_t start = span->start;
    span->generation = 0;
    if (generation != xpr_recording()) return;
    struct xpr_log *log = xpr_log_here(generation);
    bool is_here = log && log->index == span->thread;
    if (!is_here) xpr_log_left_elsewhere(span->thread, generation, start);
    if (!(log = xpr_log_greeted(generation))) log = xpr_log_slow(generation);
    if (!log) return;
    append(span, log, start, end, generation);
    if (is_here) xpr_log_leave(log, start);
}

static __attribute__((noinline)) void end_now(xpr_span *span, uint32_t generation) { end_any(span, xpr_clock_now(), generation); }

static __attribute__((noinline)) void end_recorded(xpr_span *span, uint32_t generation) {
    if (!xpr_clock_is_counter()) {
        end_now(span, generation);
        return;
    }
    uint64_t end = xpr_clock_counter(), start = span->start, head;
    struct xpr_log *log = xpr_log_greeted(generation);
    if (!log || generation != xpr_recording() || log->index != span->thread || span->count || end < start ||
        !xpr_log_has_slot(log, &head)) {
        end_any(span, end, generation);
        return;
    }
    span->generation = 0;
    xpr_log_fill_slot(log, head, start, end - start, span->word, 0);
    xpr_log_leave(log, start);
}

static inline __attribute__((always_inline)) void leave(xpr_span *span) {
    bool is_step = span->kind == XPR_STEP;
    if (__builtin_expect(is_step, 0) && span->marker) {
        PyObject *marker = span->marker;
        span->marker = NULL;
        xpr_exit_step_marker(marker);
    }
    if (span->depth) span->depth--;
    uint32_t generation = span->generation;
    if (generation) end_recorded(span, generation);
    if (__builtin_expect(is_step, 0) && xpr_step_listener) xpr_call_step_listener("exit", span);
}

void xpr_span_exit(xpr_span *span) { leave(span); }

void xpr_add_open_spans(uint32_t generation) {
    for (struct slab *slab = slabs; slab; slab = slab->next) {
        for (int i = 0; i < SLAB_SPANS; i++) {
            xpr_span *span = &slab->spans[i];
            if (span->generation != generation || span->depth != 1) continue;
            struct xpr_event slots[XPR_MAX_SLOTS];
            slots[0].start = span->start;
            slots[0].duration = XPR_DURATION_OPEN;
            span->cpu_ns = -1;
            uint32_t thread = span->thread;
            unsigned n = xpr_encode(slots, span, span->word, generation);
            xpr_recorder_add_open(thread, slots, n);
        }
    }
}

uint64_t xpr_reentered(void) { return reentered; }

uint64_t xpr_take_reentered(void) {
    uint64_t count = reentered;
    reentered = 0;
    return count;
}

/* --- the span object -------------------------------------------------------------------------------------------- */

static PyObject *span_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    xpr_span *span = (xpr_span *)self;
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    if (nargs == 0 && !kwnames) {
        enter(span);
        return Py_NewRef(self);
    }
    if (nargs == 3 && !kwnames) {
        leave(span);
        Py_RETURN_NONE;
    }
    if (nargs == 1 && !kwnames && span->kind != XPR_STEP)
        return xpr_decorate(args[0], span->kind, span->name, span->kwnames, span->values);
    PyErr_Format(PyExc_TypeError, "%s: use it in a with statement%s", Py_TYPE(self)->tp_name,
                 span->kind == XPR_STEP ? "; it does not decorate functions" : " or to decorate one function");
    return NULL;
}

static PyTypeObject way_type;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    bool out;
} way;

static PyObject *way_get(PyObject *self, PyObject *object, PyObject *type) {
    return Py_NewRef(object && object != Py_None ? object : self);
}

/* `type(x).__enter__(x)`, which is what contextlib.ExitStack does. */
static PyObject *way_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    bool out = ((way *)self)->out;
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    if (kwnames || nargs != (out ? 4 : 1) || (Py_TYPE(args[0]) != &xpr_trace_type && Py_TYPE(args[0]) != &xpr_step_type)) {
        PyErr_Format(PyExc_TypeError, "%s takes %s", out ? "__exit__" : "__enter__",
                     out ? "a trace or step object and the three values of an exception" : "a trace or step object");
        return NULL;
    }
    return span_vectorcall(args[0], args + 1, (size_t)nargs - 1, NULL);
}

static PyObject *way_repr(PyObject *self) {
    return PyUnicode_FromString(((way *)self)->out ? "<__exit__ of xprof_py>" : "<__enter__ of xprof_py>");
}

static PyTypeObject way_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "xprof_py._native.way",
    .tp_basicsize = sizeof(way),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_vectorcall_offset = offsetof(way, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = way_get,
    .tp_repr = way_repr,
};

/* --- construction ----------------------------------------------------------------------------------------------- */

static bool decorates(PyObject *first) {
    return !PyUnicode_Check(first) &&
           (PyCallable_Check(first) || Py_TYPE(first) == &PyClassMethod_Type || Py_TYPE(first) == &PyStaticMethod_Type);
}

static uint32_t count_of(PyObject *kwnames) { return kwnames ? (uint32_t)PyTuple_GET_SIZE(kwnames) : 0; }

static PyObject *trace_call(PyObject *type, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    if (nargs != 1) {
        PyErr_Format(PyExc_TypeError, "trace takes one name (or the function to decorate) and keyword arguments, got %zd", nargs);
        return NULL;
    }
    if (decorates(args[0])) return xpr_decorate(args[0], XPR_SPAN, NULL, kwnames, args + 1);
    return span_new(&xpr_trace_type, XPR_SPAN, args[0], args + 1, kwnames, false);
}

static PyObject *step_call(PyObject *type, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    if (nargs != 1) {
        PyErr_Format(PyExc_TypeError, "step takes one number and keyword arguments, got %zd", nargs);
        return NULL;
    }
    return span_new(&xpr_step_type, XPR_STEP, NULL, args, kwnames, true);
}

static PyObject *named_span(uint8_t kind, const char *function, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
    if (nargs > 1) {
        PyErr_Format(PyExc_TypeError, "%s takes at most one name and keyword arguments, got %zd", function, nargs);
        return NULL;
    }
    if (nargs == 1 && decorates(args[0])) return xpr_decorate(args[0], kind, NULL, kwnames, args + 1);
    PyObject *name = nargs ? args[0] : NULL;
    return span_new(&xpr_trace_type, kind, name, args + nargs, kwnames, false);
}

static PyObject *input_wait(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
    return named_span(XPR_INPUT, "input_wait", args, nargs, kwnames);
}

static PyObject *checkpoint(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
    return named_span(XPR_CHECKPOINT, "checkpoint", args, nargs, kwnames);
}

/* An event that has no object: what it says is only lent to the encoder. */
static void record_now(uint8_t kind, PyObject *name, PyObject *const *values, uint32_t count, PyObject *kwnames,
                       uint64_t duration, uint8_t flags) {
    uint32_t generation = xpr_recording();
    if (!generation) return;
    xpr_span lent = {.name = name, .kwnames = kwnames, .values = (PyObject **)values, .count = count, .kind = kind};
    if (xpr_filtering && !xpr_wanted(&lent)) return;
    struct xpr_log *log = xpr_log_greeted(generation);
    if (!log && !(log = xpr_log_slow(generation))) return;
    struct xpr_event slots[XPR_MAX_SLOTS];
    slots[0].start = xpr_clock_now();
    slots[0].duration = duration;
    uint64_t word = xpr_event_word(xpr_name_id(xpr_name_of(&lent), generation, kind), kind);
    unsigned n = xpr_encode(slots, &lent, word | (uint64_t)flags << 40, generation);
    xpr_log_append(log, slots, n);
}

static PyObject *mark(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
    if (nargs != 1) {
        PyErr_Format(PyExc_TypeError, "mark takes one name and keyword arguments, got %zd", nargs);
        return NULL;
    }
    record_now(XPR_MARK, args[0], args + 1, count_of(kwnames), kwnames, 0, 0);
    Py_RETURN_NONE;
}

static PyObject *counter(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 2) {
        PyErr_Format(PyExc_TypeError, "counter takes a name and a value, got %zd arguments", nargs);
        return NULL;
    }
    record_now(XPR_COUNTER, args[0], args + 1, 1, NULL, 0, 0);
    Py_RETURN_NONE;
}

static PyObject *record_past(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
    if (nargs != 3) {
        PyErr_Format(PyExc_TypeError, "record_past takes a name, a kind and a duration, got %zd arguments", nargs);
        return NULL;
    }
    long kind = PyLong_AsLong(args[1]);
    if (kind == -1 && PyErr_Occurred()) return NULL;
    if (kind < XPR_SPAN || kind > XPR_GC || kind == XPR_STEP || kind == XPR_COUNTER) {
        PyErr_Format(PyExc_ValueError, "record_past cannot record kind %ld", kind);
        return NULL;
    }
    long long duration_ns = PyLong_AsLongLong(args[2]);
    if (duration_ns == -1 && PyErr_Occurred()) return NULL;
    record_now((uint8_t)kind, args[0], args + 3, count_of(kwnames), kwnames,
               duration_ns > 0 ? (uint64_t)duration_ns : 0, XPR_EVENT_PAST);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(trace_doc,
             "trace(name, /, **args)\n--\n\n"
             "A span of the program: a context manager, and a decorator (also ``@trace`` alone, with the function's name).\n\n"
             "``args``: bool, int, float or str; another value is recorded as ``<type name>``. Of more than 16, 16 are kept.\n"
             "While nothing records, name and arguments are kept unread and nothing raises.");
PyDoc_STRVAR(step_doc,
             "step(number, /, *, name='train', **args)\n--\n\n"
             "One training or inference step; a context manager. ``number``, an int, becomes the argument ``step_num``; of an array\n"
             "that its device still computes nothing is asked: such steps are counted, with a warning. Of this process's\n"
             "part of the step, ``tokens=`` give tokens per second and ``model_flops=`` the model flops utilisation (MFU).");

PyTypeObject xpr_trace_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "xprof_py.trace",
    .tp_doc = trace_doc,
    .tp_basicsize = sizeof(xpr_span),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_vectorcall_offset = offsetof(xpr_span, vectorcall),
    .tp_vectorcall = trace_call,
    .tp_call = PyVectorcall_Call,
    .tp_dealloc = span_dealloc,
};

PyTypeObject xpr_step_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "xprof_py.step",
    .tp_doc = step_doc,
    .tp_basicsize = sizeof(xpr_span),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_vectorcall_offset = offsetof(xpr_span, vectorcall),
    .tp_vectorcall = step_call,
    .tp_call = PyVectorcall_Call,
    .tp_dealloc = span_dealloc,
};

static PyMethodDef functions[] = {
    {"input_wait", (PyCFunction)(void (*)(void))input_wait, METH_FASTCALL | METH_KEYWORDS,
     "input_wait(name='input', /, **args)\n--\n\nWaiting for the next batch: like trace, of kind INPUT."},
    {"checkpoint", (PyCFunction)(void (*)(void))checkpoint, METH_FASTCALL | METH_KEYWORDS,
     "checkpoint(name='checkpoint', /, **args)\n--\n\nSaving or restoring: like trace, of kind CHECKPOINT."},
    {"mark", (PyCFunction)(void (*)(void))mark, METH_FASTCALL | METH_KEYWORDS,
     "mark(name, /, **args)\n--\n\nAn instant."},
    {"counter", (PyCFunction)(void (*)(void))counter, METH_FASTCALL,
     "counter(name, value, /)\n--\n\nA sampled value."},
    {"record_past", (PyCFunction)(void (*)(void))record_past, METH_FASTCALL | METH_KEYWORDS,
     "record_past(name, kind, duration_ns, /, **args)\n--\n\n"
     "An event of the calling thread that ends now and began duration_ns ago."},
    {NULL, NULL, 0, NULL},
};

static int add_ways(PyTypeObject *type) {
    for (int out = 0; out < 2; out++) {
        way *w = PyObject_New(way, &way_type);
        if (!w) return -1;
        w->vectorcall = way_vectorcall;
        w->out = out;
        int error = PyDict_SetItemString(type->tp_dict, out ? "__exit__" : "__enter__", (PyObject *)w);
        Py_DECREF(w);
        if (error) return -1;
    }
    PyType_Modified(type);
    return 0;
}

int xpr_add_spans(PyObject *module) {
    if (PyType_Ready(&way_type) < 0) return -1;
    PyTypeObject *const types[] = {&xpr_trace_type, &xpr_step_type};
    static const char *const names[] = {"trace", "step"};
    for (int i = 0; i < 2; i++) {
        if (PyType_Ready(types[i]) < 0 || add_ways(types[i]) < 0) return -1;
        if (PyModule_AddObjectRef(module, names[i], (PyObject *)types[i]) < 0) return -1;
    }
    return PyModule_AddFunctions(module, functions);
}

int xpr_py_add_recorder(PyObject *module) {
    if (xpr_add_values(module) < 0 || xpr_add_spans(module) < 0) return -1;
    if (xpr_add_decorated(module) < 0 || xpr_add_swapped(module) < 0) return -1;
    if (xpr_add_sampler(module) < 0 || xpr_add_filter(module) < 0) return -1;
    return xpr_add_session(module);
}
