/* The shard: what one process's recorder writes to RUN/shards/<rank>-<pid>.xpr. Version 1.
 *
 * This header is the contract between native/recorder (the only writer) and postprocess/readers/shard.py. A change that an
 * old reader would misread raises XPR_SHARD_VERSION; a new chunk type does not (readers skip and report unknown ones).
 *
 * Layout
 *   header (128 bytes), then chunks, each a 32-byte chunk header and a payload. Everything is little-endian and every
 *   structure starts on a multiple of 8 bytes. The file is only ever appended to and each chunk is written whole, so
 *   the file of a process that was killed is a readable prefix. A string, schema, thread, frame or stack is written before
 *   the first event or sample that mentions it, and at least two clock samples stand before the first event.
 *
 * Checksum (header and chunks): over the 64-bit words w[0..n) of the structure, its own field taken as 0,
 *     a = sum w[i]                b = sum (n - i) * w[i]                checksum = a ^ rotate_left(b, 32)
 *   in arithmetic modulo 2^64. A chunk's covers its header and its payload.
 */
#ifndef XPROF_PY_SHARD_FORMAT_H
#define XPROF_PY_SHARD_FORMAT_H

#include <stdint.h>

#define XPR_SHARD_MAGIC "XPRSHARD"
#define XPR_SHARD_VERSION 1u
#define XPR_CHUNK_MAGIC 0x43525058u /* "XPRC" */

/* What a tick is. */
enum {
    XPR_CLOCK_TSC = 1,       /* x86-64 rdtsc, invariant and trusted by the kernel as its clock source */
    XPR_CLOCK_CNTVCT = 2,    /* arm64 cntvct_el0 */
    XPR_CLOCK_MONOTONIC = 3, /* clock_gettime(CLOCK_MONOTONIC), one tick is one nanosecond */
};

struct xpr_shard_header {
    char magic[8];         /* XPR_SHARD_MAGIC, no terminator */
    uint32_t version;      /* XPR_SHARD_VERSION */
    uint32_t header_bytes; /* sizeof(struct xpr_shard_header): where the first chunk begins */
    uint64_t pid;
    uint32_t clock_kind; /* XPR_CLOCK_* */
    uint32_t reserved0;
    uint64_t budget_bytes; /* events past this file size were dropped, and counted */
    uint64_t ring_bytes;   /* per thread */
    char boot_id[40];      /* of the kernel, text, padded with 0: the clock domain; empty where unknown */
    uint64_t shard_id; /* tells this file from another one of its name: what a killed process left belongs to it; 0: none */
    uint64_t reserved1[3];
    uint64_t checksum;
};

enum {
    XPR_CHUNK_STRINGS = 1,
    XPR_CHUNK_SCHEMAS = 2,
    XPR_CHUNK_THREADS = 3,
    XPR_CHUNK_EVENTS = 4,
    XPR_CHUNK_CLOCK = 5,
    XPR_CHUNK_LOSSES = 6,
    XPR_CHUNK_END = 7,
    /* Only in files of a capture that sampled stacks; absent from those of earlier releases. */
    XPR_CHUNK_FRAMES = 8,
    XPR_CHUNK_STACKS = 9,
    XPR_CHUNK_SAMPLES = 10,
    XPR_CHUNK_SAMPLER = 11,
    /* Only in files of a capture whose process exchanged time stamps with other hosts. */
    XPR_CHUNK_PROBES = 12,
    XPR_CHUNK_EXCHANGES = 13,
    XPR_CHUNK_PROBER = 14,
    /* Only in files of a capture that collected what GPUs did, or their power. */
    XPR_CHUNK_DEVICES = 15,
    XPR_CHUNK_ACTIVITIES = 16,
    XPR_CHUNK_CALLS = 17,
    XPR_CHUNK_GRAPH_NODES = 18,
    XPR_CHUNK_COLLECTOR = 19,
    XPR_CHUNK_POWER = 20,
    XPR_CHUNK_POWER_TOTALS = 21,
};

struct xpr_chunk_header {
    uint32_t magic; /* XPR_CHUNK_MAGIC */
    uint16_t type;  /* XPR_CHUNK_* */
    uint16_t reserved;
    uint64_t bytes;    /* of the payload: a multiple of 8 */
    uint32_t sequence; /* 0, 1, 2, ... in the file */
    uint32_t thread;   /* EVENTS: index of the thread; else 0 */
    uint64_t checksum;
};

/* STRINGS: records one after the other. Ids 0 and 1 are always there: "(more names)" and "(more texts)" stand for the
 * strings past the limits of one capture. */
struct xpr_string_record {
    uint32_t id;
    uint32_t bytes; /* of UTF-8 text, which follows, padded with 0 to a multiple of 8 */
};

/* SCHEMAS: the keys and kinds of an event's arguments. Id 0 means no arguments and is never written. */
struct xpr_schema_record {
    uint32_t id;
    uint32_t count; /* 1 to XPR_MAX_ARGS; that many uint32_t string ids follow, padded with 0 to a multiple of 8 */
    uint64_t kinds; /* kind of argument i in bits [4i, 4i + 4): XPR_ARG_* */
};

/* Numbers of schema.ArgKind. */
enum {
    XPR_ARG_INT = 1,
    XPR_ARG_UINT = 2,
    XPR_ARG_DOUBLE = 3,
    XPR_ARG_TEXT = 4, /* the value is a string id */
    XPR_ARG_BOOL = 6,
};
#define XPR_MAX_ARGS 16

/* THREADS */
struct xpr_thread_record {
    uint32_t index; /* in this file */
    uint32_t bytes; /* of the thread's name, which follows, padded with 0 to a multiple of 8 */
    uint64_t os_tid;
};

/* EVENTS: 32-byte slots of one thread, in the order in which the events ended. An event is one xpr_event slot and, when it
 * has more than one argument, xpr_more slots right after it, 3 arguments each. An event is never cut by a chunk's end. */
struct xpr_event {
    uint64_t start;    /* ticks; with XPR_EVENT_PAST: the tick at which the event ended */
    uint64_t duration; /* ticks; XPR_DURATION_OPEN; with XPR_EVENT_PAST: nanoseconds */
    uint32_t name;     /* string id */
    uint8_t kind;      /* number of schema.Kind; never XPR_KIND_MORE */
    uint8_t flags;     /* bits 0-3: slots of this event, itself included; bit 4: XPR_EVENT_PAST */
    uint16_t schema;   /* schema id, 0: no arguments */
    uint64_t value;    /* argument 0: int64, uint64, bits of a double, string id, or 0/1 */
};

struct xpr_more {
    uint64_t value_a; /* argument 3k + 1 of slot k = 0, 1, ... */
    uint64_t value_b; /* argument 3k + 2 */
    uint32_t index;   /* k */
    uint8_t kind;     /* XPR_KIND_MORE */
    uint8_t reserved[3];
    uint64_t value_c; /* argument 3k + 3 */
};

#define XPR_KIND_MORE 0xFFu
#define XPR_EVENT_SLOTS 0x0Fu
#define XPR_EVENT_PAST 0x10u
#define XPR_DURATION_OPEN UINT64_MAX
#define XPR_MAX_SLOTS (1 + (XPR_MAX_ARGS - 1 + 2) / 3)

/* CLOCK: the three clocks read together, least uncertain of several tries. */
struct xpr_clock_record {
    uint64_t tick;
    int64_t monotonic_ns;
    int64_t realtime_ns;
    uint64_t width_ticks; /* between the ticks before and after the two system clocks were read */
};

/* LOSSES: totals of a thread so far; a later record of a thread replaces an earlier one. */
struct xpr_losses_record {
    uint32_t thread;
    uint32_t reserved;
    uint64_t written;        /* events in this file */
    uint64_t dropped_ring;   /* the thread's ring was full */
    uint64_t dropped_budget; /* the file had reached its budget */
    uint64_t dropped_error;  /* the file could not be written, or memory ran out */
};

/* FRAMES: places in the program's Python code. */
struct xpr_frame_record {
    uint32_t id;       /* 1, 2, ... */
    uint32_t file;     /* string id, as the code object has it */
    uint32_t function; /* string id: the qualified name */
    uint32_t line;     /* that ran, 0 where the code object does not say */
};

/* STACKS */
struct xpr_stack_record {
    uint32_t id;    /* 1, 2, ... */
    uint32_t count; /* frame ids that follow, innermost first, padded with 0 to a multiple of 8; a last one of 0 stands for
                       the frames past the depth limit, one of 0 elsewhere for one past the limit of frames */
};

/* SAMPLES: one moment of one thread. */
struct xpr_sample_record {
    uint64_t tick;
    uint64_t cpu_ns;      /* that the thread used since it was last looked at */
    uint32_t interval_us; /* since then */
    uint32_t os_tid;
    uint32_t stack; /* stack id, 0: no Python frame, or past the limit of stacks */
    uint32_t flags; /* XPR_SAMPLE_ON_CPU */
};

#define XPR_SAMPLE_ON_CPU 1u /* the thread was at work: on a CPU, or ready for one that others had; else it waited */

/* SAMPLER: totals, written before END. */
struct xpr_sampler_record {
    uint64_t written;     /* samples in this file */
    uint64_t dropped;     /* samples that found no place in it: its budget, failed writes, no memory */
    uint64_t more_frames; /* frames of samples past the limit, recorded as 0 */
    uint64_t more_stacks; /* samples whose stack was past the limit, recorded as 0 */
};

/* PROBES: the prober of this process (id 0) and those that it asks (1, 2, ...). */
struct xpr_probe_record {
    uint32_t id;
    uint32_t bytes;   /* of the text that follows, padded with 0 to a multiple of 8: host:port as it was configured; of
                         id 0 the port at which it answers, empty where it does not */
    uint64_t session; /* id 0: the random number that it gives itself, under which others know it; else 0 */
};

/* EXCHANGES: four stamps each, taken in the processes: the client sends at t1, the server reads at t2 and answers at t3,
 * the client reads at t4, t on CLOCK_REALTIME and m on CLOCK_MONOTONIC of whoever stamps. Sending is stamped m before t,
 * reading t before m, so that both clocks' stamps enclose what they are to enclose. Without an answer only t1 and m1 say
 * something, the rest is 0. */
struct xpr_exchange_record {
    int64_t t1_ns, t2_ns, t3_ns, t4_ns;
    int64_t m1_ns, m2_ns, m3_ns, m4_ns;
    uint64_t peer_session; /* of the server that answered */
    uint32_t peer;         /* id in PROBES */
    uint32_t outcome;      /* XPR_EXCHANGE_* */
    uint32_t wait2_ns;     /* how long the request lay in the server's kernel before it was read at t2 */
    uint32_t wait4_ns;     /* and the reply in the client's before t4; both XPR_WAIT_UNKNOWN where the kernel does not say */
};

enum {
    XPR_EXCHANGE_ANSWERED = 0,
    XPR_EXCHANGE_LOST = 1,     /* no answer in time */
    XPR_EXCHANGE_REFUSED = 2,  /* nobody listens there */
    XPR_EXCHANGE_NOT_SENT = 3, /* no route, for example */
};
#define XPR_WAIT_UNKNOWN UINT32_MAX

/* PROBER: totals, written before END. */
struct xpr_prober_record {
    uint64_t written;      /* exchanges in this file */
    uint64_t dropped;      /* that found no place in it: its budget, failed writes, no memory */
    uint64_t served;       /* requests answered */
    uint64_t malformed;    /* packets that are no request or reply of this protocol */
    uint64_t bad_token;    /* whose sender does not hold the token */
    uint64_t replayed;     /* that had been seen before */
    uint64_t late;         /* answers after the exchange was given up as lost */
    uint64_t rate_limited; /* dropped unread, as more came than are read; UINT64_MAX: the kernel does not say */
    uint64_t postponed;    /* bursts put off as the prober had used up its share of a core */
    uint64_t cpu_ns;       /* CPU time of the prober's thread */
};

/* Ids of names and ranges below are string ids, 0 ("(more names)") where the limit of strings was reached, and
 * XPR_NO_STRING for none. All times are CLOCK_REALTIME, which is what CUPTI stamps; CLOCK ties it to ticks. */
#define XPR_NO_STRING UINT32_MAX
#define XPR_NO_DEVICE UINT32_MAX /* a wait's or an overhead's device, where it is not told; streams and contexts as well */

/* DEVICES: the GPUs of this process. What its source does not say is 0. */
struct xpr_device_record {
    uint32_t ordinal; /* as the records below count devices: of the process (CUDA_VISIBLE_DEVICES), not of the machine */
    uint32_t name;    /* string id */
    uint8_t uuid[16];
    uint32_t capability_major, capability_minor;
    uint32_t multiprocessors;
    uint32_t core_clock_khz;
    uint64_t memory_bytes;
    uint64_t memory_bandwidth_kbs; /* kB/s */
};

enum {
    XPR_ACTIVITY_KERNEL = 1,
    XPR_ACTIVITY_MEMCPY = 2,
    XPR_ACTIVITY_MEMSET = 3,
    XPR_ACTIVITY_GRAPH = 4,    /* a whole graph's execution, where its nodes are not told apart */
    XPR_ACTIVITY_SYNC = 5,     /* the host waited: `shape` holds the type of the wait */
    XPR_ACTIVITY_OVERHEAD = 6, /* the tracer's own time: `shape` holds its kind */
};

/* ACTIVITIES: what a device did. In the order in which the device's tracer told, which is not that of time. */
struct xpr_activity_record {
    int64_t start_ns, end_ns;
    uint32_t kind; /* XPR_ACTIVITY_* */
    uint32_t name; /* string id of the kernel's name as the compiler wrote it; of others XPR_NO_STRING */
    uint32_t device, context, stream;
    uint32_t correlation; /* of the call that launched it: unique within a process, 0: none */
    uint32_t graph;       /* of which it is a node, 0: none */
    uint32_t range;       /* string id of the innermost range that was open on the launching thread; XPR_NO_STRING also
                             where that is no longer known: CALLS has it by the correlation */
    uint64_t graph_node;
    union {
        struct {
            uint32_t grid[3], block[3];
            uint32_t registers; /* of one thread */
            uint32_t static_shared_bytes, dynamic_shared_bytes; /* of one block */
            uint32_t reserved;
        } kernel;
        struct {
            uint64_t bytes;
            uint32_t copy_kind; /* CUpti_ActivityMemcpyKind: 1 host to device, 2 device to host, 8 on a device, 10 between */
            uint32_t source_kind, target_kind; /* CUpti_ActivityMemoryKind: 1 pageable, 2 pinned, 3 device, ... */
            uint32_t peer_device;              /* of a copy between devices: the target; else as `device` */
            uint32_t value;                    /* of a memset */
            uint32_t reserved[3];
        } copy;
        struct {
            uint32_t type;
            uint32_t os_tid; /* on which the host waited or the tracer worked; 0: not known */
            uint32_t reserved[8];
        } wait;
    } shape;
};

enum { XPR_CALL_RUNTIME = 1, XPR_CALL_DRIVER = 2 };

/* CALLS: calls of the CUDA runtime or driver that start device work or wait for it, one record each. */
struct xpr_call_record {
    int64_t start_ns, end_ns;
    uint32_t os_tid; /* of the calling thread, as in THREADS; 0: not known */
    uint32_t correlation;
    uint32_t api;    /* XPR_CALL_* */
    uint32_t number; /* CUPTI's callback id of the function */
    uint32_t name;   /* string id: cuLaunchKernel, cudaMemcpyAsync_v3020, ... */
    uint32_t result; /* 0: success */
    uint32_t range;  /* string id of the innermost range open on this thread, told by an external correlation id */
    uint32_t reserved;
};

/* GRAPH_NODES: what was said while a node of a CUDA graph was built, so that a kernel in the graph finds its op. */
struct xpr_graph_node_record {
    uint64_t node;
    uint64_t original; /* the node that it is a clone of, 0: none */
    uint32_t graph;
    uint32_t range; /* string id of the innermost range open as it was created */
};

/* COLLECTOR: totals of the collector of device activity, written before END. */
struct xpr_collector_record {
    uint64_t written;         /* records of the three chunks above in this file */
    uint64_t dropped_source;  /* that CUPTI itself dropped */
    uint64_t dropped_buffers; /* times that no buffer was left to give CUPTI: what it then dropped is in dropped_source */
    uint64_t dropped_budget;  /* the file had reached its budget */
    uint64_t dropped_error;   /* the file could not be written, or memory ran out */
    uint64_t unknown_kinds;   /* records of kinds that are not read */
    uint64_t clamped;         /* activities that ended before they began, or with no end: given no duration. Without a time
                                 at all (start 0) they are kept as such */
    uint64_t buffers;         /* parsed */
    uint64_t cpu_ns;          /* of threads in the collector's callbacks */
    uint32_t version;         /* cuptiGetVersion */
    uint32_t shared;          /* 1: subscribed beside others, 0: the only subscriber */
};

/* POWER: one device at one moment, as NVML says. A field that the device does not tell is all ones. */
struct xpr_power_record {
    int64_t at_ns;
    uint32_t device; /* NVML's index, of the machine */
    uint32_t power_mw;
    uint64_t energy_mj; /* since the driver was loaded */
    uint32_t temperature_c;
    uint32_t sm_clock_mhz, memory_clock_mhz;
    uint32_t busy_percent, memory_busy_percent; /* of NVML's sample period in which a kernel ran, memory was accessed */
    uint32_t uuid; /* string id of the device's UUID as NVML writes it ("GPU-...") */
    uint64_t clock_reasons; /* nvmlClocksEventReasons bits */
    uint64_t memory_used_bytes;
};

/* POWER_TOTALS: written before END. */
struct xpr_power_totals_record {
    uint64_t written;
    uint64_t dropped;
    uint64_t failed_calls;
    uint64_t cpu_ns; /* of the sampling thread */
};

/* END: the recording was stopped in order. */
struct xpr_end_record {
    uint64_t written; /* events in this file, open ones included */
    uint64_t dropped_ring;
    uint64_t dropped_budget;
    uint64_t dropped_error;
    uint64_t threads;
    uint64_t strings;
    uint64_t more_names;   /* uses of names past the limit, recorded as "(more names)" */
    uint64_t more_texts;   /* uses of text arguments past the limit, recorded as "(more texts)" */
    uint64_t dropped_args; /* arguments past XPR_MAX_ARGS or past the limit of schemas */
    uint64_t reentered;    /* spans not recorded: their object was entered again, or dropped, while it was open */
    uint64_t hook_errors;  /* exceptions of hooks, swallowed */
    uint64_t write_errors;
    uint64_t last_errno; /* of those, 0: none */
    uint64_t open_not_recorded; /* spans of C code that were open at the stop, begun without their site; absent in earlier files */
};

_Static_assert(sizeof(struct xpr_shard_header) == 128, "header");
_Static_assert(sizeof(struct xpr_chunk_header) == 32, "chunk header");
_Static_assert(sizeof(struct xpr_event) == 32 && sizeof(struct xpr_more) == 32, "slots");
_Static_assert(sizeof(struct xpr_clock_record) == 32 && sizeof(struct xpr_losses_record) == 40, "records");
_Static_assert(sizeof(struct xpr_end_record) == 112, "end");
_Static_assert(sizeof(struct xpr_frame_record) == 16 && sizeof(struct xpr_stack_record) == 8, "frames and stacks");
_Static_assert(sizeof(struct xpr_sample_record) == 32 && sizeof(struct xpr_sampler_record) == 32, "samples");
_Static_assert(sizeof(struct xpr_probe_record) == 16 && sizeof(struct xpr_exchange_record) == 88, "exchanges");
_Static_assert(sizeof(struct xpr_prober_record) == 80, "prober");
_Static_assert(sizeof(struct xpr_device_record) == 56 && sizeof(struct xpr_activity_record) == 96, "devices");
_Static_assert(sizeof(struct xpr_call_record) == 48 && sizeof(struct xpr_graph_node_record) == 24, "calls");
_Static_assert(sizeof(struct xpr_collector_record) == 80, "collector");
_Static_assert(sizeof(struct xpr_power_record) == 64 && sizeof(struct xpr_power_totals_record) == 32, "power");

#endif
