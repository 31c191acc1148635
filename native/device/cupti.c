#define _GNU_SOURCE
#include "device/cupti.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/cupti_buffers.h"
#include "device/cupti_ranges.h"
#include "device/cupti_walk.h"
#include "recorder/clock.h"
#include "recorder/own_thread.h"

enum { IDLE, STARTING, RUNNING };

enum { STACK_BYTES = 512 << 10, MAX_NODES_BYTES = 16 << 20, BATCH_BYTES = 512 << 10 };

static struct {
    pthread_mutex_t lock;
    pthread_cond_t change; /* by CLOCK_MONOTONIC */
    int state;
    bool stop;
    bool used;   /* CUPTI was called in this process */
    bool forked; /* or in the one that this is a child of */
    struct xpr_cupti_report told; /* the report as it was when the session began, or ended */
    struct xpr_cupti_options options;
    struct xpr_bytes nodes; /* told by CUPTI on the program's threads */
    uint64_t nodes_dropped;
    _Atomic int64_t callback_cpu_ns; /* on threads that are not ours */

    /* The thread's alone while it runs, not under the lock. */
    struct xpr_cupti_report report;
    struct xpr_cupti cupti;
    ct_subscriber subscriber;
    bool shared;
    uint32_t capture, session;
    struct xpr_cupti_walk walk;
    uint64_t dropped_source, dropped_memory, graph_nodes;
} s = {.lock = PTHREAD_MUTEX_INITIALIZER};

__attribute__((format(printf, 1, 2))) static void note(const char *format, ...) {
    size_t used = strlen(s.report.notes), room = sizeof s.report.notes - used;
    if (room < 2) return;
    va_list arguments;
    va_start(arguments, format);
    if (used) s.report.notes[used++] = '\n', room--;
    vsnprintf(s.report.notes + used, room, format, arguments);
    va_end(arguments);
}

/* --- CUPTI calls us -------------------------------------------------------------------------------------------------- */

static int64_t thread_cpu(void) { return xpr_clock_read_ns(CLOCK_THREAD_CPUTIME_ID); }

/* What callbacks cost on threads that are not ours; ours counts its own time as a whole. */
static _Thread_local bool is_our_thread;

static int64_t callback_begins(void) { return is_our_thread ? 0 : thread_cpu(); }
static void callback_ends(int64_t began) {
    if (!is_our_thread) atomic_fetch_add_explicit(&s.callback_cpu_ns, thread_cpu() - began, memory_order_relaxed);
}

/* Without the lock: CUPTI's threads never wait for ours. A wake-up that is missed costs the time to the next one. */
static void wake(void) { pthread_cond_broadcast(&s.change); }

static void on_request(uint8_t **buffer, size_t *bytes, size_t *most_records) {
    int64_t began = callback_begins();
    *buffer = xpr_cupti_buffer_give(bytes);
    *most_records = 0;
    callback_ends(began);
}

static void on_complete(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid) {
    (void)context;
    (void)stream;
    (void)bytes;
    int64_t began = callback_begins();
    if (buffer && xpr_cupti_buffer_back(buffer, valid)) wake();
    callback_ends(began);
}

static void on_request_v2(uint8_t **buffer, size_t *bytes, size_t *most_records, void *about) {
    (void)about;
    on_request(buffer, bytes, most_records);
}

static void on_complete_v2(uint8_t *buffer, size_t bytes, size_t valid, void *about) {
    (void)about;
    on_complete(NULL, 0, buffer, bytes, valid);
}

static void on_graph_node(uint32_t number, const struct ct_graph_data *graph) {
    struct xpr_graph_node_record record = {.range = xpr_cupti_range_here()};
    if (!s.cupti.graph_node_id) return; /* the child of a fork, which CUPTI may still call */
    if (s.cupti.graph_node_id(graph->node, &record.node) != CT_OK) return;
    if (number == CT_GRAPH_NODE_CLONED && s.cupti.graph_node_id(graph->original_node, &record.original) != CT_OK)
        record.original = 0;
    if (!s.cupti.graph_id || s.cupti.graph_id(graph->graph, &record.graph) != CT_OK) record.graph = 0;
    pthread_mutex_lock(&s.lock);
    void *place = s.nodes.used < MAX_NODES_BYTES ? xpr_bytes_add(&s.nodes, sizeof record) : NULL;
    if (place)
        memcpy(place, &record, sizeof record);
    else
        s.nodes_dropped++;
    pthread_mutex_unlock(&s.lock);
}

static void on_callback(void *user, uint32_t domain, uint32_t number, const void *what) {
    (void)user;
    const struct ct_resource *resource = what;
    if (domain != CT_DOMAIN_RESOURCE || !resource || !resource->descriptor) return;
    if (number != CT_GRAPH_NODE_CREATED && number != CT_GRAPH_NODE_CLONED) return;
    int64_t began = callback_begins();
    on_graph_node(number, resource->descriptor);
    callback_ends(began);
}

/* --- we call CUPTI ---------------------------------------------------------------------------------------------------- */

static int enable(uint32_t kind) {
    /* CUPTI tells of devices as the driver comes up, and of those that are there already only when it is asked to. */
    if (kind == CT_KIND_DEVICE && s.shared && s.cupti.enable_and_dump_v2)
        return s.cupti.enable_and_dump_v2(s.subscriber, kind, NULL);
    if (kind == CT_KIND_DEVICE && !s.shared && s.cupti.enable_and_dump) return s.cupti.enable_and_dump(kind);
    return s.shared ? s.cupti.enable_v2(s.subscriber, kind, NULL) : s.cupti.enable(kind);
}

static int disable(uint32_t kind) {
    return s.shared ? s.cupti.disable_v2(s.subscriber, kind, NULL) : s.cupti.disable(kind);
}

static int subscribe_named(bool shared) {
    struct ct_subscriber_options options = {
        .bytes = shared ? sizeof options : CT_SUBSCRIBER_OPTIONS_13_0,
        .name = "xprof_py",
        .holder = s.report.holder,
        .holder_bytes = sizeof s.report.holder,
        .shared = shared,
    };
    int result = s.cupti.subscribe_v2(&s.subscriber, on_callback, NULL, &options);
    s.report.holder[sizeof s.report.holder - 1] = 0;
    return result;
}

/* Shared where CUPTI has all that takes, else alone. False: why says who is in the way, or what. */
static bool subscribe(void) {
    int result = CT_NOT_COMPATIBLE;
    s.subscriber = NULL;
    s.shared = false;
    if (s.cupti.has_v2) {
        result = subscribe_named(true);
        s.shared = result == CT_OK;
        if (s.shared) return true;
        if (s.cupti.subscribe) note("not shared with other tools: %s (%d)", xpr_cupti_result(result), result);
    }
    if (s.cupti.subscribe) {
        /* 13.0 to 13.2 know the named call, which tells the holder, but not yet the family that goes with it. */
        s.subscriber = NULL;
        bool named = s.cupti.subscribe_v2 && !s.cupti.has_v2;
        result = named ? subscribe_named(false) : s.cupti.subscribe(&s.subscriber, on_callback, NULL);
        if (result == CT_OK) return true;
    }
    s.subscriber = NULL;
    if (result == CT_TAKEN && s.report.holder[0])
        snprintf(s.report.why, sizeof s.report.why, "CUPTI is held by %s", s.report.holder);
    else if (result == CT_TAKEN)
        snprintf(s.report.why, sizeof s.report.why, "another tool holds CUPTI; this release of it does not tell which");
    else
        snprintf(s.report.why, sizeof s.report.why, "CUPTI does not take us: %s (%d)", xpr_cupti_result(result), result);
    return false;
}

static void ask_for_os_threads(void) {
    int result = CT_NOT_COMPATIBLE;
    if (s.shared) {
        uint32_t type = CT_THREAD_ID_SYSTEM;
        size_t bytes = sizeof type;
        if (s.cupti.set_attribute_v2)
            result = s.cupti.set_attribute_v2(s.subscriber, CT_ATTRIBUTE_THREAD_ID_TYPE, &bytes, &type);
    } else if (s.cupti.thread_id_type) {
        result = s.cupti.thread_id_type(CT_THREAD_ID_SYSTEM);
    }
    s.report.os_threads = s.walk.os_threads = result == CT_OK;
    if (result != CT_OK) note("calls do not tell their thread: %s (%d)", xpr_cupti_result(result), result);
}

static void compare_clocks(void) {
    s.report.clock_width_ns = -1;
    for (int i = 0; i < 5; i++) {
        uint64_t at = 0;
        int64_t before = xpr_clock_read_ns(CLOCK_REALTIME);
        int result = s.shared ? (s.cupti.timestamp_v2 ? s.cupti.timestamp_v2(s.subscriber, &at) : CT_NOT_COMPATIBLE)
                              : (s.cupti.timestamp ? s.cupti.timestamp(&at) : CT_NOT_COMPATIBLE);
        int64_t after = xpr_clock_read_ns(CLOCK_REALTIME);
        if (result != CT_OK || after < before) continue;
        if (s.report.clock_width_ns >= 0 && after - before >= s.report.clock_width_ns) continue;
        s.report.clock_width_ns = after - before;
        s.report.clock_offset_ns = (int64_t)at - (before + (after - before) / 2);
    }
    if (s.report.clock_width_ns < 0) note("CUPTI's clock could not be read");
}

static bool want(uint32_t kind, const char *what, bool needed) {
    int result = enable(kind);
    if (result == CT_OK) return true;
    if (needed)
        snprintf(s.report.why, sizeof s.report.why, "CUPTI does not record %s: %s (%d)", what, xpr_cupti_result(result), result);
    else
        note("no %s: %s (%d)", what, xpr_cupti_result(result), result);
    return !needed;
}

/* Calls by their numbers where CUPTI can choose, else all of them, to be chosen from in the walk. */
static void enable_calls(unsigned api, uint32_t kind, const char *what) {
    bool runtime = api == XPR_CALL_RUNTIME;
    bool can_choose = !s.walk.every_call && (s.shared ? (runtime ? s.cupti.enable_runtime_v2 : s.cupti.enable_driver_v2) != NULL
                                                      : (runtime ? s.cupti.enable_runtime : s.cupti.enable_driver) != NULL);
    int taken = 0;
    for (uint32_t number = 1; can_choose && number < XPR_MAX_CALL_NUMBER; number++) {
        if (!xpr_cupti_wants_call(&s.walk, api, number)) continue;
        int result;
        if (s.shared)
            result = (runtime ? s.cupti.enable_runtime_v2 : s.cupti.enable_driver_v2)(s.subscriber, number, 1);
        else
            result = (runtime ? s.cupti.enable_runtime : s.cupti.enable_driver)(number, 1);
        taken += result == CT_OK;
    }
    if (!taken) want(kind, what, false);
}

static void disable_calls(void) {
    for (unsigned api = XPR_CALL_RUNTIME; api <= XPR_CALL_DRIVER; api++)
        for (uint32_t number = 1; number < XPR_MAX_CALL_NUMBER; number++) {
            if (!xpr_cupti_wants_call(&s.walk, api, number)) continue;
            bool runtime = api == XPR_CALL_RUNTIME;
            if (s.shared && s.cupti.enable_runtime_v2 && s.cupti.enable_driver_v2)
                (runtime ? s.cupti.enable_runtime_v2 : s.cupti.enable_driver_v2)(s.subscriber, number, 0);
            else if (!s.shared && s.cupti.enable_runtime && s.cupti.enable_driver)
                (runtime ? s.cupti.enable_runtime : s.cupti.enable_driver)(number, 0);
        }
}

static const uint32_t kinds[] = {CT_KIND_DEVICE, CT_KIND_EXTERNAL, CT_KIND_RUNTIME, CT_KIND_DRIVER, CT_KIND_MEMCPY,
                                 CT_KIND_MEMCPY_PEER, CT_KIND_MEMSET, CT_KIND_SYNC, CT_KIND_OVERHEAD, CT_KIND_GRAPH,
                                 CT_KIND_KERNEL};

static bool enable_all(void) {
    int result = s.shared ? s.cupti.register_callbacks_v2(s.subscriber, on_request_v2, on_complete_v2)
                          : s.cupti.register_callbacks(on_request, on_complete);
    if (result != CT_OK) {
        snprintf(s.report.why, sizeof s.report.why, "CUPTI takes no buffers: %s (%d)", xpr_cupti_result(result), result);
        return false;
    }
    want(CT_KIND_DEVICE, "devices", false);
    want(CT_KIND_EXTERNAL, "ranges", false);
    enable_calls(XPR_CALL_RUNTIME, CT_KIND_RUNTIME, "runtime calls");
    enable_calls(XPR_CALL_DRIVER, CT_KIND_DRIVER, "driver calls");
    want(CT_KIND_MEMCPY, "copies", false);
    want(CT_KIND_MEMCPY_PEER, "copies between devices", false);
    want(CT_KIND_MEMSET, "memsets", false);
    want(CT_KIND_SYNC, "waits", false);
    want(CT_KIND_OVERHEAD, "overheads", false);
    if (s.options.whole_graphs) want(CT_KIND_GRAPH, "whole graphs", false);
    if (s.cupti.enable_callback && s.cupti.graph_node_id) {
        static const uint32_t numbers[] = {CT_GRAPH_NODE_CREATED, CT_GRAPH_NODE_CLONED};
        for (int i = 0; i < 2; i++) {
            result = s.cupti.enable_callback(1, s.subscriber, CT_DOMAIN_RESOURCE, numbers[i]);
            if (result != CT_OK) note("no graph nodes as they are made: %s (%d)", xpr_cupti_result(result), result);
        }
    }
    return want(CT_KIND_KERNEL, "kernels", true);
}

static void disable_all(void) {
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) disable(kinds[i]);
    disable_calls();
    if (!s.cupti.enable_callback) return;
    s.cupti.enable_callback(0, s.subscriber, CT_DOMAIN_RESOURCE, CT_GRAPH_NODE_CREATED);
    s.cupti.enable_callback(0, s.subscriber, CT_DOMAIN_RESOURCE, CT_GRAPH_NODE_CLONED);
}

static void count_dropped(void) {
    size_t count = 0;
    int result = s.shared ? s.cupti.dropped_v2(s.subscriber, NULL, 0, &count) : s.cupti.dropped(NULL, 0, &count);
    if (result == CT_OK) s.dropped_source += count;
}

/* --- the thread -------------------------------------------------------------------------------------------------------- */

static void set_totals(void) {
    struct xpr_collector_record *t = &s.report.totals;
    t->dropped_source = s.dropped_source;
    t->dropped_buffers = xpr_cupti_buffers_refused();
    t->dropped_error = s.walk.no_memory + s.dropped_memory + s.walk.cut_buffers;
    t->unknown_kinds = s.walk.unknown_kinds;
    t->clamped = s.walk.clamped;
    t->buffers = s.walk.buffers;
    t->cpu_ns = (uint64_t)(thread_cpu() + atomic_load(&s.callback_cpu_ns));
    t->shared = s.shared;
    s.report.activities = s.walk.activities;
    s.report.calls = s.walk.calls;
    s.report.graph_nodes = s.graph_nodes;
    s.report.late_ranges = s.walk.late_ranges;
    s.report.cut_buffers = s.walk.cut_buffers;
    s.report.no_memory = s.walk.no_memory + s.dropped_memory;
    s.report.ranges_refused = xpr_cupti_ranges_refused();
    xpr_set_collector_totals(s.capture, t);
}

static void take_nodes(struct xpr_device_batch *batch) {
    pthread_mutex_lock(&s.lock);
    struct xpr_bytes spare = batch->graph_nodes;
    batch->graph_nodes = s.nodes;
    s.nodes = spare;
    s.dropped_memory += s.nodes_dropped;
    s.nodes_dropped = 0;
    pthread_mutex_unlock(&s.lock);
    s.graph_nodes += batch->graph_nodes.used / sizeof(struct xpr_graph_node_record);
}

/* Hands on all that CUPTI gave back, about half a MiB at a time. */
static void parse(void) {
    for (;;) {
        struct xpr_device_batch *batch = xpr_device_batch_new();
        if (!batch) return; /* the buffers wait */
        take_nodes(batch);
        bool more = false;
        size_t valid;
        uint8_t *buffer;
        for (size_t done = 0; !more && (buffer = xpr_cupti_buffer_full(&valid)); more = done >= BATCH_BYTES) {
            xpr_cupti_walk_buffer(&s.walk, buffer, valid, batch);
            xpr_cupti_buffer_free(buffer);
            done += valid;
        }
        if (xpr_device_batch_records(batch) || batch->devices.used)
            xpr_add_device_batch(s.capture, batch);
        else
            xpr_device_batch_free(batch);
        if (!more) return;
    }
}

static void wait_until(int64_t at_ns) {
    struct timespec until = {.tv_sec = at_ns / 1000000000, .tv_nsec = at_ns % 1000000000};
    pthread_mutex_lock(&s.lock);
    int error = 0;
    while (!s.stop && !error && !xpr_cupti_buffers_waiting()) error = pthread_cond_timedwait(&s.change, &s.lock, &until);
    pthread_mutex_unlock(&s.lock);
}

static bool must_stop(void) {
    pthread_mutex_lock(&s.lock);
    bool stop = s.stop;
    pthread_mutex_unlock(&s.lock);
    return stop;
}

static bool begin(void) {
    s.cupti.version(&s.report.totals.version);
    if (!subscribe()) return false;
    if (s.options.only_check) {
        s.report.totals.shared = s.shared;
        s.cupti.unsubscribe(s.subscriber);
        return false;
    }
    if (s.shared) s.walk.subscriber = s.subscriber;
    xpr_cupti_choose_calls(&s.walk);
    ask_for_os_threads();
    compare_clocks();
    if (!enable_all()) {
        disable_all();
        s.cupti.unsubscribe(s.subscriber);
        return false;
    }
    xpr_cupti_ranges_on(&s.cupti, s.shared ? s.subscriber : NULL, s.session);
    set_totals();
    return true;
}

static void end(void) {
    xpr_cupti_ranges_off();
    /* First what is finished, so that a forced flush that hangs costs only the rest. */
    s.cupti.flush_all(0);
    parse();
    s.cupti.flush_all(CT_FLUSH_FORCED);
    count_dropped();
    disable_all();
    parse(); /* needs the subscriber */
    s.cupti.unsubscribe(s.subscriber);
    size_t valid;
    for (uint8_t *buffer; (buffer = xpr_cupti_buffer_full(&valid)); xpr_cupti_buffer_free(buffer)) s.walk.cut_buffers++;
    s.report.flushes += 2;
    set_totals();
}

static void settle(int state) {
    pthread_mutex_lock(&s.lock);
    s.report.ended = state == IDLE;
    s.told = s.report;
    s.state = state;
    pthread_cond_broadcast(&s.change);
    pthread_mutex_unlock(&s.lock);
}

static void work(void) {
    int64_t next_ns = xpr_clock_read_ns(CLOCK_MONOTONIC) + s.options.flush_ns;
    while (!must_stop()) {
        wait_until(next_ns);
        parse();
        if (xpr_clock_read_ns(CLOCK_MONOTONIC) < next_ns) continue;
        s.cupti.flush_all(0);
        s.report.flushes++;
        count_dropped();
        parse();
        set_totals();
        next_ns = xpr_clock_read_ns(CLOCK_MONOTONIC) + s.options.flush_ns;
    }
}

static void *run(void *unused) {
    (void)unused;
    is_our_thread = true;
    pthread_setname_np(pthread_self(), "xprof_py.cupti");
    if (begin()) {
        s.report.ran = true;
        settle(RUNNING);
        work();
        end();
    }
    xpr_cupti_buffers_close();
    xpr_cupti_walk_close(&s.walk);
    settle(IDLE);
    return NULL;
}

/* --- from outside ------------------------------------------------------------------------------------------------------ */

static void before_fork(void) {
    pthread_mutex_lock(&s.lock);
    xpr_cupti_buffers_lock();
}

static void after_fork_parent(void) {
    xpr_cupti_buffers_unlock();
    pthread_mutex_unlock(&s.lock);
}

static void after_fork_child(void) {
    xpr_cupti_ranges_after_fork_child();
    xpr_cupti_buffers_after_fork_child();
    bool used = s.used || s.forked;
    memset(&s, 0, sizeof s); /* the parent's memory, most of it CUPTI's: not ours to free */
    s.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    s.forked = used;
    xpr_init_condition(&s.change);
}

static void install_once(void) {
    xpr_init_condition(&s.change);
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

/* Waits until the thread has come to `until_state`, or has ended; at most timeout_ns; with the lock held. False: it has not. */
static bool wait_for(int until_state, int64_t timeout_ns) {
    int64_t at_ns = xpr_clock_read_ns(CLOCK_MONOTONIC) + timeout_ns;
    struct timespec until = {.tv_sec = at_ns / 1000000000, .tv_nsec = at_ns % 1000000000};
    int error = 0;
    while (s.state != until_state && s.state != IDLE && !error)
        error = pthread_cond_timedwait(&s.change, &s.lock, &until);
    return s.state == until_state || s.state == IDLE;
}

/* What can be told without a thread of ours; with the lock held. */
static bool prepare(const struct xpr_cupti_options *options) {
    char *why = s.report.why;
    if (s.forked) {
        snprintf(why, XPR_CUPTI_WHY_BYTES, "this process was forked from one that used CUDA, which does not survive that");
        return false;
    }
    s.capture = xpr_device_records_capture();
    if (!s.capture && !options->only_check) {
        snprintf(why, XPR_CUPTI_WHY_BYTES, "nothing is being recorded");
        return false;
    }
    if (!xpr_cupti_load(&s.cupti, options->candidates, why)) return false;
    memcpy(s.report.path, s.cupti.path, sizeof s.report.path);
    if (!++s.session) s.session = 1;
    if (!xpr_cupti_walk_open(&s.walk, &s.cupti, s.session)) {
        snprintf(why, XPR_CUPTI_WHY_BYTES, "out of memory");
        return false;
    }
    if (!options->only_check) xpr_collector_begins(s.capture);
    return true;
}

static void say_late(struct xpr_cupti_report *report, const char *why) {
    *report = (struct xpr_cupti_report){.ran = true, .clock_width_ns = -1};
    memcpy(report->path, s.cupti.path, sizeof report->path);
    snprintf(report->why, sizeof report->why, "%s", why);
}

bool xpr_cupti_start(const struct xpr_cupti_options *options, struct xpr_cupti_report *report) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_once);
    pthread_mutex_lock(&s.lock);
    if (s.state != IDLE) {
        bool stopping = s.stop;
        pthread_mutex_unlock(&s.lock);
        memset(report, 0, sizeof *report);
        snprintf(report->why, sizeof report->why,
                 stopping ? "the session before has not ended: CUPTI does not come back" : "a session of ours is running");
        return false;
    }
    memset(&s.report, 0, sizeof s.report);
    s.report.clock_width_ns = -1;
    s.options = *options;
    s.options.candidates = NULL;
    s.stop = false;
    s.dropped_source = s.dropped_memory = s.graph_nodes = s.nodes_dropped = 0;
    xpr_bytes_free(&s.nodes);
    atomic_store(&s.callback_cpu_ns, 0);
    bool good = prepare(options);
    if (good) {
        xpr_cupti_buffers_open(options->buffer_bytes, options->buffers);
        s.state = STARTING;
        s.used = true;
        int error = xpr_start_own_thread(run, NULL, STACK_BYTES);
        if (error) {
            snprintf(s.report.why, sizeof s.report.why, "no thread: %s", strerror(error));
            xpr_cupti_walk_close(&s.walk);
            s.state = IDLE;
            good = false;
        }
    }
    if (!good) {
        *report = s.report;
    } else if (wait_for(RUNNING, options->start_timeout_ns)) {
        *report = s.told;
        good = !report->why[0];
    } else {
        s.stop = true; /* it finds itself told to, whenever it gets there */
        say_late(report, "CUPTI did not answer in time");
        good = false;
    }
    pthread_mutex_unlock(&s.lock);
    return good;
}

bool xpr_cupti_stop(int64_t timeout_ns, struct xpr_cupti_report *report) {
    pthread_mutex_lock(&s.lock);
    s.stop = true;
    wake();
    bool ended = wait_for(IDLE, timeout_ns);
    if (ended)
        *report = s.told;
    else
        say_late(report, "CUPTI did not give its records back in time");
    pthread_mutex_unlock(&s.lock);
    return ended;
}
