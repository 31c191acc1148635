/* trace, step, input_wait, checkpoint, mark and counter.
 *
 * `with trace("x", layer=3):` costs one small object from a free list. It keeps its name and arguments unread; nothing looks
 * at them unless a capture runs when the span ends. `__enter__` and `__exit__` are descriptors that give back the object
 * itself, which can be called: that saves the two bound methods that a with statement would build otherwise. */
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
        slab->spans[i].next_free = free_spans;
        free_spans = &slab->spans[i];
    }
    return true;
}

xpr_span *xpr_span_new(PyTypeObject *type, uint8_t kind, PyObject *name, PyObject *const *values, uint32_t count,
                       PyObject *kwnames) {
    if (!free_spans && !add_slab()) return (xpr_span *)PyErr_NoMemory();
    xpr_span *span = free_spans;
    span->values = span->inline_values;
    if (count > XPR_INLINE_VALUES && !(span->values = PyMem_Malloc(count * sizeof *values)))
        return (xpr_span *)PyErr_NoMemory();
    free_spans = span->next_free;
    PyObject_Init((PyObject *)span, type);
    span->vectorcall = span_vectorcall;
    span->name = Py_XNewRef(name);
    span->kwnames = Py_XNewRef(kwnames);
    for (uint32_t i = 0; i < count; i++) span->values[i] = Py_NewRef(values[i]);
    span->count = count;
    span->kind = kind;
    span->generation = 0;
    span->depth = 0;
    span->marker = NULL;
    return span;
}

xpr_span *xpr_span_lend(uint8_t kind, PyObject *name, PyObject *const *values, uint32_t count, PyObject *kwnames) {
    if (!free_spans && !add_slab()) return NULL;
    xpr_span *span = free_spans;
    free_spans = span->next_free;
    span->name = name;
    span->kwnames = kwnames;
    span->values = (PyObject **)values;
    span->count = count;
    span->kind = kind;
    span->generation = 0;
    span->depth = 0;
    span->marker = NULL;
    return span;
}

void xpr_span_give_back(xpr_span *span) {
    span->next_free = free_spans;
    free_spans = span;
}

/* The span is not open any more, whichever thread it is that leaves it. */
static inline void note_left(uint32_t thread, uint32_t generation, uint64_t start) {
    struct xpr_log *log = xpr_log_here(generation);
    if (__builtin_expect(log && log->index == thread, 1))
        xpr_log_leave(log, start);
    else
        xpr_log_left_elsewhere(thread, generation, start);
}

static void span_dealloc(PyObject *self) {
    xpr_span *span = (xpr_span *)self;
    PyObject *name = span->name, *kwnames = span->kwnames, *marker = span->marker, **values = span->values;
    PyObject *kept[XPR_INLINE_VALUES];
    uint32_t count = span->count;
    bool is_inline = values == span->inline_values;
    if (is_inline) memcpy(kept, values, count * sizeof *kept);
    /* Entered and never left (an ExitStack that was dropped, say): nobody knows when it ended, so it is only counted. */
    if (span->generation && span->generation == xpr_recording()) {
        reentered++;
        note_left(span->thread, span->generation, span->start);
    }
    span->generation = 0;
    span->depth = 0;
    span->next_free = free_spans;
    free_spans = span;
    /* Last, because letting go of the program's objects can run its code, and that may use spans. */
    if (is_inline) values = kept;
    for (uint32_t i = 0; i < count; i++) Py_DECREF(values[i]);
    if (!is_inline) PyMem_Free(values);
    Py_XDECREF(name);
    Py_XDECREF(kwnames);
    Py_XDECREF(marker);
}

static void record(xpr_span *span, uint64_t end, uint32_t generation) {
    struct xpr_log *log = xpr_log_greeted(generation);
    if (!log && !(log = xpr_log_slow(generation))) return;
    struct xpr_event slots[XPR_MAX_SLOTS];
    slots[0].start = span->start;
    slots[0].duration = end > span->start ? end - span->start : 0;
    if (span->kind == XPR_STEP) /* a step that another thread leaves used the CPU of two */
        span->cpu_ns = span->thread == log->index ? xpr_clock_read_ns(CLOCK_THREAD_CPUTIME_ID) - span->cpu_ns : -1;
    unsigned n = xpr_encode(slots, span, span->name_id, generation);
    xpr_log_append(log, slots, n);
}

/* A name's first use calls the program's hook, after which nothing is as it was. Returns whether the span is still to begin. */
static __attribute__((noinline)) bool name_is_new(xpr_span *span, PyObject *name, uint32_t generation) {
    PyObject *held = Py_NewRef(name);
    span->name_id = xpr_name_id(held, generation, span->kind);
    Py_DECREF(held);
    if (generation != xpr_recording() || !xpr_log_here(generation)) return false;
    if (span->depth != 1) { /* another thread entered it while the hook ran */
        reentered++;
        return false;
    }
    return true;
}

/* Not inlined, as end_recorded: its registers are no cost of a span while nothing records. */
static __attribute__((noinline)) void begin_recorded(xpr_span *span, uint32_t generation) {
    struct xpr_log *log = xpr_log_greeted(generation);
    if (!log) {
        log = xpr_log_slow(generation);
        if (!log) return;
        if (span->depth != 1) { /* another thread entered it while the hook ran */
            reentered++;
            return;
        }
    }
    bool is_step = span->kind == XPR_STEP;
    if ((is_step || span->kind == XPR_INPUT) && !log->sampled) xpr_sampler_offer(log);
    PyObject *name = xpr_name_of(span);
    if (!xpr_name_known(name, generation, &span->name_id) && !name_is_new(span, name, generation)) return;
    span->thread = log->index;
    span->generation = generation;
    if (is_step) span->cpu_ns = xpr_clock_read_ns(CLOCK_THREAD_CPUTIME_ID);
    span->start = xpr_clock_now();
    uint64_t number = 0;
    uint16_t schema = is_step ? xpr_step_number(span, generation, &number) : 0;
    xpr_log_enter(log, span->start, span->name_id, span->kind, schema, number);
    if (is_step && xpr_step_marker) {
        PyObject *marker = xpr_enter_step_marker(span);
        Py_XSETREF(span->marker, marker);
    }
}

void xpr_span_enter(xpr_span *span) {
    if (span->kind == XPR_STEP && xpr_step_listener) xpr_call_step_listener("enter", span);
    uint32_t generation = xpr_recording();
    if (++span->depth > 1) {
        /* Which of several exits belongs to which entry cannot be told, so none of them is recorded. */
        reentered += (span->generation != 0) + (generation != 0);
        if (span->generation && span->generation == generation) note_left(span->thread, generation, span->start);
        span->generation = 0;
        return;
    }
    if (!generation || (xpr_filtering && !xpr_wanted(span))) return;
    begin_recorded(span, generation);
}

static __attribute__((noinline)) void end_recorded(xpr_span *span, uint32_t generation) {
    uint64_t end = xpr_clock_now(), start = span->start;
    uint32_t thread = span->thread;
    span->generation = 0;
    if (generation != xpr_recording()) return;
    struct xpr_log *log = xpr_log_here(generation);
    bool is_here = log && log->index == thread;
    if (!is_here) xpr_log_left_elsewhere(thread, generation, start);
    record(span, end, generation);
    if (is_here && log == xpr_log_here(generation)) xpr_log_leave(log, start);
}

void xpr_span_exit(xpr_span *span) {
    bool is_step = span->kind == XPR_STEP;
    if (is_step && span->marker) {
        PyObject *marker = span->marker;
        span->marker = NULL;
        xpr_exit_step_marker(marker);
    }
    if (span->depth) span->depth--;
    uint32_t generation = span->generation;
    if (generation) end_recorded(span, generation);
    if (is_step && xpr_step_listener) xpr_call_step_listener("exit", span);
}

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
            unsigned n = xpr_encode(slots, span, span->name_id, generation);
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
        xpr_span_enter(span);
        return Py_NewRef(self);
    }
    if (nargs == 3 && !kwnames) {
        xpr_span_exit(span);
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
    return (PyObject *)xpr_span_new(&xpr_trace_type, XPR_SPAN, args[0], args + 1, count_of(kwnames), kwnames);
}

static PyObject *step_call(PyObject *type, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    if (nargs != 1) {
        PyErr_Format(PyExc_TypeError, "step takes one number and keyword arguments, got %zd", nargs);
        return NULL;
    }
    return (PyObject *)xpr_span_new(&xpr_step_type, XPR_STEP, NULL, args, 1 + count_of(kwnames), kwnames);
}

static PyObject *named_span(uint8_t kind, const char *function, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
    if (nargs > 1) {
        PyErr_Format(PyExc_TypeError, "%s takes at most one name and keyword arguments, got %zd", function, nargs);
        return NULL;
    }
    if (nargs == 1 && decorates(args[0])) return xpr_decorate(args[0], kind, NULL, kwnames, args + 1);
    PyObject *name = nargs ? args[0] : NULL;
    return (PyObject *)xpr_span_new(&xpr_trace_type, kind, name, args + nargs, count_of(kwnames), kwnames);
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
    unsigned n = xpr_encode(slots, &lent, xpr_name_id(xpr_name_of(&lent), generation, kind), generation);
    slots[0].flags |= flags;
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
             "One training or inference step; a context manager. ``number`` becomes the argument ``step_num``. Of this process's\n"
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
