#define _GNU_SOURCE
#define XPROF_PY_RECORDER
#include "recorder/trace_table.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>

#include "recorder/recorder.h"
#include "xprof_py/trace.h"

/* Numbers of schema.Kind. */
enum { SPAN = 1, MARK = 5, COUNTER = 6 };

static struct xpr_log *log_of(uint32_t capture) {
    struct xpr_log *log = xpr_log_here(capture);
    return __builtin_expect(log != NULL, 1) ? log : xpr_log_begin(capture, NULL);
}

/* What a site's state holds: its name in bits 0-23, its schema in 24-39, the low bits of the capture's number in 40-63. */
static uint64_t capture_bits(uint32_t capture) { return (uint64_t)capture << 40; }

static __attribute__((noinline)) uint64_t intern_site(xprof_py_site *site, uint32_t capture, unsigned kind) {
    uint32_t name = xpr_intern(site->name, strlen(site->name), XPR_USE_NAME, NULL);
    const char *key_text = kind == COUNTER ? "value" : site->key;
    uint32_t schema = 0;
    if (key_text) {
        uint32_t key = xpr_intern(key_text, strlen(key_text), XPR_USE_NAME, NULL);
        schema = xpr_intern_schema(&key, 1, kind == COUNTER ? XPR_ARG_DOUBLE : XPR_ARG_INT);
    }
    uint64_t state = capture_bits(capture) | (uint64_t)schema << 24 | name;
    /* What is past a limit is counted at every use, and so never kept. Threads may store the same state at once. */
    if (name > XPR_MORE_TEXTS && (schema || !key_text)) __atomic_store_n(&site->state, state, __ATOMIC_RELAXED);
    return state;
}

/* Whether the state is of this capture; 0 is of none. */
static inline bool is_known(uint64_t state, uint32_t capture) {
    return __builtin_expect(state >> 40 == (capture_bits(capture) >> 40) && state, 1);
}

static inline uint64_t state_of(xprof_py_site *site, uint32_t capture, unsigned kind) {
    uint64_t state = __atomic_load_n(&site->state, __ATOMIC_RELAXED);
    return is_known(state, capture) ? state : intern_site(site, capture, kind);
}

static inline uint64_t word_of(uint64_t state, unsigned kind) {
    return xpr_event_word((uint32_t)state & 0xFFFFFFu, (uint8_t)kind) | (state >> 24 & 0xFFFF) << 48;
}

static void append(struct xpr_log *log, xprof_py_site *site, uint32_t capture, unsigned kind, uint64_t start,
                   uint64_t duration, uint64_t value) {
    uint64_t word = word_of(state_of(site, capture, kind), kind);
    xpr_log_append_one(log, start, duration, word, word >> 48 ? value : 0);
}

/* Only its thread changes it. */
static inline void one_more(_Atomic uint64_t *counter) {
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + 1, memory_order_relaxed);
}

static __attribute__((noinline)) xprof_py_span begin_any(xprof_py_site *site, uint32_t capture) {
    xprof_py_span span = {0, 0, 0};
    struct xpr_log *log = log_of(capture);
    if (!log) return span;
    uint32_t name = site ? (uint32_t)state_of(site, capture, SPAN) & 0xFFFFFFu : 0;
    one_more(&log->begun_in_c);
    span.capture = capture;
    span.start = xpr_clock_now();
    if (site) {
        span.thread = log->index + 1;
        xpr_log_enter(log, span.start, xpr_event_word(name, SPAN), 0);
    }
    return span;
}

/* What nearly every span needs, without a call: see begin_recorded in native/python/annotations.c. */
static xprof_py_span begin(xprof_py_site *site, uint32_t capture) {
    struct xpr_log *log = xpr_log_here(capture);
    if (!log || !site || !xpr_clock_is_counter()) return begin_any(site, capture);
    uint64_t state = __atomic_load_n(&site->state, __ATOMIC_RELAXED);
    if (!is_known(state, capture) || !xpr_log_can_enter(log)) return begin_any(site, capture);
    one_more(&log->begun_in_c);
    xprof_py_span span = {xpr_clock_counter(), capture, log->index + 1};
    xpr_log_enter_plain(log, span.start, xpr_event_word((uint32_t)state & 0xFFFFFFu, SPAN));
    return span;
}

static __attribute__((noinline)) void end_any(xprof_py_site *site, xprof_py_span span, int64_t value, uint64_t stop) {
    if (span.capture != xpr_recording()) return;
    struct xpr_log *log = log_of(span.capture);
    bool is_here = log && log->index + 1 == span.thread;
    /* Before the event: a stop between the two counts a span as open, after it would take one for open that has ended. */
    if (span.thread && !is_here) xpr_log_left_elsewhere(span.thread - 1, span.capture, span.start);
    if (log) {
        append(log, site, span.capture, SPAN, span.start, stop > span.start ? stop - span.start : 0, (uint64_t)value);
        one_more(&log->ended_in_c);
    }
    if (is_here) xpr_log_leave(log, span.start);
}

static __attribute__((noinline)) void end_now(xprof_py_site *site, xprof_py_span span, int64_t value) {
    end_any(site, span, value, xpr_clock_now());
}

static void end(xprof_py_site *site, xprof_py_span span, int64_t value) {
    if (!xpr_clock_is_counter()) {
        end_now(site, span, value);
        return;
    }
    uint64_t stop = xpr_clock_counter(), head;
    struct xpr_log *log = xpr_log_here(span.capture);
    uint64_t state = __atomic_load_n(&site->state, __ATOMIC_RELAXED);
    if (!log || span.capture != xpr_recording() || log->index + 1 != span.thread || !is_known(state, span.capture) ||
        stop < span.start || !xpr_log_has_slot(log, &head)) {
        end_any(site, span, value, stop);
        return;
    }
    uint64_t word = word_of(state, SPAN);
    xpr_log_fill_slot(log, head, span.start, stop - span.start, word, word >> 48 ? (uint64_t)value : 0);
    one_more(&log->ended_in_c);
    xpr_log_leave(log, span.start);
}

static void mark(xprof_py_site *site, int64_t value) {
    uint32_t capture = xpr_recording();
    struct xpr_log *log = capture ? log_of(capture) : NULL;
    if (log) append(log, site, capture, MARK, xpr_clock_now(), 0, (uint64_t)value);
}

static void counter(xprof_py_site *site, double value) {
    uint32_t capture = xpr_recording();
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    struct xpr_log *log = capture ? log_of(capture) : NULL;
    if (log) append(log, site, capture, COUNTER, xpr_clock_now(), 0, bits);
}

__attribute__((visibility("default"))) extern const struct xprof_py_trace_table xprof_py_trace_table_v1;
const struct xprof_py_trace_table xprof_py_trace_table_v1 = {
    .version = 1,
    .bytes = sizeof(struct xprof_py_trace_table),
    .active = (const uint32_t *)&xpr_active,
    .begin = begin,
    .end = end,
    .mark = mark,
    .counter = counter,
};

/* Names of the loaded libraries: they are opened after the walk, which holds the loader's lock. */
static int keep_name(struct dl_phdr_info *info, size_t size, void *names) {
    (void)size;
    size_t bytes = strlen(info->dlpi_name) + 1;
    void *place = bytes > 1 ? xpr_bytes_add(names, bytes) : NULL;
    if (place) memcpy(place, info->dlpi_name, bytes);
    return 0;
}

static void attach(const char *library) {
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle) return;
    /* Also finds the one of a library that it depends on, which is then told twice. */
    struct xprof_py_trace_image *image = dlsym(handle, XPROF_PY_IMAGE_NAME);
    if (image) {
        image->table = &xprof_py_trace_table_v1;
        __atomic_store_n(&image->active, xprof_py_trace_table_v1.active, __ATOMIC_RELEASE);
    }
    dlclose(handle);
}

void xpr_publish_trace_table(void) {
    /* The extension is loaded for itself alone; opened once more for all, its one exported table can be found by name. */
    Dl_info own;
    if (dladdr(&xprof_py_trace_table_v1, &own)) dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_GLOBAL);
    struct xpr_bytes names = {0};
    dl_iterate_phdr(keep_name, &names);
    attach(NULL); /* the program itself */
    for (size_t at = 0; at < names.used; at += strlen((char *)names.data + at) + 1) attach((char *)names.data + at);
    xpr_bytes_free(&names);
}
