#include "device/cupti_walk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_SLOTS = 8192, RANGE_SLOTS = 1 << 17 };

struct name_slot {
    const char *told; /* by CUPTI: the place may be used again for another name */
    char *text;
    uint32_t id;
};

/* What is known of a correlation id: the range that was open at its call, and whether the call has passed. */
struct range_slot {
    uint32_t correlation, range;
    bool call_passed;
};

bool xpr_cupti_walk_open(struct xpr_cupti_walk *w, const struct xpr_cupti *cupti, uint32_t session) {
    memset(w, 0, sizeof *w);
    w->cupti = cupti;
    w->session = session;
    w->names = calloc(NAME_SLOTS, sizeof *w->names);
    w->ranges = calloc(RANGE_SLOTS, sizeof *w->ranges);
    for (int i = 0; i < 2; i++) w->call_names[i] = calloc(XPR_MAX_CALL_NUMBER, sizeof *w->call_names[i]);
    if (w->names && w->ranges && w->call_names[0] && w->call_names[1]) return true;
    xpr_cupti_walk_close(w);
    return false;
}

void xpr_cupti_walk_close(struct xpr_cupti_walk *w) {
    for (int i = 0; w->names && i < NAME_SLOTS; i++) free(w->names[i].text);
    free(w->names);
    free(w->ranges);
    free(w->call_names[0]);
    free(w->call_names[1]);
    w->names = NULL;
    w->ranges = NULL;
    w->call_names[0] = w->call_names[1] = NULL;
}

/* --- names ---------------------------------------------------------------------------------------------------------- */

static uint32_t intern(const char *text) { return xpr_intern(text, strlen(text), XPR_USE_NAME, NULL); }

/* Template kernels have names of several thousand bytes that differ at their end only: a digest takes the place of what does
 * not fit, so that two names stay two. */
static uint32_t intern_kernel(const char *text) {
    size_t bytes = strlen(text);
    if (bytes <= XPR_MAX_STRING_BYTES) return xpr_intern(text, bytes, XPR_USE_NAME, NULL);
    uint64_t digest = 0xCBF29CE484222325u; /* FNV-1a */
    for (size_t i = 0; i < bytes; i++) digest = (digest ^ (uint8_t)text[i]) * 0x100000001B3u;
    char cut[XPR_MAX_STRING_BYTES + 1];
    int length = snprintf(cut, sizeof cut, "%.*s...#%016llx", XPR_MAX_STRING_BYTES - 20, text, (unsigned long long)digest);
    return xpr_intern(cut, (size_t)length, XPR_USE_NAME, NULL);
}

static uint32_t kernel_name(struct xpr_cupti_walk *w, const char *name) {
    if (!name) return XPR_NO_STRING;
    uint64_t hash = (uint64_t)(uintptr_t)name * 0x9E3779B97F4A7C15u;
    struct name_slot *slot = &w->names[hash >> 51];
    if (slot->told == name && strcmp(slot->text, name) == 0) return slot->id;
    free(slot->text);
    slot->text = strdup(name);
    slot->told = slot->text ? name : NULL;
    return slot->id = intern_kernel(name);
}
_Static_assert(NAME_SLOTS == 1 << (64 - 51), "bits of the hash");

static uint32_t call_name(struct xpr_cupti_walk *w, unsigned api, uint32_t number) {
    if (number >= XPR_MAX_CALL_NUMBER) return XPR_NO_STRING;
    uint32_t *known = &w->call_names[api - 1][number];
    if (*known) return *known - 1;
    const char *text = NULL;
    unsigned domain = api == XPR_CALL_DRIVER ? CT_DOMAIN_DRIVER : CT_DOMAIN_RUNTIME;
    if (!w->cupti->callback_name || w->cupti->callback_name(domain, number, &text) != CT_OK) text = NULL;
    char plain[48];
    snprintf(plain, sizeof plain, "%s call %u", api == XPR_CALL_DRIVER ? "driver" : "runtime", number);
    uint32_t id = intern(text ? text : plain);
    *known = id + 1;
    return id;
}

static bool contains_any(const char *text, const char *const *parts) {
    for (; *parts; parts++)
        if (strstr(text, *parts)) return true;
    return false;
}

/* By their names, as later releases add variants (_v2, _ptsz, Ex) under new numbers. */
static bool is_wanted(const char *name) {
    static const char *const works[] = {"Launch", "Memcpy", "Memset", "MemPrefetch", "Synchronize", NULL};
    static const char *const graphs[] = {"GraphLaunch", "GraphInstantiate", "GraphUpload", "GraphExecUpdate", NULL};
    static const char *const others[] = {"Attribute", "GetParam", NULL};
    return contains_any(name, strstr(name, "Graph") ? graphs : works) && !contains_any(name, others);
}

void xpr_cupti_choose_calls(struct xpr_cupti_walk *w) {
    static const unsigned domains[] = {CT_DOMAIN_RUNTIME, CT_DOMAIN_DRIVER}; /* as XPR_CALL_RUNTIME, XPR_CALL_DRIVER */
    memset(w->wanted, 0, sizeof w->wanted);
    w->every_call = true;
    for (int i = 0; w->cupti->callback_name && i < 2; i++)
        for (uint32_t number = 1; number < XPR_MAX_CALL_NUMBER; number++) {
            const char *name = NULL;
            if (w->cupti->callback_name(domains[i], number, &name) != CT_OK || !name) continue;
            w->every_call = false;
            if (is_wanted(name)) w->wanted[i][number / 8] |= (uint8_t)(1u << number % 8);
        }
}

/* --- records -------------------------------------------------------------------------------------------------------- */

static struct range_slot *range_of(struct xpr_cupti_walk *w, uint32_t correlation) {
    struct range_slot *slot = &w->ranges[correlation % RANGE_SLOTS];
    if (slot->correlation != correlation) *slot = (struct range_slot){correlation, XPR_NO_STRING, false};
    return slot;
}

static uint32_t known_range(const struct xpr_cupti_walk *w, uint32_t correlation) {
    const struct range_slot *slot = &w->ranges[correlation % RANGE_SLOTS];
    return correlation && slot->correlation == correlation ? slot->range : XPR_NO_STRING;
}

static void take_external(struct xpr_cupti_walk *w, const struct ct_external *e) {
    if (e->external_kind != CT_EXTERNAL_CUSTOM2 || e->external_id >> 32 != w->session || !e->correlation) return;
    struct range_slot *slot = range_of(w, e->correlation);
    slot->range = (uint32_t)e->external_id;
    w->late_ranges += slot->call_passed;
}

static void take_call(struct xpr_cupti_walk *w, unsigned api, const struct ct_call *c, struct xpr_device_batch *batch) {
    uint32_t range = XPR_NO_STRING;
    if (c->correlation) {
        /* Ids come again in the end: a call is the first to have its id. */
        struct range_slot *slot = range_of(w, c->correlation);
        range = slot->range;
        slot->call_passed = true;
    }
    if (!w->every_call && !xpr_cupti_wants_call(w, api, c->number)) return;
    struct xpr_call_record *record = xpr_bytes_add(&batch->calls, sizeof *record);
    if (!record) {
        w->no_memory++;
        return;
    }
    w->calls++;
    *record = (struct xpr_call_record){
        .start_ns = (int64_t)c->start,
        .end_ns = (int64_t)c->end,
        .os_tid = w->os_threads ? c->thread : 0,
        .correlation = c->correlation,
        .api = api,
        .number = c->number,
        .name = call_name(w, api, c->number),
        .result = c->result,
        .range = range,
    };
}

/* A new record with what all kinds have; NULL without memory. */
static struct xpr_activity_record *add(struct xpr_cupti_walk *w, struct xpr_device_batch *batch, uint32_t kind, uint64_t start,
                                       uint64_t end, uint32_t correlation) {
    struct xpr_activity_record *record = xpr_bytes_add(&batch->activities, sizeof *record);
    if (!record) {
        w->no_memory++;
        return NULL;
    }
    w->activities++;
    if (end < start) {
        end = start;
        w->clamped++;
    } else if (!end) {
        w->clamped++;
    }
    record->start_ns = (int64_t)start;
    record->end_ns = (int64_t)end;
    record->kind = kind;
    record->name = XPR_NO_STRING;
    record->correlation = correlation;
    record->range = known_range(w, correlation);
    return record;
}

/* Where work ran: of CUPTI's records of work, which call these fields the same. */
#define TAKE_PLACE(record, from)                  \
    do {                                          \
        (record)->device = (from)->device;        \
        (record)->context = (from)->context;      \
        (record)->stream = (from)->stream;        \
        (record)->graph = (from)->graph;          \
        (record)->graph_node = (from)->graph_node; \
    } while (0)

static void take_kernel(struct xpr_cupti_walk *w, const struct ct_kernel *k, struct xpr_device_batch *batch) {
    struct xpr_activity_record *record = add(w, batch, XPR_ACTIVITY_KERNEL, k->start, k->end, k->correlation);
    if (!record) return;
    record->name = kernel_name(w, k->name);
    TAKE_PLACE(record, k);
    for (int i = 0; i < 3; i++) {
        record->shape.kernel.grid[i] = (uint32_t)k->grid[i];
        record->shape.kernel.block[i] = (uint32_t)k->block[i];
    }
    record->shape.kernel.registers = k->registers;
    record->shape.kernel.static_shared_bytes = (uint32_t)k->static_shared;
    record->shape.kernel.dynamic_shared_bytes = (uint32_t)k->dynamic_shared;
}

static void take_memcpy(struct xpr_cupti_walk *w, const struct ct_memcpy *m, struct xpr_device_batch *batch) {
    struct xpr_activity_record *record = add(w, batch, XPR_ACTIVITY_MEMCPY, m->start, m->end, m->correlation);
    if (!record) return;
    TAKE_PLACE(record, m);
    record->shape.copy.peer_device = m->device;
    record->shape.copy.bytes = m->bytes;
    record->shape.copy.copy_kind = m->copy_kind;
    record->shape.copy.source_kind = m->source_kind;
    record->shape.copy.target_kind = m->target_kind;
}

static void take_memcpy_peer(struct xpr_cupti_walk *w, const struct ct_memcpy_peer *m, struct xpr_device_batch *batch) {
    struct xpr_activity_record *record = add(w, batch, XPR_ACTIVITY_MEMCPY, m->start, m->end, m->correlation);
    if (!record) return;
    TAKE_PLACE(record, m);
    record->shape.copy.bytes = m->bytes;
    record->shape.copy.copy_kind = m->copy_kind;
    record->shape.copy.source_kind = m->source_kind;
    record->shape.copy.target_kind = m->target_kind;
    record->shape.copy.peer_device = m->target_device;
}

static void take_memset(struct xpr_cupti_walk *w, const struct ct_memset *m, struct xpr_device_batch *batch) {
    struct xpr_activity_record *record = add(w, batch, XPR_ACTIVITY_MEMSET, m->start, m->end, m->correlation);
    if (!record) return;
    TAKE_PLACE(record, m);
    record->shape.copy.peer_device = m->device;
    record->shape.copy.bytes = m->bytes;
    record->shape.copy.target_kind = m->memory_kind;
    record->shape.copy.value = m->value;
}

static void take_graph(struct xpr_cupti_walk *w, const struct ct_graph *g, struct xpr_device_batch *batch) {
    struct xpr_activity_record *record = add(w, batch, XPR_ACTIVITY_GRAPH, g->start, g->end, g->correlation);
    if (!record) return;
    record->device = g->device;
    record->context = g->context;
    record->stream = g->stream;
    record->graph = g->graph;
}

static void take_sync(struct xpr_cupti_walk *w, const struct ct_sync *s, struct xpr_device_batch *batch) {
    struct xpr_activity_record *record = add(w, batch, XPR_ACTIVITY_SYNC, s->start, s->end, s->correlation);
    if (!record) return;
    record->device = XPR_NO_DEVICE;
    record->context = s->context;
    record->stream = s->stream;
    record->shape.wait.type = s->type;
}

static void take_overhead(struct xpr_cupti_walk *w, const struct ct_overhead *o, struct xpr_device_batch *batch) {
    struct xpr_activity_record *record = add(w, batch, XPR_ACTIVITY_OVERHEAD, o->start, o->end, 0);
    if (!record) return;
    bool on_device = o->object_kind >= CT_OBJECT_DEVICE;
    record->device = on_device ? o->object_id[0] : XPR_NO_DEVICE;
    record->context = on_device ? o->object_id[1] : XPR_NO_DEVICE;
    record->stream = on_device ? o->object_id[2] : XPR_NO_DEVICE;
    record->shape.wait.type = o->overhead_kind;
    record->shape.wait.os_tid = w->os_threads && o->object_kind == CT_OBJECT_THREAD ? o->object_id[1] : 0;
}

static void take_device(struct xpr_cupti_walk *w, const struct ct_device *d, struct xpr_device_batch *batch) {
    struct xpr_device_record *record = xpr_bytes_add(&batch->devices, sizeof *record);
    if (!record) {
        w->no_memory++;
        return;
    }
    record->ordinal = d->id;
    record->name = d->name ? intern(d->name) : XPR_NO_STRING;
    memcpy(record->uuid, d->uuid, sizeof record->uuid);
    record->capability_major = d->capability_major;
    record->capability_minor = d->capability_minor;
    record->multiprocessors = d->multiprocessors;
    record->core_clock_khz = d->core_clock_khz;
    record->memory_bytes = d->memory_bytes;
    record->memory_bandwidth_kbs = d->memory_bandwidth_kbs;
}

static int next(const struct xpr_cupti_walk *w, uint8_t *buffer, size_t valid, struct ct_record **record) {
    if (w->subscriber) return w->cupti->next_record_v2(w->subscriber, buffer, valid, record);
    return w->cupti->next_record(buffer, valid, record);
}

void xpr_cupti_walk_buffer(struct xpr_cupti_walk *w, uint8_t *buffer, size_t valid, struct xpr_device_batch *batch) {
    struct ct_record *record = NULL;
    int result = CT_NO_MORE_RECORDS;
    w->buffers++;
    while (valid && (result = next(w, buffer, valid, &record)) == CT_OK) {
        const void *r = record;
        switch (record->kind) {
            case CT_KIND_KERNEL: take_kernel(w, r, batch); break;
            case CT_KIND_MEMCPY: take_memcpy(w, r, batch); break;
            case CT_KIND_MEMCPY_PEER: take_memcpy_peer(w, r, batch); break;
            case CT_KIND_MEMSET: take_memset(w, r, batch); break;
            case CT_KIND_RUNTIME: take_call(w, XPR_CALL_RUNTIME, r, batch); break;
            case CT_KIND_DRIVER: take_call(w, XPR_CALL_DRIVER, r, batch); break;
            case CT_KIND_EXTERNAL: take_external(w, r); break;
            case CT_KIND_GRAPH: take_graph(w, r, batch); break;
            case CT_KIND_SYNC: take_sync(w, r, batch); break;
            case CT_KIND_OVERHEAD: take_overhead(w, r, batch); break;
            case CT_KIND_DEVICE: take_device(w, r, batch); break;
            default: w->unknown_kinds++;
        }
    }
    w->cut_buffers += result != CT_NO_MORE_RECORDS;
}
