/* From Python values to the recorder's: names to ids, arguments to slots.
 *
 * What an argument becomes: bool, int (64 bits, signed or unsigned; wider ones a double), float, str; numpy's scalars of
 * these. Anything else is recorded as the text "<type name>": its repr could be large, slow, or wait for a device. */
#include "recorder_python.h"

#include <limits.h>
#include <math.h>

enum { SCHEMA_CACHE = 512, CACHED_TEXT_BYTES = 256 };

struct xpr_known_name xpr_known_names[XPR_KNOWN_NAMES];

/* As the names: by the address of the keys, which it holds a reference to. */
static struct known_schema {
    PyObject *kwnames;
    uint64_t kinds;
    uint32_t generation;
    uint16_t id;
    uint8_t event_kind;
} schemas[SCHEMA_CACHE];

static PyObject *key_name, *key_step_num, *key_value, *key_cpu_ns, *default_names[XPR_GC + 1];

static unsigned slot_of(const void *address, uint64_t salt, unsigned room) {
    uintptr_t a = ((uintptr_t)address >> 4) + (uintptr_t)(salt * 0x9E3779B97F4A7C15u >> 20);
    return (unsigned)(a ^ (a >> 10)) & (room - 1);
}

static uint32_t intern_object(PyObject *text, enum xpr_string_use use, bool *is_new) {
    *is_new = false;
    if (PyUnicode_Check(text)) {
        Py_ssize_t bytes;
        const char *utf8 = PyUnicode_AsUTF8AndSize(text, &bytes);
        if (utf8) return xpr_intern(utf8, (size_t)bytes, use, is_new);
        PyErr_Clear(); /* lone surrogates */
        PyObject *encoded = PyUnicode_AsEncodedString(text, "utf-8", "backslashreplace");
        if (encoded) {
            uint32_t id = xpr_intern(PyBytes_AS_STRING(encoded), (size_t)PyBytes_GET_SIZE(encoded), use, is_new);
            Py_DECREF(encoded);
            return id;
        }
        PyErr_Clear();
    }
    char type_name[256];
    int bytes = snprintf(type_name, sizeof type_name, "<%s>", Py_TYPE(text)->tp_name);
    if (bytes >= (int)sizeof type_name) bytes = (int)sizeof type_name - 1;
    return xpr_intern(type_name, (size_t)bytes, use, is_new);
}

static uint32_t string_id(PyObject *text, uint32_t generation, enum xpr_string_use use, bool *is_new) {
    struct xpr_known_name *known = xpr_known_name_at(text);
    *is_new = false;
    if (known->text == text && known->generation == generation) return known->id;
    uint32_t id = intern_object(text, use, is_new);
    /* The two ids that stand for many must be counted at every use, so they are not cached. */
    if (id > XPR_MORE_TEXTS && PyUnicode_CheckExact(text) && PyUnicode_GET_LENGTH(text) <= CACHED_TEXT_BYTES) {
        PyObject *old = known->text;
        *known = (struct xpr_known_name){Py_NewRef(text), id, generation};
        Py_XDECREF(old);
    }
    return id;
}

uint32_t xpr_name_id(PyObject *name, uint32_t generation, unsigned kind) {
    bool is_new;
    uint32_t id = string_id(name, generation, XPR_USE_NAME, &is_new);
    /* Compiles and pauses for garbage are no spans of the program's: the hook has nothing to tell it about them. */
    if (is_new && kind != XPR_COMPILE && kind != XPR_GC) xpr_call_name_hook(name);
    return id;
}

/* numpy is not imported here: its scalars are known by the names of their types. An array is no scalar, and neither is
 * another library's object that merely has __index__: converting that one may wait for a device. */
static unsigned encode_numpy(PyObject *value, uint64_t *bits) {
    const char *type = Py_TYPE(value)->tp_name;
    if (strncmp(type, "numpy.", 6) != 0) return 0;
    type += 6;
    if (strncmp(type, "int", 3) == 0 || strncmp(type, "uint", 4) == 0 || strncmp(type, "longlong", 8) == 0) {
        PyObject *index = PyNumber_Index(value);
        if (index) {
            int overflow;
            long long number = PyLong_AsLongLongAndOverflow(index, &overflow);
            *bits = overflow ? PyLong_AsUnsignedLongLong(index) : (uint64_t)number;
            Py_DECREF(index);
            if (!PyErr_Occurred()) return overflow ? XPR_ARG_UINT : XPR_ARG_INT;
        }
    } else if (strncmp(type, "float", 5) == 0) {
        double number = PyFloat_AsDouble(value);
        if (!PyErr_Occurred()) {
            memcpy(bits, &number, sizeof number);
            return XPR_ARG_DOUBLE;
        }
    } else if (strncmp(type, "bool", 4) == 0) {
        int truth = PyObject_IsTrue(value);
        if (truth >= 0) {
            *bits = (uint64_t)truth;
            return XPR_ARG_BOOL;
        }
    }
    PyErr_Clear();
    return 0;
}

static unsigned encode_long(PyObject *value, uint64_t *bits) {
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    *bits = (uint64_t)number;
    if (!overflow) return XPR_ARG_INT;
    *bits = PyLong_AsUnsignedLongLong(value);
    if (!PyErr_Occurred()) return XPR_ARG_UINT;
    PyErr_Clear();
    double nearest = PyLong_AsDouble(value);
    memcpy(bits, &nearest, sizeof nearest);
    if (!PyErr_Occurred()) return XPR_ARG_DOUBLE;
    PyErr_Clear();
    return 0;
}

/* What nearly every argument is, first and without a call: an int of one digit, whose value lies in the object itself. */
static inline bool small_long(PyObject *value, uint64_t *bits) {
    if (!PyLong_CheckExact(value)) return false;
#if PY_VERSION_HEX >= 0x030C0000
    if (!PyUnstable_Long_IsCompact((PyLongObject *)value)) return false;
    *bits = (uint64_t)(int64_t)PyUnstable_Long_CompactValue((PyLongObject *)value);
#else
    Py_ssize_t digits = Py_SIZE(value); /* negative: of a negative number */
    if (digits < -1 || digits > 1) return false;
    *bits = (uint64_t)(digits * (int64_t)((PyLongObject *)value)->ob_digit[0]);
#endif
    return true;
}

static __attribute__((noinline)) unsigned encode_other(PyObject *value, uint32_t generation, uint64_t *bits) {
    unsigned kind = 0;
    if (PyFloat_Check(value)) {
        double number = PyFloat_AS_DOUBLE(value);
        memcpy(bits, &number, sizeof number);
        return XPR_ARG_DOUBLE;
    }
    if (PyBool_Check(value)) {
        *bits = value == Py_True;
        return XPR_ARG_BOOL;
    }
    if (PyLong_Check(value))
        kind = encode_long(value, bits);
    else if (!PyUnicode_Check(value))
        kind = encode_numpy(value, bits);
    if (kind) return kind;
    bool is_new;
    *bits = string_id(value, generation, XPR_USE_TEXT, &is_new);
    return XPR_ARG_TEXT;
}

static inline unsigned encode_value(PyObject *value, uint32_t generation, uint64_t *bits) {
    return small_long(value, bits) ? XPR_ARG_INT : encode_other(value, generation, bits);
}

static bool is_name_key(PyObject *key) {
    return key == key_name || (PyUnicode_Check(key) && PyUnicode_Compare(key, key_name) == 0);
}

static Py_ssize_t step_name_at(const xpr_span *span) {
    Py_ssize_t n = span->kwnames ? PyTuple_GET_SIZE(span->kwnames) : 0;
    for (Py_ssize_t i = 0; i < n; i++)
        if (is_name_key(PyTuple_GET_ITEM(span->kwnames, i))) return i;
    return -1;
}

PyObject *xpr_name_without(const xpr_span *span) {
    Py_ssize_t at = span->kind == XPR_STEP ? step_name_at(span) : -1;
    return at < 0 ? default_names[span->kind] : span->values[at + 1];
}

static uint16_t intern_schema(const xpr_span *span, unsigned count, uint64_t kinds, uint32_t generation) {
    uint32_t keys[XPR_MAX_ARGS];
    unsigned n = 0;
    bool is_new;
    if (span->kind == XPR_STEP) keys[n++] = string_id(key_step_num, generation, XPR_USE_NAME, &is_new);
    if (span->kind == XPR_COUNTER) keys[n++] = string_id(key_value, generation, XPR_USE_NAME, &is_new);
    Py_ssize_t all = span->kwnames ? PyTuple_GET_SIZE(span->kwnames) : 0;
    for (Py_ssize_t i = 0; i < all && n < count; i++) {
        PyObject *key = PyTuple_GET_ITEM(span->kwnames, i);
        if (span->kind == XPR_STEP && is_name_key(key)) continue;
        keys[n++] = string_id(key, generation, XPR_USE_NAME, &is_new);
    }
    if (n < count) keys[n++] = string_id(key_cpu_ns, generation, XPR_USE_NAME, &is_new);
    return (uint16_t)xpr_intern_schema(keys, count, kinds);
}

static __attribute__((noinline)) uint16_t schema_is_new(const xpr_span *span, unsigned count, uint64_t kinds,
                                                        uint32_t generation, struct known_schema *known) {
    uint16_t id = intern_schema(span, count, kinds, generation);
    if (id) {
        PyObject *old = known->kwnames;
        *known = (struct known_schema){Py_XNewRef(span->kwnames), kinds, generation, id, span->kind};
        Py_XDECREF(old);
    }
    return id;
}

static inline uint16_t schema_id(const xpr_span *span, unsigned count, uint64_t kinds, uint32_t generation) {
    struct known_schema *known = &schemas[slot_of(span->kwnames, kinds, SCHEMA_CACHE)];
    if (__builtin_expect(known->kwnames == span->kwnames && known->kinds == kinds && known->generation == generation &&
                             known->event_kind == span->kind, 1))
        return known->id;
    return schema_is_new(span, count, kinds, generation, known);
}

uint16_t xpr_encode_only(const xpr_span *span, uint32_t generation, uint64_t *value) {
    uint64_t kinds = encode_value(span->values[0], generation, value);
    return schema_id(span, 1, kinds, generation);
}

static void set_words(struct xpr_event *slot, uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    xpr_slot_word *words = (xpr_slot_word *)slot;
    words[0] = a;
    words[1] = b;
    words[2] = c;
    words[3] = d;
}

unsigned xpr_encode(struct xpr_event *slots, const xpr_span *span, uint64_t word, uint32_t generation) {
    Py_ssize_t skip = span->kind == XPR_STEP && span->kwnames ? step_name_at(span) : -1;
    if (skip >= 0) skip++; /* after the number */
    set_words(slots, slots->start, slots->duration, word, 0);
    if (span->count == 0) return 1;

    uint64_t bits[XPR_MAX_ARGS];
    uint64_t kinds = 0;
    unsigned count = 0;
    for (Py_ssize_t i = 0; i < span->count; i++) {
        if (i == skip) continue;
        if (count == XPR_MAX_ARGS) {
            xpr_count_dropped_args((uint64_t)(span->count - i));
            break;
        }
        kinds |= (uint64_t)encode_value(span->values[i], generation, &bits[count]) << (4 * count);
        count++;
    }
    if (span->kind == XPR_STEP && span->cpu_ns >= 0) {
        if (count < XPR_MAX_ARGS) {
            kinds |= (uint64_t)XPR_ARG_INT << (4 * count);
            bits[count++] = (uint64_t)span->cpu_ns;
        } else {
            xpr_count_dropped_args(1);
        }
    }
    if (count == 0) return 1;
    uint16_t schema = schema_id(span, count, kinds, generation);
    if (!schema) return 1; /* counted by the core */
    unsigned used = 1;
    for (unsigned i = 1; i < count; i += 3, used++) /* struct xpr_more */
        set_words(&slots[used], bits[i], i + 1 < count ? bits[i + 1] : 0, (used - 1) | (uint64_t)XPR_KIND_MORE << 32,
                  i + 2 < count ? bits[i + 2] : 0);
    /* The word counts one slot already. */
    set_words(slots, slots->start, slots->duration, (word + ((uint64_t)(used - 1) << 40)) | (uint64_t)schema << 48, bits[0]);
    return used;
}

/* Whether asking for the value would wait: an array of JAX that its device has not computed yet. */
static bool is_awaited(PyObject *value) {
    PyObject *ready = PyObject_HasAttrString(value, "is_ready") ? PyObject_CallMethod(value, "is_ready", NULL) : NULL;
    bool awaited = ready == Py_False;
    Py_XDECREF(ready);
    PyErr_Clear();
    return awaited;
}

static void say_that_steps_are_counted(PyObject *value) {
    static uint32_t said_in = UINT32_MAX; /* the capture */
    if (said_in == xpr_recording()) return;
    said_in = xpr_recording();
    PyObject *messages = PyImport_ImportModule("xprof_py.messages");
    PyObject *text = PyUnicode_FromFormat(
        "step() was given a %s whose number is not known without waiting for it, or is none: such steps are numbered one more than "
        "the last. Give it an int",
        Py_TYPE(value)->tp_name);
    PyObject *done = messages && text ? PyObject_CallMethod(messages, "warn", "O", text) : NULL;
    Py_XDECREF(done);
    Py_XDECREF(text);
    Py_XDECREF(messages);
    PyErr_Clear();
}

void xpr_settle_number(xpr_span *step) {
    static long long last = -1;
    PyObject *given = step->values[0], *number = NULL;
    if (PyFloat_Check(given)) {
        double value = PyFloat_AS_DOUBLE(given);
        if (value == floor(value)) number = PyLong_FromDouble(value);
    } else if (PyIndex_Check(given) && !is_awaited(given)) {
        number = PyNumber_Index(given);
    }
    PyErr_Clear();
    if (!number) {
        say_that_steps_are_counted(given);
        number = PyLong_FromLongLong(last + 1);
        if (!number) { /* no memory: as it was given */
            PyErr_Clear();
            return;
        }
    }
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (!overflow && value < LLONG_MAX) last = value;
    step->values[0] = number;
    Py_DECREF(given);
}

uint16_t xpr_step_number(const xpr_span *step, uint32_t generation, uint64_t *number) {
    static uint32_t schema_generation;
    static uint16_t schema;
    if (!small_long(step->values[0], number)) return 0;
    if (schema_generation != generation) {
        bool is_new;
        uint32_t key = string_id(key_step_num, generation, XPR_USE_NAME, &is_new);
        schema = (uint16_t)xpr_intern_schema(&key, 1, XPR_ARG_INT);
        schema_generation = generation;
    }
    return schema;
}

/* The name that Python knows the calling thread by; NULL: none. Asking threading for its current thread would register a
 * foreign thread there, so its table is only looked at. */
static PyObject *python_thread_name(void) {
    PyObject *found = NULL;
    PyObject *name = PyUnicode_FromString("threading");
    PyObject *threading = name ? PyImport_GetModule(name) : NULL;
    PyObject *active = threading ? PyObject_GetAttrString(threading, "_active") : NULL;
    PyObject *ident = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
    if (active && ident && PyDict_Check(active)) {
        PyObject *thread = PyDict_GetItemWithError(active, ident);
        if (thread) {
            Py_INCREF(thread);
            found = PyObject_GetAttrString(thread, "_name");
            Py_DECREF(thread);
        }
    }
    Py_XDECREF(ident);
    Py_XDECREF(active);
    Py_XDECREF(threading);
    Py_XDECREF(name);
    if (found && !PyUnicode_Check(found)) Py_CLEAR(found);
    PyErr_Clear();
    return found;
}

struct xpr_log *xpr_log_slow(uint32_t generation) {
    /* A span may end because of an exception, which must come out as it went in. */
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *name = python_thread_name();
    const char *utf8 = name ? PyUnicode_AsUTF8(name) : NULL;
    PyErr_Clear();
    struct xpr_log *log = xpr_log_here(generation); /* there is one if the thread's first event came through trace.h */
    if (!log) log = xpr_log_begin(generation, utf8);
    Py_XDECREF(name);
    if (log) {
        log->greeted_in = generation;
        xpr_call_thread_hook();
    }
    PyErr_Restore(type, value, traceback);
    /* The hook is the program's code: it may have stopped the capture, or started another. */
    return log ? xpr_log_here(generation) : NULL;
}

void xpr_forget_names(void) {
    for (unsigned i = 0; i < XPR_KNOWN_NAMES; i++) Py_CLEAR(xpr_known_names[i].text);
    for (unsigned i = 0; i < SCHEMA_CACHE; i++) {
        schemas[i].generation = 0;
        Py_CLEAR(schemas[i].kwnames);
    }
}

int xpr_add_values(PyObject *module) {
    static const char *const texts[] = {[XPR_SPAN] = "span",   [XPR_STEP] = "train", [XPR_INPUT] = "input",
                                        [XPR_CHECKPOINT] = "checkpoint", [XPR_MARK] = "mark",
                                        [XPR_COUNTER] = "counter",       [XPR_COMPILE] = "compile",
                                        [XPR_GC] = "gc"};
    key_name = PyUnicode_InternFromString("name");
    key_step_num = PyUnicode_InternFromString("step_num");
    key_value = PyUnicode_InternFromString("value");
    key_cpu_ns = PyUnicode_InternFromString("cpu_ns");
    if (!key_name || !key_step_num || !key_value || !key_cpu_ns) return -1;
    for (int i = XPR_SPAN; i <= XPR_GC; i++)
        if (!(default_names[i] = PyUnicode_InternFromString(texts[i]))) return -1;
    return module ? 0 : -1;
}
