/* The second half of cupti.c, which includes it: what a program under profile did, and what CUPTI makes of that. */
#ifndef XPROF_PY_TESTS_FAKES_CUPTI_PROGRAM_H
#define XPROF_PY_TESTS_FAKES_CUPTI_PROGRAM_H

static uint32_t this_thread(void) {
    if (!f.os_threads) return (uint32_t)(uintptr_t)pthread_self();
    if (!tid) tid = (uint32_t)syscall(SYS_gettid);
    return tid;
}

static void put_call(uint32_t api, uint32_t number, uint32_t correlation, uint64_t start, uint64_t end) {
    if (!f.chosen[api == CT_KIND_DRIVER][number % CALLS]) return;
    /* Before the call's own record, and only where that is made. */
    if (f.on[CT_KIND_EXTERNAL] && depth) {
        struct ct_external e = {CT_KIND_EXTERNAL, CT_EXTERNAL_CUSTOM2, ids[depth - 1], correlation, 0};
        put(CT_KIND_EXTERNAL, &e, sizeof e);
    }
    struct ct_call c = {api, number, start, end, (uint32_t)getpid(), this_thread(), correlation, 0};
    put(api, &c, sizeof c);
}

/* A call of the runtime (api 1) or driver (2) on this thread. */
X void fake_call(uint32_t api, uint32_t number, uint32_t correlation, uint64_t start, uint64_t end) {
    pthread_mutex_lock(&mu);
    put_call(api == 2 ? CT_KIND_DRIVER : CT_KIND_RUNTIME, number, correlation, start, end);
    pthread_mutex_unlock(&mu);
}

static struct ct_kernel kernel_of(const char *name, uint32_t correlation, uint32_t device, uint32_t context, uint32_t stream,
                                  uint64_t start, uint64_t end) {
    return (struct ct_kernel){
        .kind = CT_KIND_KERNEL,
        .registers = 40,
        .start = start,
        .end = end,
        .device = device,
        .context = context,
        .stream = stream,
        .grid = {8, 2, 1},
        .block = {128, 1, 1},
        .static_shared = 1024,
        .dynamic_shared = 2048,
        .correlation = correlation,
        .name = name,
    };
}

X void fake_kernel(const char *name, uint32_t correlation, uint32_t device, uint32_t context, uint32_t stream, uint64_t start,
                   uint64_t end, uint32_t graph, uint64_t node) {
    struct ct_kernel k = kernel_of(name, correlation, device, context, stream, start, end);
    k.graph = graph;
    k.graph_node = node;
    pthread_mutex_lock(&mu);
    PUT(CT_KIND_KERNEL, k);
    pthread_mutex_unlock(&mu);
}

X void fake_memcpy(uint32_t copy_kind, uint64_t bytes, uint32_t correlation, uint32_t device, uint32_t context, uint32_t stream,
                   uint64_t start, uint64_t end) {
    struct ct_memcpy m = {.kind = CT_KIND_MEMCPY, .copy_kind = (uint8_t)copy_kind, .source_kind = copy_kind == 1 ? 2 : 3,
                          .target_kind = copy_kind == 2 ? 1 : 3, .bytes = bytes, .start = start, .end = end, .device = device,
                          .context = context, .stream = stream, .correlation = correlation};
    pthread_mutex_lock(&mu);
    PUT(CT_KIND_MEMCPY, m);
    pthread_mutex_unlock(&mu);
}

X void fake_peer_copy(uint64_t bytes, uint32_t correlation, uint32_t source, uint32_t target, uint32_t stream, uint64_t start,
                      uint64_t end) {
    struct ct_memcpy_peer m = {.kind = CT_KIND_MEMCPY_PEER, .copy_kind = 10, .source_kind = 3, .target_kind = 3, .bytes = bytes,
                               .start = start, .end = end, .device = source, .context = 1, .stream = stream,
                               .source_device = source, .target_device = target, .correlation = correlation};
    pthread_mutex_lock(&mu);
    PUT(CT_KIND_MEMCPY_PEER, m);
    pthread_mutex_unlock(&mu);
}

X void fake_memset(uint32_t value, uint64_t bytes, uint32_t correlation, uint32_t device, uint32_t stream, uint64_t start,
                   uint64_t end) {
    struct ct_memset m = {.kind = CT_KIND_MEMSET, .value = value, .bytes = bytes, .start = start, .end = end, .device = device,
                          .context = 1, .stream = stream, .correlation = correlation, .memory_kind = 3};
    pthread_mutex_lock(&mu);
    PUT(CT_KIND_MEMSET, m);
    pthread_mutex_unlock(&mu);
}

X void fake_graph(uint32_t correlation, uint32_t device, uint32_t stream, uint32_t graph, uint64_t start, uint64_t end) {
    struct ct_graph g = {CT_KIND_GRAPH, correlation, start, end, device, graph, 1, stream};
    pthread_mutex_lock(&mu);
    PUT(CT_KIND_GRAPH, g);
    pthread_mutex_unlock(&mu);
}

X void fake_sync(uint32_t type, uint32_t correlation, uint32_t context, uint32_t stream, uint64_t start, uint64_t end) {
    struct ct_sync s = {CT_KIND_SYNC, type, start, end, correlation, context, stream};
    pthread_mutex_lock(&mu);
    PUT(CT_KIND_SYNC, s);
    pthread_mutex_unlock(&mu);
}

/* The tracer's own time, on the calling thread. */
X void fake_overhead(uint32_t kind, uint64_t start, uint64_t end) {
    pthread_mutex_lock(&mu);
    struct ct_overhead o = {CT_KIND_OVERHEAD, kind, CT_OBJECT_THREAD, {(uint32_t)getpid(), this_thread(), 0}, start, end};
    PUT(CT_KIND_OVERHEAD, o);
    pthread_mutex_unlock(&mu);
}

/* The driver finds a device as it comes up. CUPTI tells of it then, and later only who asks for what is there. */
X void fake_device(uint32_t ordinal, const char *name, uint32_t multiprocessors, uint64_t memory_bytes) {
    struct ct_device d = {.kind = CT_KIND_DEVICE, .memory_bandwidth_kbs = 4800000000u, .memory_bytes = memory_bytes,
                          .core_clock_khz = 1980000, .multiprocessors = multiprocessors, .capability_major = 9, .id = ordinal,
                          .name = name};
    for (int i = 0; i < 16; i++) d.uuid[i] = (uint8_t)(16 * ordinal + (uint32_t)i);
    pthread_mutex_lock(&mu);
    if (f.device_count < MAX_DEVICES) f.devices[f.device_count++] = d;
    PUT(CT_KIND_DEVICE, d);
    pthread_mutex_unlock(&mu);
}

/* A record of a kind that no collector of today knows. */
X void fake_unknown(void) {
    uint32_t record[8] = {UNKNOWN};
    pthread_mutex_lock(&mu);
    put(UNKNOWN, record, sizeof record);
    pthread_mutex_unlock(&mu);
}

/* A node is added to a graph that is being built on this thread, or cloned from `original` as the graph is instantiated. */
X void fake_graph_node(uint64_t graph, uint64_t node, uint64_t original) {
    struct ct_graph_data data = {.graph = (void *)(uintptr_t)graph, .node = (void *)(uintptr_t)node,
                                 .original_node = (void *)(uintptr_t)original};
    struct ct_resource resource = {.descriptor = &data};
    uint32_t number = original ? CT_GRAPH_NODE_CLONED : CT_GRAPH_NODE_CREATED;
    if (f.subscribed && f.graph_nodes[original != 0]) f.callback(f.user, CT_DOMAIN_RESOURCE, number, &resource);
}

/* CUPTI drops records by itself, as its device buffers are full. */
X void fake_drop(uint64_t count) {
    pthread_mutex_lock(&mu);
    f.dropped += count;
    f.all_dropped += count;
    pthread_mutex_unlock(&mu);
}

/* The buffers that were held back come back: the last one first, if `reverse`. */
X void fake_give_back(int reverse) {
    pthread_mutex_lock(&mu);
    give();
    int count = f.kept_count;
    f.kept_count = 0;
    for (int i = 0; i < count; i++) {
        int k = reverse ? count - 1 - i : i;
        if (f.kept[k].shared)
            f.complete_v2(f.kept[k].buffer, f.kept[k].room, f.kept[k].used, NULL);
        else
            f.complete(NULL, 0, f.kept[k].buffer, f.kept[k].room, f.kept[k].used);
    }
    pthread_mutex_unlock(&mu);
}

/* `count` launches on this thread: a call and a kernel each, ids from `first` on, back to back from `start`, 1000 ns apart. */
X void fake_launches(const char *name, uint32_t first, uint32_t count, uint64_t start) {
    for (uint32_t i = 0; i < count; i++) {
        uint64_t at = start + (uint64_t)i * 1000;
        pthread_mutex_lock(&mu);
        put_call(CT_KIND_RUNTIME, 211, first + i, at, at + 300);
        struct ct_kernel k = kernel_of(name, first + i, 0, 1, 7, at + 500, at + 1400);
        PUT(CT_KIND_KERNEL, k);
        pthread_mutex_unlock(&mu);
    }
}

/* The push and pop of a range, as a program's own calls. */
X int fake_push(uint64_t id) { return push(CT_EXTERNAL_CUSTOM2, id); }
X int fake_pop(void) {
    uint64_t id;
    return pop(&id);
}

static void throw_away_request(uint8_t **buffer, size_t *bytes, size_t *most_records) {
    static _Alignas(64) uint8_t room[1 << 20];
    *buffer = room;
    *bytes = sizeof room;
    *most_records = 0;
}
static void throw_away(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid) {
    (void)context, (void)stream, (void)buffer, (void)bytes, (void)valid;
}

/* A tool that has launches recorded and throws the records away: what a collector's cost is measured against. */
X void fake_throw_away(int on) {
    pthread_mutex_lock(&mu);
    if (!on) give();
    f.subscribed = on;
    f.request = throw_away_request;
    f.complete = throw_away;
    f.on[CT_KIND_EXTERNAL] = f.on[CT_KIND_KERNEL] = f.chosen[0][211] = on;
    if (!f.version) f.version = 130500;
    pthread_mutex_unlock(&mu);
}

#endif
