/* For the tests of the collector of device activity: the fake CUPTI's controls, sessions, and what is in the shard afterwards.
 * Each claim runs in a process of its own, since the fake's state is its process's. */
#ifndef XPROF_PY_TESTS_CUPTI_DOUBLE_H
#define XPROF_PY_TESTS_CUPTI_DOUBLE_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "device/cupti.h"
#include "device/ranges.h"
#include "recorder/recorder.h"
#include "xprof_py/shard_format.h"
#include "tests/check.h"

static char path[4096];
static struct xpr_cupti_report report;
static const char *folder;

/* --- the fake ---------------------------------------------------------------------------------------------------------- */

static struct {
    int (*set)(const char *, int64_t);
    int64_t (*get)(const char *);
    void (*hold)(const char *);
    const char *(*name)(const char *);
    void (*call)(uint32_t, uint32_t, uint32_t, uint64_t, uint64_t);
    void (*kernel)(const char *, uint32_t, uint32_t, uint32_t, uint32_t, uint64_t, uint64_t, uint32_t, uint64_t);
    void (*memcpy_)(uint32_t, uint64_t, uint32_t, uint32_t, uint32_t, uint32_t, uint64_t, uint64_t);
    void (*peer)(uint64_t, uint32_t, uint32_t, uint32_t, uint32_t, uint64_t, uint64_t);
    void (*memset_)(uint32_t, uint64_t, uint32_t, uint32_t, uint32_t, uint64_t, uint64_t);
    void (*graph)(uint32_t, uint32_t, uint32_t, uint32_t, uint64_t, uint64_t);
    void (*sync)(uint32_t, uint32_t, uint32_t, uint32_t, uint64_t, uint64_t);
    void (*overhead)(uint32_t, uint64_t, uint64_t);
    void (*device)(uint32_t, const char *, uint32_t, uint64_t);
    void (*unknown)(void);
    void (*graph_node)(uint64_t, uint64_t, uint64_t);
    void (*drop)(uint64_t);
    void (*give_back)(int);
    void (*launches)(const char *, uint32_t, uint32_t, uint64_t);
    int (*push)(uint64_t);
} fake;

static void load_driver(void) {
    char place[4200];
    snprintf(place, sizeof place, "%s/libfake_cuda.so", folder);
    CHECK(dlopen(place, RTLD_NOW) != NULL);
}

static void choose_library(const char *variant) {
    char place[4200];
    snprintf(place, sizeof place, "%s/libfake_cupti_%s.so", folder, variant);
    setenv("XPROF_CUPTI_LIB", place, 1);
    void *library = dlopen(place, RTLD_NOW);
    CHECK(library != NULL);
    const struct {
        const char *name;
        void *place;
    } all[] = {
        {"fake_set", &fake.set},           {"fake_get", &fake.get},         {"fake_hold", &fake.hold},
        {"fake_name", &fake.name},         {"fake_call", &fake.call},       {"fake_kernel", &fake.kernel},
        {"fake_memcpy", &fake.memcpy_},    {"fake_peer_copy", &fake.peer},  {"fake_memset", &fake.memset_},
        {"fake_graph", &fake.graph},       {"fake_sync", &fake.sync},       {"fake_overhead", &fake.overhead},
        {"fake_device", &fake.device},     {"fake_unknown", &fake.unknown}, {"fake_graph_node", &fake.graph_node},
        {"fake_drop", &fake.drop},         {"fake_give_back", &fake.give_back}, {"fake_launches", &fake.launches},
        {"fake_push", &fake.push},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        void *found = dlsym(library, all[i].name);
        CHECK(found != NULL);
        memcpy(all[i].place, &found, sizeof found);
    }
}

static void use(const char *variant) {
    load_driver();
    choose_library(variant);
}

/* --- sessions ---------------------------------------------------------------------------------------------------------- */

static const struct xpr_cupti_options usual = {
    .buffer_bytes = 1 << 16, .buffers = 64, .flush_ns = 1000000000, .start_timeout_ns = 10000000000};

static void record(void) { CHECK(xpr_recorder_start(path, 1 << 30, 1 << 16) == 0); }

static void begin_with(struct xpr_cupti_options options) {
    record();
    if (!xpr_cupti_start(&options, &report)) fprintf(stderr, "%s\n", report.why);
    CHECK(report.ran && !report.why[0]);
}

static void begin(void) { begin_with(usual); }

static void finish_recorder(void) {
    struct xpr_report recorder;
    xpr_recorder_off();
    xpr_recorder_finish(20000000000, 0, 0, &recorder);
    CHECK(recorder.finished && recorder.write_errors == 0);
}

/* --- what is in the shard ----------------------------------------------------------------------------------------------- */

static struct {
    struct xpr_activity_record *activities;
    struct xpr_call_record *calls;
    struct xpr_graph_node_record *nodes;
    struct xpr_device_record *devices;
    size_t activity_count, call_count, node_count, device_count;
    struct xpr_collector_record totals;
    bool has_totals;
    char *strings[70000];
} shard;

static void append(void *list, size_t *count, size_t each, const uint8_t *bytes, size_t length) {
    void **place = list;
    CHECK(length % each == 0);
    *place = realloc(*place, *count * each + length);
    memcpy((uint8_t *)*place + *count * each, bytes, length);
    *count += length / each;
}

static void read_strings(const uint8_t *at, size_t length) {
    for (size_t i = 0; i < length;) {
        struct xpr_string_record head;
        memcpy(&head, at + i, sizeof head);
        CHECK(head.id < 70000);
        shard.strings[head.id] = strndup((const char *)at + i + sizeof head, head.bytes);
        i += sizeof head + ((head.bytes + 7) & ~7u);
    }
}

static void read_shard(void) {
    FILE *file = fopen(path, "rb");
    CHECK(file && fseek(file, 0, SEEK_END) == 0);
    size_t size = (size_t)ftell(file);
    uint8_t *bytes = malloc(size);
    rewind(file);
    CHECK(fread(bytes, 1, size, file) == size);
    fclose(file);
    free(shard.activities);
    free(shard.calls);
    free(shard.nodes);
    free(shard.devices);
    for (size_t i = 0; i < sizeof shard.strings / sizeof *shard.strings; i++) free(shard.strings[i]);
    memset(&shard, 0, sizeof shard);
    for (size_t at = sizeof(struct xpr_shard_header); at < size;) {
        struct xpr_chunk_header chunk;
        memcpy(&chunk, bytes + at, sizeof chunk);
        CHECK(chunk.magic == XPR_CHUNK_MAGIC);
        const uint8_t *body = bytes + at + sizeof chunk;
        switch (chunk.type) {
            case XPR_CHUNK_STRINGS: read_strings(body, chunk.bytes); break;
            case XPR_CHUNK_ACTIVITIES:
                append(&shard.activities, &shard.activity_count, sizeof *shard.activities, body, chunk.bytes);
                break;
            case XPR_CHUNK_CALLS: append(&shard.calls, &shard.call_count, sizeof *shard.calls, body, chunk.bytes); break;
            case XPR_CHUNK_GRAPH_NODES: append(&shard.nodes, &shard.node_count, sizeof *shard.nodes, body, chunk.bytes); break;
            case XPR_CHUNK_DEVICES: append(&shard.devices, &shard.device_count, sizeof *shard.devices, body, chunk.bytes); break;
            case XPR_CHUNK_COLLECTOR:
                memcpy(&shard.totals, body, sizeof shard.totals);
                shard.has_totals = true;
        }
        at += sizeof chunk + chunk.bytes;
    }
    free(bytes);
}

static void end(void) {
    CHECK(xpr_cupti_stop(20000000000, &report) && report.ended);
    finish_recorder();
    read_shard();
    CHECK(shard.has_totals);
    CHECK(shard.totals.written == shard.activity_count + shard.call_count + shard.node_count);
    CHECK(fake.get("mixed") == 0);
    CHECK(fake.get("subscribed") == 0 && fake.get("enabled") == 0);
    CHECK(!xpr_device_range_push(1));
}

static const char *text(uint32_t id) { return id == XPR_NO_STRING ? "(none)" : shard.strings[id] ? shard.strings[id] : "(lost)"; }
static bool is(uint32_t id, const char *wanted) { return strcmp(text(id), wanted) == 0; }
static uint32_t name_id(const char *name) { return xpr_intern(name, strlen(name), XPR_USE_NAME, NULL); }
static uint32_t here(void) { return (uint32_t)syscall(SYS_gettid); }

static int claims;

static void run(const char *name, void (*claim)(void), const char *only) {
    if (only && strcmp(only, name) != 0) return;
    claims++;
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        claim();
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status)) {
        fprintf(stderr, "failed: %s (status %x)\n", name, status);
        exit(1);
    }
}
#define RUN(claim) run(#claim, claim, only)

static const char *prepare(int count, char **arguments, const char *name) {
    const char *temporary = getenv("TMPDIR");
    folder = getenv("FAKE_CUPTI_FOLDER");
    if (!folder) folder = FAKE_CUPTI_FOLDER;
    snprintf(path, sizeof path, "%s/%s-%d.xpr", temporary ? temporary : "/tmp", name, (int)getpid());
    return count > 1 ? arguments[1] : NULL;
}

static int finish(void) {
    unlink(path);
    return claims ? 0 : 2;
}

#endif
