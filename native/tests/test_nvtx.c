/* The library that NVTX clients load, against the recorder in one program: every range is counted once or said to be lost,
 * whatever the client does. What the events say is tests/integration/test_nvtx_ranges.py's. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "device/ranges.h"
#include "nvtx_client.h"
#include "recorder/recorder.h"
#include "recorder/trace_table.h"
#include "tests/check.h"

static char path[4096];

static void start(void) { CHECK(xpr_recorder_start(path, 1u << 30, 64u << 20) == 0); }

static struct xpr_report stop(void) {
    struct xpr_report report;
    xpr_recorder_off();
    xpr_recorder_finish(30000000000, 0, 0, &report);
    CHECK(report.finished && report.last_errno == 0 && report.dropped_ring == 0);
    return report;
}

static void test_a_pop_takes_the_innermost_of_its_domain(void) {
    void *one = nvtx_domain("one"), *two = nvtx_domain("two");
    CHECK(one && two && one != two && nvtx_domain("one") == one);
    nvtx_attributes a = nvtx_named(XPR_NVTX_MESSAGE_REGISTERED, nvtx_string(one, "a"));
    CHECK(nvtx_string(one, "a") == a.message.registered);
    start();
    nvtx_pop(); /* pushed before the capture, or never */
    nvtx_domain_push(one, &a);
    nvtx_domain_push(two, &a);
    nvtx_domain_pop(one);
    nvtx_domain_pop(one); /* nothing is left there */
    nvtx_pop();
    nvtx_domain_pop(two);
    struct xpr_report report = stop();
    CHECK(report.written == 2 && report.open_not_recorded == 0);
}

static void test_captures_do_not_mix(void) {
    nvtx_push("before");
    start();
    nvtx_push("left open");
    CHECK(stop().written == 1); /* as open */
    nvtx_pop();
    start();
    nvtx_pop();
    nvtx_push("again");
    nvtx_pop();
    nvtx_pop();
    CHECK(stop().written == 1);
}

static void test_deep_nesting_loses_nothing_unsaid(void) {
    enum { DEEP = 70000 };
    start();
    for (int i = 0; i < DEEP; i++) nvtx_push("deep");
    for (int i = 0; i < DEEP; i++) nvtx_pop();
    nvtx_push("after");
    nvtx_pop();
    struct xpr_report report = stop();
    CHECK(report.written > 65000 && report.written + report.open_not_recorded >= DEEP + 1);
}

enum { THREADS = 4, RANGES = 20000 };
static uint64_t ids[THREADS][RANGES];

static void *start_many(void *mine) {
    uint64_t *to = mine;
    for (int i = 0; i < RANGES; i++) to[i] = nvtx_start("across");
    return NULL;
}

static void *end_many(void *others) {
    uint64_t *from = others;
    for (int i = RANGES; i--;) {
        nvtx_end(from[i]);
        nvtx_end(from[i]); /* a second time: nothing */
    }
    return NULL;
}

static void test_ranges_end_on_other_threads(void) {
    start();
    for (int turn = 0; turn < 2; turn++) {
        pthread_t threads[THREADS];
        for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, start_many, ids[i]) == 0);
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
        for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, end_many, ids[(i + 1) % THREADS]) == 0);
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    }
    nvtx_end(12345);
    nvtx_end(UINT64_MAX);
    nvtx_end((uint64_t)1 << 32 | 0xFFFFF);
    struct xpr_report report = stop();
    CHECK(report.written == 2 * THREADS * RANGES && report.open_not_recorded == 0);
    uint64_t open = nvtx_start("no capture");
    CHECK(open == 0);
}

/* Fields outside the mask are poison: reading one would crash, or show. */
static void test_only_what_the_mask_says_is_read(void) {
    void *domain = nvtx_domain("payloads");
    struct xpr_nvtx_schema schema;
    memset(&schema, 0xA5, sizeof schema);
    schema.mask = 0;
    CHECK(nvtx_schema(domain, &schema) >= XPR_NVTX_FIRST_DYNAMIC_SCHEMA);
    struct xpr_nvtx_schema_entry entries[2];
    memset(entries, 0, sizeof entries);
    entries[0] = (struct xpr_nvtx_schema_entry){.type = XPR_NVTX_I32, .name = "n"};
    entries[1] = (struct xpr_nvtx_schema_entry){.type = XPR_NVTX_U64, .name = "at the edge"};
    schema.mask = XPR_NVTX_HAS_TYPE | XPR_NVTX_HAS_ENTRIES | XPR_NVTX_HAS_ENTRY_COUNT;
    schema.type = XPR_NVTX_SCHEMA_STATIC;
    schema.entries = entries;
    schema.entry_count = 2;
    uint64_t id = nvtx_schema(domain, &schema);
    /* Exactly as long as the payload says, so that the sanitizer sees a byte too many. */
    for (size_t bytes = 0; bytes <= 16; bytes++) {
        char *room = malloc(bytes ? bytes : 1);
        memset(room, 1, bytes ? bytes : 1);
        struct xpr_nvtx_payload payload = {id, bytes, room};
        start();
        nvtx_push_payload(domain, &payload, 1);
        nvtx_pop_payload(domain, NULL, 0);
        struct xpr_report report = stop();
        CHECK(report.written == 1 && report.strings.dropped_args == (bytes < 4 ? 2u : bytes < 16 ? 1u : 0u));
        free(room);
    }
    nvtx_attributes a = nvtx_named(XPR_NVTX_MESSAGE_ASCII, "odd");
    struct xpr_nvtx_payload odd[3] = {{id + 1000, 16, entries}, {999, 16, entries}, {XPR_NVTX_I32, SIZE_MAX, entries}};
    a.payload_type = XPR_NVTX_PAYLOAD_EXTENDED;
    a.payload_count = 3;
    a.payload.uint64 = (uint64_t)(uintptr_t)odd;
    start();
    nvtx_domain_push(domain, &a);
    nvtx_domain_pop(domain);
    a.bytes = 8; /* a client of an older version: what it did not write is not read */
    nvtx_domain_mark(domain, &a);
    struct xpr_report report = stop();
    CHECK(report.written == 2 && report.strings.dropped_args == 3);
}

/* A schema that holds itself must end. */
static void test_a_schema_within_itself(void) {
    void *domain = nvtx_domain("payloads");
    struct xpr_nvtx_schema_entry entry = {.type = XPR_NVTX_FIRST_SCHEMA + 7, .name = "again"};
    struct xpr_nvtx_schema schema = {
        .mask = XPR_NVTX_HAS_TYPE | XPR_NVTX_HAS_ENTRIES | XPR_NVTX_HAS_ENTRY_COUNT | XPR_NVTX_HAS_SCHEMA_ID |
                XPR_NVTX_HAS_STATIC_BYTES,
        .type = XPR_NVTX_SCHEMA_STATIC, .entries = &entry, .entry_count = 1, .static_bytes = 8, .id = XPR_NVTX_FIRST_SCHEMA + 7};
    CHECK(nvtx_schema(domain, &schema) == schema.id);
    uint64_t value = 5;
    struct xpr_nvtx_payload payload = {schema.id, sizeof value, &value};
    start();
    nvtx_push_payload(domain, &payload, 1);
    nvtx_pop_payload(domain, &payload, 1);
    struct xpr_report report = stop();
    CHECK(report.written == 1 && report.strings.dropped_args == 2); /* the payload, and the one of the pop */
}

static uint32_t pushed[4], pushes, pops;
static void on_push(uint32_t id) { pushed[pushes++ % 4] = id; }
static void on_pop(void) { pops++; }

static void test_xla_tags_what_it_launches(void) {
    static const struct xpr_device_ranges collector = {on_push, on_pop};
    void *xla = nvtx_domain("TSL"), *other = nvtx_domain("other");
    nvtx_attributes thunk = nvtx_named(XPR_NVTX_MESSAGE_REGISTERED, nvtx_string(xla, "Thunk:#hlo_op=dot.1#"));
    start();
    nvtx_domain_push(xla, &thunk); /* before the session: not told, and its pop not either */
    atomic_store(&xpr_device_ranges, &collector);
    nvtx_domain_push(xla, &thunk);
    nvtx_domain_push(other, &thunk);
    nvtx_domain_pop(other);
    nvtx_domain_push(xla, &thunk);
    nvtx_domain_pop(xla);
    nvtx_domain_pop(xla);
    nvtx_domain_pop(xla);
    CHECK(pushes == 2 && pops == 2 && pushed[0] == pushed[1]);
    CHECK(pushed[0] == xpr_intern("Thunk:#hlo_op=dot.1#", strlen("Thunk:#hlo_op=dot.1#"), XPR_USE_NAME, NULL));
    atomic_store(&xpr_device_ranges, NULL);
    CHECK(stop().written == 4);
}

static void *named(void *unused) {
    nvtx_name_thread((uint32_t)syscall(SYS_gettid), "a name that is much longer than what the system keeps of the name of a thread");
    nvtx_push("in a named thread");
    nvtx_pop();
    return unused;
}

static void test_names_past_the_limit_are_counted(void) {
    enum { NAMES = XPR_MAX_NAMES + 100 };
    start();
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, named, NULL) == 0);
    pthread_join(thread, NULL);
    char text[32];
    for (int i = 0; i < NAMES; i++) {
        snprintf(text, sizeof text, "name %d", i);
        nvtx_push(text);
        nvtx_pop();
    }
    nvtx_push_wide(L"wide \u00e9\u20ac\U0001F600");
    nvtx_pop();
    struct xpr_report report = stop();
    CHECK(report.written == NAMES + 2 && report.strings.more_names >= 100);
}

int main(void) {
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/nvtx.xpr", folder ? folder : "/tmp");
    char own[4096] = "", library[4200];
    CHECK(readlink("/proc/self/exe", own, sizeof own - 1) > 0);
    *strrchr(own, '/') = 0;
    snprintf(library, sizeof library, "%s/libxprof_py_nvtx.so", own);
    CHECK(!nvtx_attach("/nothing/there.so"));
    CHECK(nvtx_attach(library));
    nvtx_push("nobody records");
    nvtx_pop();
    xpr_publish_trace_table(); /* as the extension does when it is imported, here after the client */
    test_a_pop_takes_the_innermost_of_its_domain();
    test_captures_do_not_mix();
    test_deep_nesting_loses_nothing_unsaid();
    test_ranges_end_on_other_threads();
    test_only_what_the_mask_says_is_read();
    test_a_schema_within_itself();
    test_xla_tags_what_it_launches();
    test_names_past_the_limit_are_counted();
    return 0;
}
