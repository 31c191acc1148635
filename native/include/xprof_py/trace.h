/* Annotations for C and C++: what trace, mark and counter are in Python, for a library's own threads and loops.
 *
 *     void work(void) {
 *         XPROF_PY_SITE(site, "forward");            XPROF_PY_SCOPE("forward");      // C++: until the block ends
 *         xprof_py_span span = xprof_py_begin_at(&site);
 *         ...
 *         xprof_py_end(&site, span);
 *     }
 *
 * Linking: none is needed. xprof_py's extension hands its function table to every loaded library that uses this header,
 * whichever of the two is loaded first; a library loaded without xprof_py keeps working and records nothing. A program
 * that hides or does not export the symbol xprof_py_trace_v1 (an executable without -rdynamic, a version script) calls
 * xprof_py_attach() once xprof_py is imported.
 * Threads: any thread may call anything; Python's lock is neither needed nor taken. A span may end on another thread than
 * the one it began on, and belongs to the one it ends on.
 * Cost: off two loads and a branch; on two reads of the clock, one 32-byte store into the thread's own ring, and one that
 * notes that the span is open.
 * Losses: a span that has begun before a capture is not recorded; what no longer fits into a thread's ring is counted and
 * shown. One that is open as the capture stops, or as the process is killed, is recorded as open if it was begun with its
 * site; of others the stop counts how many there were.
 * Filters: a site with a level or a category is left out where set_filter says so (XPROF_PY_SITE_FILTERED), as spans of
 * Python are: looked at as the span begins, or as it ends if it began without its site.
 * Compiles without warnings as C11 and C++17 on Linux with gcc or clang. */
#ifndef XPROF_PY_TRACE_H
#define XPROF_PY_TRACE_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One place in the source: static, one for each name. A later version only adds members at the end. */
typedef struct xprof_py_site {
    const char *name; /* UTF-8; must live as long as the site */
    const char *key;  /* of the event's one integer argument, NULL: it has none */
    uint64_t state;   /* the recorder's, but for the bit XPROF_PY_SITE_IS_LONG: the members below are there */
    const char *category; /* NULL: none */
    int32_t level;        /* XPROF_PY_NO_LEVEL: none */
    uint32_t admitted;    /* the recorder's */
} xprof_py_site;

#define XPROF_PY_SITE_IS_LONG ((uint64_t)1 << 23)
#define XPROF_PY_NO_LEVEL INT32_MIN

/* A begun span; a plain value, which the caller keeps until the end. Without a capture it is all 0. */
typedef struct xprof_py_span {
    uint64_t start;
    uint32_t capture;
    uint32_t thread; /* that knows it as open, 0: none */
} xprof_py_span;

/* A span or instant of a name and a schema that the recorder handed out. */
struct xprof_py_event {
    uint32_t name;
    uint16_t schema;
    uint16_t count; /* of arguments: those of the schema, at most XPROF_PY_MAX_ARGUMENTS */
    const uint64_t *values;
};

#define XPROF_PY_MAX_ARGUMENTS 16

/* The recorder's side. A later version only adds members at the end; `bytes` tells which are there. */
struct xprof_py_trace_table {
    uint32_t version; /* 1 */
    uint32_t bytes;   /* of this struct */
    const uint32_t *active;
    xprof_py_span (*begin)(xprof_py_site *site, uint32_t capture);
    void (*end)(xprof_py_site *site, xprof_py_span span, int64_t value);
    void (*mark)(xprof_py_site *site, int64_t value);
    void (*counter)(xprof_py_site *site, double value);
    /* For names that come at run time, as those of NVTX ranges do; present where `bytes` reaches them. Ids are those of the
     * capture that runs. 0 for a name, 1 for an argument's text and 0 for a schema stand for what is past the limits, which is
     * counted at each use: keep no such id. */
    uint32_t (*intern)(const char *text, size_t bytes, int is_argument);
    uint32_t (*schema)(const uint32_t *keys, uint32_t count, uint64_t kinds); /* kind of key i in bits [4i, 4i + 4) */
    xprof_py_span (*enter)(uint32_t capture, const struct xprof_py_event *event);
    void (*leave)(xprof_py_span span, const struct xprof_py_event *event); /* on any thread, with what it was entered with */
    void (*instant)(uint32_t capture, const struct xprof_py_event *event);
    void (*leave_out)(uint64_t count); /* counts arguments that an event should have had */
    void (*name_thread)(const char *name); /* the calling one; shown if its first event is yet to come */
    /* Marks device work that this thread launches from here as done for a name. 0: nobody collects device work, and there is
     * nothing to undo. */
    int (*begin_launches)(uint32_t name);
    void (*end_launches)(void);
};

/* The library's side, one in each; the recorder finds it by its name. */
struct xprof_py_trace_image {
    const struct xprof_py_trace_table *table; /* NULL: not attached */
    const uint32_t *active;                   /* of the table, or a word that stays 0 */
    uint32_t never;
};

#define XPROF_PY_TABLE_NAME "xprof_py_trace_table_v1"
#define XPROF_PY_IMAGE_NAME "xprof_py_trace_v1"

#ifndef XPROF_PY_RECORDER
__attribute__((weak, visibility("default"))) struct xprof_py_trace_image xprof_py_trace_v1 = {NULL, &xprof_py_trace_v1.never, 0};

/* Looks for the recorder. Returns whether it is there. Runs by itself when the library is loaded. */
static inline int xprof_py_attach(void) {
    void *program = dlopen(NULL, RTLD_LAZY);
    if (!program) return 0;
    const struct xprof_py_trace_table *table = (const struct xprof_py_trace_table *)dlsym(program, XPROF_PY_TABLE_NAME);
    dlclose(program);
    if (!table || table->version != 1) return 0;
    xprof_py_trace_v1.table = table;
    __atomic_store_n(&xprof_py_trace_v1.active, table->active, __ATOMIC_RELEASE);
    return 1;
}

__attribute__((constructor)) static void xprof_py_attach_at_load(void) { xprof_py_attach(); }

/* The number of the capture that runs, 0: none. */
static inline uint32_t xprof_py_recording(void) {
    /* The second load needs the first one's value, which orders them; the table is set before `active` is. */
    return __atomic_load_n(__atomic_load_n(&xprof_py_trace_v1.active, __ATOMIC_ACQUIRE), __ATOMIC_RELAXED);
}

/* For filters: level is an integer or XPROF_PY_NO_LEVEL, category a text or NULL, key as below or NULL. */
#define XPROF_PY_SITE_FILTERED(variable, name, key, level, category) \
    static xprof_py_site variable = {name, key, XPROF_PY_SITE_IS_LONG, category, level, 0}
#define XPROF_PY_SITE(variable, name) XPROF_PY_SITE_FILTERED(variable, name, NULL, XPROF_PY_NO_LEVEL, NULL)
/* With one integer argument, given at the end: XPROF_PY_SITE_KEY(site, "send", "bytes"). */
#define XPROF_PY_SITE_KEY(variable, name, key) XPROF_PY_SITE_FILTERED(variable, name, key, XPROF_PY_NO_LEVEL, NULL)

/* `site`: the one that it will end with, so that it has a name while it is open; NULL: not known yet. */
static inline xprof_py_span xprof_py_begin_at(xprof_py_site *site) {
    xprof_py_span span = {0, xprof_py_recording(), 0};
    if (__builtin_expect(span.capture != 0, 0)) span = xprof_py_trace_v1.table->begin(site, span.capture);
    return span;
}

static inline xprof_py_span xprof_py_begin(void) { return xprof_py_begin_at(NULL); }

/* `value`: the argument of a site with a key. */
static inline void xprof_py_end_value(xprof_py_site *site, xprof_py_span span, int64_t value) {
    if (__builtin_expect(span.capture != 0, 0)) xprof_py_trace_v1.table->end(site, span, value);
}

static inline void xprof_py_end(xprof_py_site *site, xprof_py_span span) { xprof_py_end_value(site, span, 0); }

/* An instant. */
static inline void xprof_py_mark_value(xprof_py_site *site, int64_t value) {
    if (__builtin_expect(xprof_py_recording() != 0, 0)) xprof_py_trace_v1.table->mark(site, value);
}

static inline void xprof_py_mark(xprof_py_site *site) { xprof_py_mark_value(site, 0); }

/* A sampled value. */
static inline void xprof_py_counter(xprof_py_site *site, double value) {
    if (__builtin_expect(xprof_py_recording() != 0, 0)) xprof_py_trace_v1.table->counter(site, value);
}

/* Work that begins here and ends wherever a completion is handled, overlapping with anything: the caller keeps the value
 * with its request. The id becomes the argument `async_id`. */
typedef struct xprof_py_async_span {
    xprof_py_span span;
    int64_t id;
} xprof_py_async_span;

#define XPROF_PY_ASYNC_SITE(variable, name) XPROF_PY_SITE_KEY(variable, name, "async_id")

static inline xprof_py_async_span xprof_py_async_begin(int64_t id) {
    xprof_py_async_span async = {xprof_py_begin(), id};
    return async;
}

static inline void xprof_py_async_end(xprof_py_site *site, xprof_py_async_span async) {
    xprof_py_end_value(site, async.span, async.id);
}
#endif /* XPROF_PY_RECORDER */

#ifdef __cplusplus
}
#endif

#if defined(__cplusplus) && !defined(XPROF_PY_RECORDER)
namespace xprof_py {
/* A span until the end of the block, exceptions included. */
class scope {
  public:
    explicit scope(xprof_py_site &site) noexcept : site_(site), span_(xprof_py_begin_at(&site)) {}
    ~scope() { xprof_py_end(&site_, span_); }
    scope(const scope &) = delete;
    scope &operator=(const scope &) = delete;

  private:
    xprof_py_site &site_;
    xprof_py_span span_;
};
}  // namespace xprof_py

#define XPROF_PY_JOIN2(a, b) a##b
#define XPROF_PY_JOIN(a, b) XPROF_PY_JOIN2(a, b)
#define XPROF_PY_SCOPE(name) XPROF_PY_SCOPE_FILTERED(name, XPROF_PY_NO_LEVEL, NULL)
#define XPROF_PY_SCOPE_FILTERED(name, level, category)                                               \
    XPROF_PY_SITE_FILTERED(XPROF_PY_JOIN(xprof_py_site_, __LINE__), name, NULL, level, category); \
    xprof_py::scope XPROF_PY_JOIN(xprof_py_scope_, __LINE__)(XPROF_PY_JOIN(xprof_py_site_, __LINE__))
#endif

#endif
