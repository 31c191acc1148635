/* Ranges of every kind, for tests/integration/test_nvtx_ranges.py, which knows what must come of them. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../../native/tests/nvtx_client.h"

__attribute__((visibility("default"))) int attach(const char *path) { return nvtx_attach(path); }

static uint64_t open_range;

static void *elsewhere(void *unused) {
    nvtx_name_thread((uint32_t)syscall(SYS_gettid), "named by NVTX");
    nvtx_end(open_range);
    return unused;
}

struct step {
    int32_t number;
    double loss;
    char phase[8];
    const char *note;
    uint16_t shape[3];
    struct {
        float rate;
    } optimizer;
};

static void structured(void *domain) {
    struct xpr_nvtx_schema_entry inner = {.type = XPR_NVTX_FLOAT, .name = "rate"};
    struct xpr_nvtx_schema schema = {
        .mask = XPR_NVTX_HAS_TYPE | XPR_NVTX_HAS_ENTRIES | XPR_NVTX_HAS_ENTRY_COUNT, .type = XPR_NVTX_SCHEMA_STATIC,
        .entries = &inner, .entry_count = 1};
    uint64_t optimizer = nvtx_schema(domain, &schema);
    /* Offsets are left to the tool: natural alignment. */
    struct xpr_nvtx_schema_entry entries[] = {
        {.type = XPR_NVTX_I32, .name = "number"},
        {.type = XPR_NVTX_DOUBLE, .name = "loss"},
        {.flags = XPR_NVTX_ENTRY_ARRAY_FIXED, .type = XPR_NVTX_CHAR, .name = "phase", .array_detail = 8},
        {.type = XPR_NVTX_CSTRING, .name = "note"},
        {.flags = XPR_NVTX_ENTRY_ARRAY_FIXED, .type = XPR_NVTX_U16, .name = "shape", .array_detail = 3},
        {.type = optimizer, .name = "optimizer"},
    };
    schema.mask |= XPR_NVTX_HAS_SCHEMA_ID;
    schema.entries = entries;
    schema.entry_count = sizeof entries / sizeof *entries;
    schema.id = XPR_NVTX_FIRST_SCHEMA + 1;
    nvtx_schema(domain, &schema);
    struct step step = {-3, 0.25, "warmup", "first", {2, 3, 65535}, {0.5f}};
    struct xpr_nvtx_payload payload = {schema.id, sizeof step, &step};
    nvtx_attributes a = nvtx_named(XPR_NVTX_MESSAGE_ASCII, "structured");
    a.payload_type = XPR_NVTX_PAYLOAD_EXTENDED;
    a.payload_count = 1;
    a.payload.uint64 = (uint64_t)(uintptr_t)&payload;
    nvtx_domain_push(domain, &a);
    step.number = 99; /* read at the push, not at the pop */
    nvtx_domain_pop(domain);

    /* As XLA does it: the message and a text are handles of registered strings. */
    struct xpr_nvtx_schema_entry handles[] = {
        {.flags = XPR_NVTX_ENTRY_MESSAGE, .type = XPR_NVTX_REGISTERED, .name = "Name"},
        {.type = XPR_NVTX_U64, .name = "Unique ID"},
        {.type = XPR_NVTX_REGISTERED, .name = "HLO"},
    };
    schema.entries = handles;
    schema.entry_count = 3;
    schema.id = XPR_NVTX_FIRST_SCHEMA + 2;
    nvtx_schema(domain, &schema);
    struct {
        void *name;
        uint64_t id;
        void *hlo;
    } module = {nvtx_string(domain, "jit_train"), 7, nvtx_string(domain, "dot.1")};
    payload = (struct xpr_nvtx_payload){schema.id, sizeof module, &module};
    nvtx_push_payload(domain, &payload, 1);
    nvtx_pop_payload(domain, NULL, 0);

    int32_t numbers[20];
    for (int i = 0; i < 20; i++) numbers[i] = i * i;
    payload = (struct xpr_nvtx_payload){XPR_NVTX_I32, sizeof numbers, numbers};
    a.message.ascii = "array";
    nvtx_domain_push(domain, &a);
    nvtx_domain_pop(domain);
}

__attribute__((visibility("default"))) void play(void) {
    void *domain = nvtx_domain("training");
    nvtx_domain_category(domain, 4, "input");
    nvtx_attributes a = nvtx_named(XPR_NVTX_MESSAGE_REGISTERED, nvtx_string(domain, "outer"));
    a.category = 4;
    a.color = 0xFF00FF00u;
    nvtx_domain_push(domain, &a);
    nvtx_push("plain");
    nvtx_pop();
    a.category = 9;
    a.payload_type = XPR_NVTX_PAYLOAD_INT32;
    a.payload.int32 = -8;
    a.message.registered = nvtx_string(domain, "inner");
    nvtx_domain_push(domain, &a);
    nvtx_domain_pop(domain);
    nvtx_domain_pop(domain);
    a.category = 0;
    a.payload_type = XPR_NVTX_PAYLOAD_FLOAT;
    a.payload.float32 = 1.5f;
    nvtx_domain_mark(domain, &a);
    nvtx_push_wide(L"breit \u00e9 \U0001F600");
    nvtx_pop();
    structured(domain);
    open_range = nvtx_start("elsewhere");
    pthread_t thread;
    pthread_create(&thread, NULL, elsewhere, NULL);
    pthread_join(thread, NULL);
    nvtx_push("still open");
}
