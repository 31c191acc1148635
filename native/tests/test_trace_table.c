/* trace.h against the recorder in one program: every event is counted, names past the limit too, captures do not mix. */
#define _GNU_SOURCE
#include "recorder/trace_table.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "recorder/filter.h"
#include "recorder/recorder.h"
#include "xprof_py/trace.h"
#include "tests/check.h"

enum { THREADS = 4, EVENTS = 20000 };

static char path[4096];
XPROF_PY_SITE_KEY(shared, "shared", "n");
XPROF_PY_SITE(level, "level");
XPROF_PY_SITE(moment, "moment");

static void start(void) { CHECK(xpr_recorder_start(path, 1u << 30, 4u << 20) == 0); }

static struct xpr_report stop(void) {
    struct xpr_report report;
    xpr_recorder_off();
    xpr_recorder_finish(30000000000, 0, 0, &report);
    CHECK(report.finished && report.last_errno == 0);
    return report;
}

static void *many(void *unused) {
    for (int i = 0; i < EVENTS; i++) {
        xprof_py_span span = xprof_py_begin();
        xprof_py_end_value(&shared, span, i);
    }
    return unused;
}

static void test_not_published(void) {
    CHECK(xprof_py_recording() == 0);
    many(NULL);
}

static void test_threads_share_sites(void) {
    start();
    CHECK(xprof_py_recording() != 0);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, many, NULL) == 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    struct xpr_report report = stop();
    CHECK(report.accepted + report.dropped_ring == THREADS * EVENTS);
    CHECK(report.written == report.accepted && report.threads == THREADS);
    CHECK(report.strings.strings == 4); /* the two that are always there, the name and its key */
}

static void test_captures_do_not_mix(void) {
    xprof_py_span before = xprof_py_begin();
    start();
    xprof_py_end(&shared, before);
    xprof_py_span across = xprof_py_begin();
    struct xpr_report open = stop();
    CHECK(open.accepted == 0 && open.open_not_recorded == 1);
    start();
    xprof_py_end(&shared, across);
    xprof_py_mark(&moment);
    xprof_py_counter(&level, 2.5);
    struct xpr_report report = stop();
    CHECK(report.written == 2 && report.strings.strings == 2 + 3); /* moment, level, value */
    xprof_py_mark(&moment);
    xprof_py_counter(&level, 2.5);
}

static void *leave(void *span) {
    xprof_py_end(&moment, *(xprof_py_span *)span);
    return NULL;
}

static void test_open_at_the_stop(void) {
    start();
    struct xpr_log *log = xpr_log_begin(xpr_recording(), NULL);
    xprof_py_span outer = xprof_py_begin_at(&level), inner = xprof_py_begin_at(&moment), nameless = xprof_py_begin();
    CHECK(atomic_load(&log->open->count) == 2 && outer.thread == log->index + 1 && nameless.thread == 0);
    xprof_py_end_value(&shared, nameless, 1);
    /* Another thread leaves it: at the stop only the outer one is open. */
    pthread_t other;
    CHECK(pthread_create(&other, NULL, leave, &inner) == 0);
    pthread_join(other, NULL);
    nameless = xprof_py_begin();
    struct xpr_report report = stop();
    CHECK(report.written == 3 && report.accepted == 3 && report.open_not_recorded == 1);
    xprof_py_end(&level, outer);
    xprof_py_end(&level, nameless);
    start();
    CHECK(stop().open_not_recorded == 0);
}

static void test_names_past_the_limit_are_counted(void) {
    start();
    static char texts[XPR_MAX_NAMES + 10][12];
    for (int i = 0; i < XPR_MAX_NAMES + 10; i++) {
        snprintf(texts[i], sizeof texts[i], "%d", i);
        xprof_py_site site = {texts[i], NULL, 0, NULL, 0, 0};
        for (int use = 0; use < 2; use++) xprof_py_mark(&site);
    }
    struct xpr_report report = stop();
    CHECK(report.strings.strings == 2 + XPR_MAX_NAMES && report.strings.more_names == 2 * 10);
    CHECK(report.accepted + report.dropped_ring == 2 * (XPR_MAX_NAMES + 10));
}

XPROF_PY_SITE_FILTERED(fine, "fine", NULL, 3, NULL);
XPROF_PY_SITE_FILTERED(io, "io", "bytes", XPROF_PY_NO_LEVEL, "io");
XPROF_PY_SITE_FILTERED(fine_io, "fine io", NULL, 3, "io");

/* A site of a library that was compiled before there were filters: what lies behind its three members is not ours to read. */
static struct {
    const char *name, *key;
    uint64_t state;
} short_site = {"short", NULL, 0};

/* Each site once in each way that it can be used; how many events that made. */
static uint64_t use_all(void) {
    xprof_py_site *sites[] = {&fine, &io, &fine_io, &moment, (xprof_py_site *)&short_site};
    start();
    for (unsigned i = 0; i < 5; i++) {
        xprof_py_end(sites[i], xprof_py_begin_at(sites[i]));
        xprof_py_end(sites[i], xprof_py_begin());
        xprof_py_mark(sites[i]);
        xprof_py_counter(&level, 1); /* counters pass every filter */
    }
    struct xpr_report report = stop();
    CHECK(report.open_not_recorded == 0);
    return report.written - 5;
}

static void test_filters(void) {
    int64_t two = 2, three = 3;
    const char *net_io[] = {"net", "io"}, *gpu[] = {"gpu"};
    CHECK(use_all() == 3 * 5);
    CHECK(xpr_filter_set(&two, NULL, 0) && use_all() == 3 * 3);
    CHECK(xpr_filter_set(&three, NULL, 0) && use_all() == 3 * 5);
    CHECK(xpr_filter_set(NULL, net_io, 2) && use_all() == 3 * 5);
    CHECK(xpr_filter_set(NULL, gpu, 1) && use_all() == 3 * 3);
    CHECK(xpr_filter_set(NULL, gpu, 0) && use_all() == 3 * 3);
    CHECK(xpr_filter_set(&two, gpu, 1) && use_all() == 3 * 2);
    /* A span that has begun with its site ends with it, whatever the filter is by then; a mark is asked as it is made. */
    CHECK(xpr_filter_set(NULL, NULL, 0));
    start();
    xprof_py_span span = xprof_py_begin_at(&fine), nameless = xprof_py_begin();
    CHECK(xpr_filter_set(&two, NULL, 0));
    xprof_py_end(&fine, nameless);
    xprof_py_end(&fine, span);
    xprof_py_mark(&fine);
    CHECK(stop().written == 1);
    CHECK(xpr_filter_set(NULL, NULL, 0) && use_all() == 3 * 5);
}

int main(void) {
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/trace_table.xpr", folder ? folder : "/tmp");
    test_not_published();
    xpr_publish_trace_table();
    xpr_publish_trace_table(); /* twice does no harm */
    CHECK(xprof_py_trace_v1.table != NULL && xprof_py_trace_v1.table->bytes == sizeof(struct xprof_py_trace_table));
    test_threads_share_sites();
    test_captures_do_not_mix();
    test_open_at_the_stop();
    test_names_past_the_limit_are_counted();
    test_filters();
    unlink(path);
    return 0;
}
