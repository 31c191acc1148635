#define _GNU_SOURCE
#define XPROF_PY_RECORDER
#include "recorder/trace_table.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>

#include "device/ranges.h"
#include "recorder/filter.h"
#include "recorder/recorder.h"
#include "xprof_py/trace.h"

/* Numbers of schema.Kind. */
enum { SPAN = 1, MARK = 5, COUNTER = 6 };

/* What the thread was named by name_thread; cut off as rings_format.h does it. */
static _Thread_local char thread_name[64] __attribute__((tls_model("initial-exec")));

static struct xpr_log *log_of(uint32_t capture) {
    struct xpr_log *log = xpr_log_here(capture);
    return __builtin_expect(log != NULL, 1) ? log : xpr_log_begin(capture, *thread_name ? thread_name : NULL);
}

/* What a site's state holds: its name in bits 0-22, XPROF_PY_SITE_IS_LONG in 23, its schema in 24-39, the low bits of the
 * capture's number in 40-63. */
enum { NAME_BITS = 0x7FFFFF };
_Static_assert(XPR_MAX_NAMES + XPR_MAX_TEXTS + XPR_MORE_TEXTS < NAME_BITS, "ids of strings fit");

static uint64_t capture_bits(uint32_t capture) { return (uint64_t)capture << 40; }

static __attribute__((noinline)) uint64_t intern_site(xprof_py_site *site, uint32_t capture, unsigned kind) {
    uint32_t name = xpr_intern(site->name, strlen(site->name), XPR_USE_NAME, NULL);
    const char *key_text = kind == COUNTER ? "value" : site->key;
    uint32_t schema = 0;
    if (key_text) {
        uint32_t key = xpr_intern(key_text, strlen(key_text), XPR_USE_NAME, NULL);
        schema = xpr_intern_schema(&key, 1, kind == COUNTER ? XPR_ARG_DOUBLE : XPR_ARG_INT);
    }
    uint64_t is_long = __atomic_load_n(&site->state, __ATOMIC_RELAXED) & XPROF_PY_SITE_IS_LONG;
    uint64_t state = capture_bits(capture) | (uint64_t)schema << 24 | is_long | name;
    /* What is past a limit is counted at every use, and so never kept. Threads may store the same state at once. */
    if (name > XPR_MORE_TEXTS && (schema || !key_text)) __atomic_store_n(&site->state, state, __ATOMIC_RELAXED);
    return state;
}

/* Whether the state is of this capture. */
static inline bool is_known(uint64_t state, uint32_t capture) {
    return __builtin_expect((state ^ capture_bits(capture)) >> 40 == 0 && (state & NAME_BITS), 1);
}

static inline uint64_t state_of(xprof_py_site *site, uint32_t capture, unsigned kind) {
    uint64_t state = __atomic_load_n(&site->state, __ATOMIC_RELAXED);
    return is_known(state, capture) ? state : intern_site(site, capture, kind);
}

static inline uint64_t word_of(uint64_t state, unsigned kind) {
    return xpr_event_word((uint32_t)state & NAME_BITS, (uint8_t)kind) | (state >> 24 & 0xFFFF) << 48;
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

/* Whether the filter in force lets the site's spans and marks through. Asked once for each site and filter. */
static inline bool wanted(xprof_py_site *site) {
    uint32_t filter = xpr_filter_number();
    if (__builtin_expect(!filter, 1) || !(__atomic_load_n(&site->state, __ATOMIC_RELAXED) & XPROF_PY_SITE_IS_LONG)) return true;
    uint32_t known = __atomic_load_n(&site->admitted, __ATOMIC_RELAXED);
    if (known >> 1 != filter) {
        bool has_level = site->level != XPROF_PY_NO_LEVEL;
        known = xpr_filter_ask(has_level ? &site->level : NULL, site->category);
        __atomic_store_n(&site->admitted, known, __ATOMIC_RELAXED);
    }
    return known & 1;
}

static __attribute__((noinline)) xprof_py_span begin_any(xprof_py_site *site, uint32_t capture) {
    xprof_py_span span = {0, 0, 0};
    if (site && !wanted(site)) return span;
    struct xpr_log *log = log_of(capture);
    if (!log) return span;
    uint32_t name = site ? (uint32_t)state_of(site, capture, SPAN) & NAME_BITS : 0;
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
    if (!log || !site || !xpr_clock_is_counter() || xpr_filter_number()) return begin_any(site, capture);
    uint64_t state = __atomic_load_n(&site->state, __ATOMIC_RELAXED);
    if (!is_known(state, capture) || !xpr_log_can_enter(log)) return begin_any(site, capture);
    one_more(&log->begun_in_c);
    xprof_py_span span = {xpr_clock_counter(), capture, log->index + 1};
    xpr_log_enter_plain(log, span.start, xpr_event_word((uint32_t)state & NAME_BITS, SPAN));
    return span;
}

/* The log in which a span ends, NULL: none. `is_here`: it is that of the thread which knows the span as open. */
static inline struct xpr_log *log_at_end(xprof_py_span span, bool *is_here) {
    struct xpr_log *log = log_of(span.capture);
    *is_here = log && log->index + 1 == span.thread;
    /* Before the event: a stop between the two counts a span as open, after it would take one for open that has ended. */
    if (__builtin_expect(span.thread && !*is_here, 0)) xpr_log_left_elsewhere(span.thread - 1, span.capture, span.start);
    return log;
}

static inline uint64_t length(xprof_py_span span, uint64_t stop) { return stop > span.start ? stop - span.start : 0; }

static __attribute__((noinline)) void end_any(xprof_py_site *site, xprof_py_span span, int64_t value, uint64_t stop) {
    if (span.capture != xpr_recording()) return;
    bool is_here;
    struct xpr_log *log = log_at_end(span, &is_here);
    if (log) {
        /* What began with its site was looked at then. */
        if (span.thread || wanted(site)) append(log, site, span.capture, SPAN, span.start, length(span, stop), (uint64_t)value);
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
    struct xpr_log *log = capture && wanted(site) ? log_of(capture) : NULL;
    if (log) append(log, site, capture, MARK, xpr_clock_now(), 0, (uint64_t)value);
}

static void counter(xprof_py_site *site, double value) {
    uint32_t capture = xpr_recording();
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    struct xpr_log *log = capture ? log_of(capture) : NULL;
    if (log) append(log, site, capture, COUNTER, xpr_clock_now(), 0, bits);
}

/* --- names at run time ------------------------------------------------------------------------------------------- */

static uint32_t intern(const char *text, size_t bytes, int is_argument) {
    return xpr_intern(text, bytes, is_argument ? XPR_USE_TEXT : XPR_USE_NAME, NULL);
}

static uint32_t schema_of(const uint32_t *keys, uint32_t count, uint64_t kinds) {
    return count && count <= XPR_MAX_ARGS ? xpr_intern_schema(keys, count, kinds) : 0;
}

static __attribute__((noinline)) void append_slots(struct xpr_log *log, const struct xprof_py_event *event, unsigned kind,
                                                   uint64_t start, uint64_t duration) {
    union {
        struct xpr_event event;
        struct xpr_more more;
    } slots[XPR_MAX_SLOTS];
    unsigned count = event->count, used = 1;
    for (unsigned i = 1; i < count; i += 3, used++)
        slots[used].more = (struct xpr_more){
            .value_a = event->values[i],
            .value_b = i + 1 < count ? event->values[i + 1] : 0,
            .index = used - 1,
            .kind = XPR_KIND_MORE,
            .value_c = i + 2 < count ? event->values[i + 2] : 0,
        };
    slots[0].event = (struct xpr_event){
        .start = start,
        .duration = duration,
        .name = event->name,
        .kind = (uint8_t)kind,
        .flags = (uint8_t)used,
        .schema = event->schema,
        .value = event->values[0],
    };
    xpr_log_append(log, &slots[0].event, used);
}

static inline void append_named(struct xpr_log *log, const struct xprof_py_event *event, unsigned kind, uint64_t start,
                                uint64_t duration) {
    uint64_t word = xpr_event_word(event->name, (uint8_t)kind);
    if (!event->schema || !event->count)
        xpr_log_append_one(log, start, duration, word, 0);
    else if (event->count == 1)
        xpr_log_append_one(log, start, duration, word | (uint64_t)event->schema << 48, event->values[0]);
    else
        append_slots(log, event, kind, start, duration);
}

static xprof_py_span enter(uint32_t capture, const struct xprof_py_event *event) {
    xprof_py_span span = {0, 0, 0};
    struct xpr_log *log = log_of(capture);
    if (!log) return span;
    one_more(&log->begun_in_c);
    span.capture = capture;
    span.thread = log->index + 1;
    span.start = xpr_clock_now();
    /* Its place among the open spans is one slot, which has room for one argument. */
    uint64_t schema = event->count == 1 ? event->schema : 0;
    xpr_log_enter(log, span.start, xpr_event_word(event->name, SPAN) | schema << 48, schema ? event->values[0] : 0);
    return span;
}

static void leave(xprof_py_span span, const struct xprof_py_event *event) {
    uint64_t stop = xpr_clock_now();
    if (!span.capture || span.capture != xpr_recording()) return;
    bool is_here;
    struct xpr_log *log = log_at_end(span, &is_here);
    if (log) {
        append_named(log, event, SPAN, span.start, length(span, stop));
        one_more(&log->ended_in_c);
    }
    if (is_here) xpr_log_leave(log, span.start);
}

static void instant(uint32_t capture, const struct xprof_py_event *event) {
    struct xpr_log *log = capture == xpr_recording() ? log_of(capture) : NULL;
    if (log) append_named(log, event, MARK, xpr_clock_now(), 0);
}

static void name_thread(const char *name) {
    size_t bytes = strnlen(name, sizeof thread_name);
    if (bytes == sizeof thread_name) /* the last character that fits whole */
        for (bytes--; bytes && ((uint8_t)name[bytes] & 0xC0) == 0x80;) bytes--;
    memcpy(thread_name, name, bytes);
    thread_name[bytes] = 0;
}

static int begin_launches(uint32_t name) { return xpr_device_range_push(name); }

__attribute__((visibility("default"))) extern const struct xprof_py_trace_table xprof_py_trace_table_v1;
const struct xprof_py_trace_table xprof_py_trace_table_v1 = {
    .version = 1,
    .bytes = sizeof(struct xprof_py_trace_table),
    .active = (const uint32_t *)&xpr_active,
    .begin = begin,
    .end = end,
    .mark = mark,
    .counter = counter,
    .intern = intern,
    .schema = schema_of,
    .enter = enter,
    .leave = leave,
    .instant = instant,
    .leave_out = xpr_count_dropped_args,
    .name_thread = name_thread,
    .begin_launches = begin_launches,
    .end_launches = xpr_device_range_pop,
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
