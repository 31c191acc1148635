/* A test double for libcupti: entry points and record layouts as the real one has them, and fake_* controls that say what a
 * program under profile did. Own code, never installed, and named so that nobody takes it for NVIDIA's.
 *
 * Built with -DFAKE_V1 and -DFAKE_V2 for the families of calls that it is to have (13.3 and later have both). It is strict:
 * a call without a driver, in the child of a fork, or of the family that the subscriber does not use ends or marks the test. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "device/cupti_abi.h"

#define X __attribute__((visibility("default")))
enum { KINDS = 64, DEPTH = 128, UNKNOWN = 60, MAX_HELD = 4096, MAX_DEVICES = 16, CALLS = 2048 };

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pid_t home;
static struct {
    bool subscribed, shared, held; /* held: by another tool, whose name follows */
    char holder[CT_HOLDER_BYTES];
    ct_callback callback;
    void *user;
    ct_request request;
    ct_complete complete;
    ct_request_v2 request_v2;
    ct_complete_v2 complete_v2;
    bool on[KINDS], chosen[2][CALLS], graph_nodes[2];
    bool os_threads;
    /* settings */
    uint32_t version, record_limit, extra_bytes;
    int refuse_shared, refuse, refuse_kind[KINDS];
    int64_t hang_ms, hang_at_start_ms;
    bool hold_back, no_thread_ids;
    bool unfinished; /* the buffer being filled holds work that goes on: only a forced flush gives it back */
    int broken_after; /* GetNextRecord fails after so many records of a buffer, 0: never */
    /* the buffer being filled */
    uint8_t *buffer;
    size_t room, used;
    uint32_t records;
    size_t dropped;
    uint64_t all_dropped, made, mixed, buffers, forced, flushes, unsubscribed;
    struct {
        uint8_t *buffer;
        size_t room, used;
        bool shared;
    } kept[MAX_HELD];
    int kept_count;
    struct ct_device devices[MAX_DEVICES];
    unsigned device_count;
} f;
static _Thread_local uint64_t ids[DEPTH];
static _Thread_local int depth;
static _Thread_local uint32_t tid;

static void check(bool v2) {
    void *cuda = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!cuda) {
        fputs("fake_cupti: called without a driver: the real one crashes\n", stderr);
        abort();
    }
    dlclose(cuda);
    if (!home) home = getpid();
    if (home != getpid()) {
        fputs("fake_cupti: called in the child of a fork\n", stderr);
        abort();
    }
    if (f.subscribed && v2 != f.shared) f.mixed++;
}

static void rest(int64_t ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }

/* Sizes of CUPTI 12.0, 13.0 and 13.5; `extra_bytes` makes one of a release to come. */
static size_t size_of(uint32_t kind) {
    bool is_12 = f.version < 130000, late = f.version >= 130300;
    size_t bytes = 0;
    switch (kind) {
        case CT_KIND_KERNEL: bytes = is_12 ? 208 : late ? 224 : 216; break;
        case CT_KIND_MEMCPY: bytes = is_12 ? 88 : 96; break;
        case CT_KIND_MEMCPY_PEER: bytes = 96; break;
        case CT_KIND_MEMSET: bytes = 88; break;
        case CT_KIND_RUNTIME:
        case CT_KIND_DRIVER: return 40;
        case CT_KIND_EXTERNAL: return 24;
        case CT_KIND_SYNC: bytes = is_12 ? 40 : 56; break;
        case CT_KIND_OVERHEAD: bytes = is_12 ? 40 : 56; break;
        case CT_KIND_GRAPH: bytes = is_12 ? 48 : 56; break;
        case CT_KIND_DEVICE: bytes = is_12 ? 176 : late ? 192 : 184; break;
        case UNKNOWN: return 32;
        default: return 0;
    }
    return bytes + f.extra_bytes;
}

static void give(void) {
    uint8_t *buffer = f.buffer;
    size_t room = f.room, used = f.used;
    f.buffer = NULL;
    f.used = f.records = 0;
    if (!buffer) return;
    f.buffers++;
    if (f.hold_back && f.kept_count < MAX_HELD) {
        f.kept[f.kept_count].buffer = buffer;
        f.kept[f.kept_count].room = room;
        f.kept[f.kept_count].shared = f.shared;
        f.kept[f.kept_count++].used = used;
    } else if (f.shared) {
        f.complete_v2(buffer, room, used, NULL);
    } else {
        f.complete(NULL, 0, buffer, room, used);
    }
}

/* Adds a record of this kind that begins with `bytes` known bytes; the rest of it is what a careless reader trips over. */
static void put(uint32_t kind, const void *record, size_t bytes) {
    size_t whole = size_of(kind);
    if (!f.subscribed) return;
    if (f.buffer && (f.used + whole > f.room || (f.record_limit && f.records >= f.record_limit))) give();
    if (!f.buffer) {
        size_t most = 0;
        f.room = 0;
        if (f.shared)
            f.request_v2(&f.buffer, &f.room, &most, NULL);
        else
            f.request(&f.buffer, &f.room, &most);
    }
    f.made++;
    if (!f.buffer || whole > f.room) {
        f.dropped++;
        f.all_dropped++;
        return;
    }
    if (whole > bytes) memset(f.buffer + f.used + bytes, 0xA5, whole - bytes);
    memcpy(f.buffer + f.used, record, bytes < whole ? bytes : whole);
    f.used += whole;
    f.records++;
}

#define PUT(kind, record) \
    do { \
        if (f.on[kind]) put(kind, &(record), sizeof(record)); \
    } while (0)

/* --- what both families share ------------------------------------------------------------------------------------- */

X int cuptiGetVersion(uint32_t *version) {
    check(f.shared);
    *version = f.version ? f.version : 130500;
    return 0;
}

static int subscribe(ct_subscriber *subscriber, ct_callback callback, void *user, bool shared) {
    rest(f.hang_at_start_ms);
    if (f.subscribed || (f.held && !shared)) return CT_TAKEN;
    f.subscribed = true;
    f.shared = shared;
    f.callback = callback;
    f.user = user;
    if (!f.version) f.version = 130500;
    *subscriber = &f;
    return 0;
}

X int cuptiUnsubscribe(ct_subscriber subscriber) {
    check(f.shared);
    if (!f.subscribed || subscriber != &f) return 1;
    f.subscribed = f.shared = false;
    f.unsubscribed++;
    return 0;
}

X int cuptiEnableCallback(uint32_t on, ct_subscriber subscriber, uint32_t domain, uint32_t number) {
    check(f.shared);
    if (subscriber != &f || domain != CT_DOMAIN_RESOURCE) return 1;
    if (number == CT_GRAPH_NODE_CREATED || number == CT_GRAPH_NODE_CLONED) f.graph_nodes[number == CT_GRAPH_NODE_CLONED] = on;
    return 0;
}

X int cuptiGetCallbackName(uint32_t domain, uint32_t number, const char **name) {
    static const struct {
        uint32_t domain, number;
        const char *name;
    } known[] = {
        {2, 17, "cudaGetDevice_v3020"},     {2, 20, "cudaMalloc_v3020"},      {2, 41, "cudaMemcpyAsync_v3020"},
        {2, 51, "cudaMemsetAsync_v3020"},   {2, 131, "cudaStreamSynchronize_v3020"}, {2, 161, "cudaMemcpyPeerAsync_v4000"},
        {2, 165, "cudaDeviceSynchronize_v3020"}, {2, 211, "cudaLaunchKernel_v7000"}, {2, 311, "cudaGraphLaunch_v10000"},
        {2, 443, "cudaGraphInstantiate_v12000"}, {1, 126, "cuStreamSynchronize"}, {1, 243, "cuMemAlloc_v2"},
        {1, 277, "cuMemcpyHtoDAsync_v2"},   {1, 304, "cuCtxGetCurrent"},      {1, 307, "cuLaunchKernel"},
        {1, 504, "cuGraphAddMemcpyNode"},   {1, 514, "cuGraphLaunch"},        {1, 652, "cuLaunchKernelEx"},
    };
    check(f.shared);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].domain == domain && known[i].number == number) return *name = known[i].name, 0;
    return 1;
}

X int cuptiGetGraphNodeId(void *node, uint64_t *id) { return *id = (uintptr_t)node, node ? 0 : 1; }
X int cuptiGetGraphId(void *graph, uint32_t *id) { return *id = (uint32_t)(uintptr_t)graph, graph ? 0 : 1; }

X int cuptiActivityFlushAll(uint32_t flags) {
    check(f.shared);
    if (flags & CT_FLUSH_FORCED) rest(f.hang_ms);
    pthread_mutex_lock(&mu);
    f.flushes++;
    f.forced += flags & CT_FLUSH_FORCED;
    if (flags & CT_FLUSH_FORCED || !f.unfinished) give();
    pthread_mutex_unlock(&mu);
    return 0;
}

static int set_kind(uint32_t kind, bool on) {
    if (kind >= KINDS || (kind != UNKNOWN && !size_of(kind))) return 21;
    if (on && f.refuse_kind[kind]) return f.refuse_kind[kind];
    f.on[kind] = on;
    if (kind == CT_KIND_RUNTIME || kind == CT_KIND_DRIVER) /* overrides what was chosen call by call */
        for (int i = 0; i < CALLS; i++) f.chosen[kind == CT_KIND_DRIVER][i] = on;
    return 0;
}

/* Enables, and tells of the devices that are there already. */
static int dump(uint32_t kind) {
    int result = set_kind(kind, true);
    pthread_mutex_lock(&mu);
    for (unsigned i = 0; !result && kind == CT_KIND_DEVICE && i < f.device_count; i++) PUT(CT_KIND_DEVICE, f.devices[i]);
    pthread_mutex_unlock(&mu);
    return result;
}

static int next_record(uint8_t *buffer, size_t valid, struct ct_record **record) {
    static _Thread_local int walked;
    walked = *record ? walked + 1 : 0;
    uint8_t *at = *record ? (uint8_t *)*record + size_of((*record)->kind) : buffer;
    if (at >= buffer + valid) return CT_NO_MORE_RECORDS;
    if (f.broken_after && walked >= f.broken_after) return 21;
    *record = (struct ct_record *)(void *)at;
    return 0;
}

static int take_dropped(size_t *count) {
    pthread_mutex_lock(&mu);
    *count = f.dropped;
    f.dropped = 0;
    pthread_mutex_unlock(&mu);
    return 0;
}

static int push(uint32_t kind, uint64_t id) {
    if (kind != CT_EXTERNAL_CUSTOM2) return 1;
    if (depth == DEPTH) return CT_NO_MORE_RECORDS;
    ids[depth++] = id;
    return 0;
}

static int pop(uint64_t *id) {
    if (!depth) return 18;
    *id = ids[--depth];
    return 0;
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* --- the families --------------------------------------------------------------------------------------------------- */

#ifdef FAKE_V1
X int cuptiSubscribe(ct_subscriber *subscriber, ct_callback callback, void *user) {
    check(false);
    return f.refuse ? f.refuse : subscribe(subscriber, callback, user, false);
}
X int cuptiActivityRegisterCallbacks(ct_request request, ct_complete complete) {
    check(false);
    f.request = request;
    f.complete = complete;
    return 0;
}
X int cuptiActivityEnable(uint32_t kind) { return check(false), set_kind(kind, true); }
X int cuptiActivityEnableAndDump(uint32_t kind) { return check(false), dump(kind); }
X int cuptiActivityDisable(uint32_t kind) { return check(false), set_kind(kind, false); }
X int cuptiActivityGetNextRecord(uint8_t *b, size_t n, struct ct_record **r) { return next_record(b, n, r); }
X int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *count) {
    (void)context, (void)stream;
    return check(false), take_dropped(count);
}
X int cuptiActivityPushExternalCorrelationId(uint32_t kind, uint64_t id) { return push(kind, id); }
X int cuptiActivityPopExternalCorrelationId(uint32_t kind, uint64_t *id) { return (void)kind, pop(id); }
X int cuptiGetTimestamp(uint64_t *at) { return check(false), *at = now(), 0; }
X int cuptiSetThreadIdType(uint32_t type) {
    check(false);
    if (f.no_thread_ids) return 27;
    f.os_threads = type == CT_THREAD_ID_SYSTEM;
    return 0;
}
#ifndef FAKE_12_0
X int cuptiActivityEnableRuntimeApi(uint32_t number, uint8_t on) { return check(false), f.chosen[0][number] = on, 0; }
X int cuptiActivityEnableDriverApi(uint32_t number, uint8_t on) { return check(false), f.chosen[1][number] = on, 0; }
#endif
#endif

#if defined FAKE_V2 || defined FAKE_NAMED
X int cuptiSubscribe_v2(ct_subscriber *subscriber, ct_callback callback, void *user, struct ct_subscriber_options *options) {
    check(f.shared);
    bool knows_shared = options && options->bytes > CT_SUBSCRIBER_OPTIONS_13_0;
    bool shared = knows_shared && options->shared;
    int result = shared && f.refuse_shared ? f.refuse_shared : !shared && f.refuse ? f.refuse : 0;
    if (!result) result = subscribe(subscriber, callback, user, shared);
    if (result == CT_TAKEN && options && options->holder)
        snprintf(options->holder, options->holder_bytes, "%s", f.held ? f.holder : "CUPTI for xprof_py");
    return result;
}
#endif

#ifdef FAKE_V2
X int cuptiActivityRegisterCallbacks_v2(ct_subscriber subscriber, ct_request_v2 request, ct_complete_v2 complete) {
    check(true);
    if (subscriber != &f) return 1;
    f.request_v2 = request;
    f.complete_v2 = complete;
    return 0;
}
X int cuptiActivityEnable_v2(ct_subscriber s, uint32_t kind, void *config) {
    (void)config;
    return check(true), s == &f ? set_kind(kind, true) : 1;
}
X int cuptiActivityEnableAndDump_v2(ct_subscriber s, uint32_t kind, void *config) {
    (void)config;
    return check(true), s == &f ? dump(kind) : 1;
}
X int cuptiActivityDisable_v2(ct_subscriber s, uint32_t kind, void *config) {
    (void)config;
    return check(true), s == &f ? set_kind(kind, false) : 1;
}
X int cuptiActivityGetNextRecord_v2(ct_subscriber s, uint8_t *b, size_t n, struct ct_record **r) {
    return s == &f && f.subscribed ? next_record(b, n, r) : 1;
}
X int cuptiActivityGetNumDroppedRecords_v2(ct_subscriber s, void *context, uint32_t stream, size_t *count) {
    (void)context, (void)stream;
    return check(true), s == &f ? take_dropped(count) : 1;
}
X int cuptiActivityPushExternalCorrelationId_v2(ct_subscriber s, uint32_t kind, uint64_t id) {
    return s == &f && f.subscribed ? push(kind, id) : 1;
}
X int cuptiActivityPopExternalCorrelationId_v2(ct_subscriber s, uint32_t kind, uint64_t *id) {
    (void)kind;
    return s == &f && f.subscribed ? pop(id) : 1;
}
X int cuptiGetTimestamp_v2(ct_subscriber s, uint64_t *at) { return check(true), (void)s, *at = now(), 0; }
X int cuptiActivitySetAttribute_v2(ct_subscriber s, uint32_t attribute, size_t *bytes, void *value) {
    check(true);
    if (s != &f || *bytes != 4 || attribute != CT_ATTRIBUTE_THREAD_ID_TYPE) return 1;
    if (f.no_thread_ids) return 27;
    f.os_threads = *(uint32_t *)value == CT_THREAD_ID_SYSTEM;
    return 0;
}
X int cuptiActivityEnableRuntimeApi_v2(ct_subscriber s, uint32_t number, uint8_t on) {
    return check(true), s == &f ? (f.chosen[0][number] = on, 0) : 1;
}
X int cuptiActivityEnableDriverApi_v2(ct_subscriber s, uint32_t number, uint8_t on) {
    return check(true), s == &f ? (f.chosen[1][number] = on, 0) : 1;
}
#endif

/* --- controls --------------------------------------------------------------------------------------------------------- */

static int *setting(const char *name) {
    if (!strcmp(name, "refuse")) return &f.refuse;
    if (!strcmp(name, "refuse_shared")) return &f.refuse_shared;
    if (!strcmp(name, "refuse_kernels")) return &f.refuse_kind[CT_KIND_KERNEL];
    if (!strcmp(name, "refuse_syncs")) return &f.refuse_kind[CT_KIND_SYNC];
    if (!strcmp(name, "broken_after")) return &f.broken_after;
    return NULL;
}

/* Sets one thing, by its name in the struct above; returns 0, -1 for a name that there is not. */
X int fake_set(const char *name, int64_t value) {
    int *code = setting(name), result = 0;
    pthread_mutex_lock(&mu);
    if (code)
        *code = (int)value;
    else if (!strcmp(name, "version"))
        f.version = (uint32_t)value;
    else if (!strcmp(name, "record_limit"))
        f.record_limit = (uint32_t)value;
    else if (!strcmp(name, "extra_bytes"))
        f.extra_bytes = (uint32_t)value;
    else if (!strcmp(name, "hang_ms"))
        f.hang_ms = value;
    else if (!strcmp(name, "hang_at_start_ms"))
        f.hang_at_start_ms = value;
    else if (!strcmp(name, "hold_back"))
        f.hold_back = value;
    else if (!strcmp(name, "unfinished"))
        f.unfinished = value;
    else if (!strcmp(name, "no_thread_ids"))
        f.no_thread_ids = value;
    else
        result = -1;
    pthread_mutex_unlock(&mu);
    return result;
}

X int64_t fake_get(const char *name) {
    pthread_mutex_lock(&mu);
    uint64_t enabled = 0;
    for (int i = 0; i < KINDS; i++) enabled += f.on[i];
    for (int i = 0; i < CALLS; i++) enabled += f.chosen[0][i] + f.chosen[1][i];
    enabled += f.graph_nodes[0] + f.graph_nodes[1];
    int64_t value = !strcmp(name, "made")           ? (int64_t)f.made
                    : !strcmp(name, "dropped")      ? (int64_t)f.all_dropped
                    : !strcmp(name, "mixed")        ? (int64_t)f.mixed
                    : !strcmp(name, "buffers")      ? (int64_t)f.buffers
                    : !strcmp(name, "forced")       ? (int64_t)f.forced
                    : !strcmp(name, "flushes")      ? (int64_t)f.flushes
                    : !strcmp(name, "subscribed")   ? f.subscribed
                    : !strcmp(name, "shared")       ? f.shared
                    : !strcmp(name, "unsubscribed") ? (int64_t)f.unsubscribed
                    : !strcmp(name, "enabled")      ? (int64_t)enabled
                    : !strcmp(name, "kernels_on")   ? f.on[CT_KIND_KERNEL]
                    : !strcmp(name, "depth")        ? depth
                                                    : -1;
    pthread_mutex_unlock(&mu);
    return value;
}

/* Another tool takes CUPTI for itself, under this name; NULL: lets go of it. */
X void fake_hold(const char *name) {
    f.held = name != NULL;
    snprintf(f.holder, sizeof f.holder, "%s", name ? name : "");
}

/* What a process finds that has set nothing yet: FAKE_CUPTI_HOLDER holds CUPTI and shares it with nobody, FAKE_CUPTI_REFUSE
 * is the code of every refusal. */
__attribute__((constructor)) static void from_environment(void) {
    const char *holder = getenv("FAKE_CUPTI_HOLDER"), *code = getenv("FAKE_CUPTI_REFUSE");
    if (holder) fake_hold(holder), f.refuse_shared = CT_TAKEN;
    if (code) f.refuse = f.refuse_shared = atoi(code);
}

/* A name that stays at one place, as those of kernels do. */
X const char *fake_name(const char *text) {
    static struct name {
        struct name *next;
        char text[];
    } *names;
    struct name *kept = malloc(sizeof *kept + strlen(text) + 1);
    strcpy(kept->text, text);
    pthread_mutex_lock(&mu);
    kept->next = names;
    names = kept;
    pthread_mutex_unlock(&mu);
    return kept->text;
}

#include "cupti_program.h"
