/* The part of CUPTI's binary interface that the collector uses, in names of our own.
 *
 * Records are declared up to the last field that is read, and walked by the library itself (its GetNextRecord knows their
 * sizes), so a later CUPTI that makes them longer changes nothing here. All fields lie at the same place in CUPTI 12.0 to
 * 13.5; tests/native/cupti_abi_check.c compares them with whatever NVIDIA headers are installed. None is needed to build. */
#ifndef XPROF_PY_DEVICE_CUPTI_ABI_H
#define XPROF_PY_DEVICE_CUPTI_ABI_H

#include <stddef.h>
#include <stdint.h>

enum {
    CT_OK = 0,
    CT_NO_MORE_RECORDS = 12,
    CT_NOT_COMPATIBLE = 14, /* this family of calls, while another subscriber uses the other one */
    CT_TAKEN = 39,          /* another subscriber holds CUPTI */
};

enum {
    CT_KIND_MEMCPY = 1,
    CT_KIND_MEMSET = 2,
    CT_KIND_DRIVER = 4,
    CT_KIND_RUNTIME = 5,
    CT_KIND_DEVICE = 8,
    CT_KIND_KERNEL = 10,
    CT_KIND_OVERHEAD = 17,
    CT_KIND_MEMCPY_PEER = 22,
    CT_KIND_SYNC = 38,
    CT_KIND_EXTERNAL = 39,
    CT_KIND_GRAPH = 51,
};

enum { CT_DOMAIN_DRIVER = 1, CT_DOMAIN_RUNTIME = 2, CT_DOMAIN_RESOURCE = 3 };
enum { CT_GRAPH_NODE_CREATED = 13, CT_GRAPH_NODE_CLONED = 20 };
enum { CT_EXTERNAL_CUSTOM2 = 5 };
enum { CT_OBJECT_THREAD = 2, CT_OBJECT_DEVICE = 3 };
enum { CT_FLUSH_FORCED = 1 };
enum { CT_ATTRIBUTE_THREAD_ID_TYPE = 21, CT_THREAD_ID_SYSTEM = 1 };

struct ct_record {
    uint32_t kind;
};

struct ct_kernel {
    uint32_t kind;
    uint8_t cache_config, shared_config;
    uint16_t registers;
    uint32_t carveout_requested, carveout_used;
    uint64_t start, end, completed;
    uint32_t device, context, stream;
    int32_t grid[3], block[3];
    int32_t static_shared, dynamic_shared;
    uint32_t local_per_thread, local_total;
    uint32_t correlation;
    int64_t grid_id;
    const char *name;
    void *reserved0;
    uint64_t queued, submitted;
    uint8_t launch_type, shared_carveout_wanted, shared_carveout, padding;
    uint32_t shared_used;
    uint64_t graph_node;
    uint32_t shared_limit;
    uint32_t graph;
};

struct ct_memcpy {
    uint32_t kind;
    uint8_t copy_kind, source_kind, target_kind, flags;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation, runtime_correlation, padding;
    void *reserved0;
    uint64_t graph_node;
    uint32_t graph;
};

struct ct_memcpy_peer {
    uint32_t kind;
    uint8_t copy_kind, source_kind, target_kind, flags;
    uint64_t bytes, start, end;
    uint32_t device, context, stream;
    uint32_t source_device, source_context, target_device, target_context;
    uint32_t correlation;
    void *reserved0;
    uint64_t graph_node;
    uint32_t graph;
};

struct ct_memset {
    uint32_t kind;
    uint32_t value;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation;
    uint16_t flags, memory_kind;
    uint32_t padding;
    void *reserved0;
    uint64_t graph_node;
    uint32_t graph;
};

struct ct_call {
    uint32_t kind;
    uint32_t number;
    uint64_t start, end;
    uint32_t process, thread, correlation, result;
};

struct ct_external {
    uint32_t kind;
    uint32_t external_kind;
    uint64_t external_id;
    uint32_t correlation, reserved;
};

struct ct_sync {
    uint32_t kind;
    uint32_t type;
    uint64_t start, end;
    uint32_t correlation, context, stream;
};

struct ct_overhead {
    uint32_t kind;
    uint32_t overhead_kind;
    uint32_t object_kind;
    uint32_t object_id[3]; /* CT_OBJECT_THREAD: process, thread; CT_OBJECT_DEVICE and later: device, context, stream */
    uint64_t start, end;
};

struct ct_graph {
    uint32_t kind;
    uint32_t correlation;
    uint64_t start, end;
    uint32_t device, graph, context, stream;
};

struct ct_device {
    uint32_t kind;
    uint32_t flags;
    uint64_t memory_bandwidth_kbs, memory_bytes;
    uint32_t constant_memory, l2_cache, threads_per_warp, core_clock_khz, copy_engines, multiprocessors;
    uint32_t limits[14];
    uint32_t capability_major, capability_minor;
    uint32_t id, ecc;
    uint8_t uuid[16];
    const char *name;
};

/* What a resource callback is given; `descriptor` is a ct_graph_data for what concerns graphs. */
struct ct_resource {
    void *context;
    void *handle;
    void *descriptor;
};

struct ct_graph_data {
    void *graph, *original_graph;
    void *node, *original_node;
};

struct ct_subscriber_options {
    size_t bytes; /* of this struct, as far as the library knows it */
    const char *name;
    char *holder; /* who holds CUPTI is written here */
    size_t holder_bytes;
    uint8_t shared; /* from 13.2 on */
    uint8_t padding[7];
};
enum { CT_HOLDER_BYTES = 64 };
/* Up to `holder_bytes`: what 13.0 and 13.1 know. */
#define CT_SUBSCRIBER_OPTIONS_13_0 offsetof(struct ct_subscriber_options, shared)

typedef void *ct_subscriber;
typedef void (*ct_callback)(void *user, uint32_t domain, uint32_t number, const void *what);
typedef void (*ct_request)(uint8_t **buffer, size_t *bytes, size_t *most_records);
typedef void (*ct_complete)(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid);
typedef void (*ct_request_v2)(uint8_t **buffer, size_t *bytes, size_t *most_records, void *about);
typedef void (*ct_complete_v2)(uint8_t *buffer, size_t bytes, size_t valid, void *about);

#endif
