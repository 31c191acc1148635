/* The library that NVTX clients load (NVTX_INJECTION64_PATH): ranges of any library in the process become spans of the
 * recorder. It links nothing of xprof_py: it finds the recorder as every user of xprof_py/trace.h does, whichever of the two is
 * loaded first, and without it costs two loads and a branch. Which functions a client may call: nvtx_abi.h. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>

#include "device/nvtx_ranges.h"

typedef struct xpr_nvtx_domain domain;
typedef struct xpr_nvtx_attributes attributes;
typedef struct xpr_nvtx_payload payload;

/* The capture that runs, 0: none, or by a recorder older than this library. */
static inline uint32_t recording(void) {
    uint32_t capture = xprof_py_recording();
    if (__builtin_expect(!capture, 1)) return 0;
    const struct xprof_py_trace_table *table = xprof_py_trace_v1.table;
    return table->bytes >= offsetof(struct xprof_py_trace_table, end_launches) + sizeof table->end_launches ? capture : 0;
}

enum { WIDE_BYTES = 1024 };

#define SAID(...) (&(struct xpr_nvtx_said){__VA_ARGS__})

#define AS_UTF8(wide)        \
    char narrow[WIDE_BYTES]; \
    xpr_nvtx_narrow(narrow, sizeof narrow, (wide) ? (wide) : L"")

static void mark_ex(const attributes *a) {
    uint32_t capture = recording();
    if (capture) xpr_nvtx_mark(capture, SAID(.attributes = a));
}
static void mark_a(const char *text) {
    uint32_t capture = recording();
    if (capture) xpr_nvtx_mark(capture, SAID(.message = text));
}
static void mark_w(const wchar_t *text) {
    if (!recording()) return;
    AS_UTF8(text);
    mark_a(narrow);
}
static void domain_mark(domain *d, const attributes *a) {
    uint32_t capture = recording();
    if (capture) xpr_nvtx_mark(capture, SAID(.domain = d, .attributes = a));
}
static void mark_payload(domain *d, const payload *p, size_t n) {
    uint32_t capture = recording();
    if (capture) xpr_nvtx_mark(capture, SAID(.domain = d, .payloads = p, .payload_count = n));
}

static int push_ex(const attributes *a) {
    uint32_t capture = recording();
    if (capture) xpr_nvtx_push(capture, SAID(.attributes = a));
    return XPR_NVTX_NO_LEVEL;
}
static int push_a(const char *text) {
    uint32_t capture = recording();
    if (capture) xpr_nvtx_push(capture, SAID(.message = text));
    return XPR_NVTX_NO_LEVEL;
}
static int push_w(const wchar_t *text) {
    if (!recording()) return XPR_NVTX_NO_LEVEL;
    AS_UTF8(text);
    return push_a(narrow);
}
static int domain_push(domain *d, const attributes *a) {
    uint32_t capture = recording();
    if (capture) xpr_nvtx_push(capture, SAID(.domain = d, .attributes = a));
    return XPR_NVTX_NO_LEVEL;
}
static int push_payload(domain *d, const payload *p, size_t n) {
    uint32_t capture = recording();
    if (capture) xpr_nvtx_push(capture, SAID(.domain = d, .payloads = p, .payload_count = n));
    return XPR_NVTX_NO_LEVEL;
}

static int pop_payload(domain *d, const payload *p, size_t n) {
    (void)p;
    uint32_t capture = recording();
    if (__builtin_expect(capture != 0, 0)) xpr_nvtx_pop(capture, d, n);
    return XPR_NVTX_NO_LEVEL;
}
static int domain_pop(domain *d) { return pop_payload(d, NULL, 0); }
static int pop(void) { return pop_payload(NULL, NULL, 0); }

static uint64_t start_ex(const attributes *a) {
    uint32_t capture = recording();
    return capture ? xpr_nvtx_start(capture, SAID(.attributes = a)) : 0;
}
static uint64_t start_a(const char *text) {
    uint32_t capture = recording();
    return capture ? xpr_nvtx_start(capture, SAID(.message = text)) : 0;
}
static uint64_t start_w(const wchar_t *text) {
    if (!recording()) return 0;
    AS_UTF8(text);
    return start_a(narrow);
}
static uint64_t domain_start(domain *d, const attributes *a) {
    uint32_t capture = recording();
    return capture ? xpr_nvtx_start(capture, SAID(.domain = d, .attributes = a)) : 0;
}
static uint64_t start_payload(domain *d, const payload *p, size_t n) {
    uint32_t capture = recording();
    return capture ? xpr_nvtx_start(capture, SAID(.domain = d, .payloads = p, .payload_count = n)) : 0;
}

/* Also without a capture: a range that began in one has a place to give back. */
static void end(uint64_t range) { if (range) xpr_nvtx_end(recording(), range, 0); }
static void domain_end(domain *d, uint64_t range) { (void)d; end(range); }
static void end_payload(domain *d, uint64_t range, const payload *p, size_t n) {
    (void)d;
    (void)p;
    if (range) xpr_nvtx_end(recording(), range, n);
}

static void domain_name_category(domain *d, uint32_t category, const char *name) { xpr_nvtx_name_category(d, category, name); }
static void domain_name_category_w(domain *d, uint32_t category, const wchar_t *name) {
    AS_UTF8(name);
    xpr_nvtx_name_category(d, category, narrow);
}
static void name_category(uint32_t category, const char *name) { xpr_nvtx_name_category(NULL, category, name); }
static void name_category_w(uint32_t category, const wchar_t *name) { domain_name_category_w(NULL, category, name); }

static void name_thread(uint32_t os_tid, const char *name) {
    xpr_nvtx_name_thread(os_tid, name);
    bool is_this = name && os_tid == (uint32_t)syscall(SYS_gettid);
    if (is_this && recording()) xprof_py_trace_v1.table->name_thread(name);
}
static void name_thread_w(uint32_t os_tid, const wchar_t *name) {
    AS_UTF8(name);
    name_thread(os_tid, narrow);
}

static void *register_string(domain *d, const char *text) { return xpr_nvtx_register_string(d, text); }
static void *register_string_w(domain *d, const wchar_t *text) {
    AS_UTF8(text);
    return xpr_nvtx_register_string(d, narrow);
}
static domain *create_domain(const char *name) { return xpr_nvtx_create_domain(name); }
static domain *create_domain_w(const wchar_t *name) {
    AS_UTF8(name);
    return xpr_nvtx_create_domain(narrow);
}
static uint64_t register_schema(domain *d, const struct xpr_nvtx_schema *schema) { return xpr_nvtx_register_schema(d, schema); }
/* Clients may ask once and keep the answer, so it does not depend on whether a capture runs. */
static uint8_t is_enabled(domain *d) { (void)d; return 1; }

#define SLOT(number, function) {number, (xpr_nvtx_function)(function)}

/* Not here: resources, which name objects of others, and destroying domains, whose handles may be in use elsewhere. */
static const struct slot {
    unsigned number;
    xpr_nvtx_function function;
} core[] = {
    SLOT(XPR_NVTX_MARK_EX, mark_ex),
    SLOT(XPR_NVTX_MARK_A, mark_a),
    SLOT(XPR_NVTX_MARK_W, mark_w),
    SLOT(XPR_NVTX_START_EX, start_ex),
    SLOT(XPR_NVTX_START_A, start_a),
    SLOT(XPR_NVTX_START_W, start_w),
    SLOT(XPR_NVTX_END, end),
    SLOT(XPR_NVTX_PUSH_EX, push_ex),
    SLOT(XPR_NVTX_PUSH_A, push_a),
    SLOT(XPR_NVTX_PUSH_W, push_w),
    SLOT(XPR_NVTX_POP, pop),
    SLOT(XPR_NVTX_NAME_CATEGORY_A, name_category),
    SLOT(XPR_NVTX_NAME_CATEGORY_W, name_category_w),
    SLOT(XPR_NVTX_NAME_THREAD_A, name_thread),
    SLOT(XPR_NVTX_NAME_THREAD_W, name_thread_w),
}, core2[] = {
    SLOT(XPR_NVTX_DOMAIN_MARK, domain_mark),
    SLOT(XPR_NVTX_DOMAIN_START, domain_start),
    SLOT(XPR_NVTX_DOMAIN_END, domain_end),
    SLOT(XPR_NVTX_DOMAIN_PUSH, domain_push),
    SLOT(XPR_NVTX_DOMAIN_POP, domain_pop),
    SLOT(XPR_NVTX_DOMAIN_NAME_CATEGORY_A, domain_name_category),
    SLOT(XPR_NVTX_DOMAIN_NAME_CATEGORY_W, domain_name_category_w),
    SLOT(XPR_NVTX_REGISTER_STRING_A, register_string),
    SLOT(XPR_NVTX_REGISTER_STRING_W, register_string_w),
    SLOT(XPR_NVTX_DOMAIN_CREATE_A, create_domain),
    SLOT(XPR_NVTX_DOMAIN_CREATE_W, create_domain_w),
}, payloads[] = {
    SLOT(XPR_NVTX_SCHEMA_REGISTER, register_schema),
    SLOT(XPR_NVTX_MARK_PAYLOAD, mark_payload),
    SLOT(XPR_NVTX_PUSH_PAYLOAD, push_payload),
    SLOT(XPR_NVTX_POP_PAYLOAD, pop_payload),
    SLOT(XPR_NVTX_START_PAYLOAD, start_payload),
    SLOT(XPR_NVTX_END_PAYLOAD, end_payload),
    SLOT(XPR_NVTX_DOMAIN_IS_ENABLED, is_enabled),
};

static void fill(const struct xpr_nvtx_callbacks *client, int module, const struct slot *from, size_t count) {
    xpr_nvtx_function **slots = NULL;
    unsigned size = 0;
    if (!client->module_slots(module, &slots, &size) || !slots) return;
    for (size_t i = 0; i < count; i++)
        if (from[i].number < size && slots[from[i].number]) *slots[from[i].number] = from[i].function;
}

/* Called once by each client library. 1: attached. */
__attribute__((visibility("default"))) int InitializeInjectionNvtx2(const void *(*table_of)(uint32_t id)) {
    const struct xpr_nvtx_callbacks *client = table_of(XPR_NVTX_TABLE_CALLBACKS);
    if (!client || client->struct_bytes < sizeof *client) return 0;
    fill(client, XPR_NVTX_MODULE_CORE, core, sizeof core / sizeof *core);
    fill(client, XPR_NVTX_MODULE_CORE2, core2, sizeof core2 / sizeof *core2);
    return 1;
}

__attribute__((visibility("default"))) int InitializeInjectionNvtxExtension(struct xpr_nvtx_module *module) {
    if (module->module != XPR_NVTX_EXTENSION_PAYLOAD || !module->segment_count) return 1;
    const struct xpr_nvtx_segment *segment = &module->segments[0];
    for (size_t i = 0; i < sizeof payloads / sizeof *payloads; i++)
        if (payloads[i].number < segment->slot_count) segment->slots[payloads[i].number] = (intptr_t)payloads[i].function;
    return 1;
}
