/* A client of NVTX as small as one can be: slots that a tool fills, called like the functions of NVTX's headers. For tests and
 * benchmarks, which must not need those headers. */
#ifndef XPROF_PY_TESTS_NVTX_CLIENT_H
#define XPROF_PY_TESTS_NVTX_CLIENT_H

#include <dlfcn.h>
#include <string.h>

#include "device/nvtx_abi.h"

typedef struct xpr_nvtx_attributes nvtx_attributes;

/* 16 slots each, as NVTX 3 has them; slot 0 is none. */
static xpr_nvtx_function nvtx_core_function[16], nvtx_core2_function[16];
static xpr_nvtx_function *nvtx_core_slots[16], *nvtx_core2_slots[16];
static intptr_t nvtx_payload_slots[13];

static int nvtx_module_slots(int module, xpr_nvtx_function ***slots, unsigned *count) {
    if (module != XPR_NVTX_MODULE_CORE && module != XPR_NVTX_MODULE_CORE2) return 0;
    *slots = module == XPR_NVTX_MODULE_CORE ? nvtx_core_slots : nvtx_core2_slots;
    *count = 16;
    return 1;
}

static const void *nvtx_export_table(uint32_t id) {
    static const struct xpr_nvtx_callbacks callbacks = {sizeof callbacks, nvtx_module_slots};
    return id == XPR_NVTX_TABLE_CALLBACKS ? &callbacks : NULL;
}

/* Loads the tool at path, as a client does at its first call. Returns whether it attached. */
static int nvtx_attach(const char *path) {
    for (int i = 1; i < 16; i++) {
        nvtx_core_slots[i] = &nvtx_core_function[i];
        nvtx_core2_slots[i] = &nvtx_core2_function[i];
    }
    void *tool = dlopen(path, RTLD_LAZY);
    if (!tool) return 0;
    int (*inject)(const void *(*)(uint32_t)) = (int (*)(const void *(*)(uint32_t)))dlsym(tool, "InitializeInjectionNvtx2");
    int (*extend)(struct xpr_nvtx_module *) = (int (*)(struct xpr_nvtx_module *))dlsym(tool, "InitializeInjectionNvtxExtension");
    if (!inject || !extend || inject(nvtx_export_table) != 1) return 0;
    struct xpr_nvtx_segment segment = {0, sizeof nvtx_payload_slots / sizeof *nvtx_payload_slots, nvtx_payload_slots};
    struct xpr_nvtx_module module = {3, sizeof module, XPR_NVTX_EXTENSION_PAYLOAD, 1, 1, &segment, NULL, NULL};
    return extend(&module) == 1;
}

#define nvtx_push_ex(a) ((int (*)(const nvtx_attributes *))nvtx_core_function[XPR_NVTX_PUSH_EX])(a)
#define nvtx_push(text) ((int (*)(const char *))nvtx_core_function[XPR_NVTX_PUSH_A])(text)
#define nvtx_push_wide(text) ((int (*)(const wchar_t *))nvtx_core_function[XPR_NVTX_PUSH_W])(text)
#define nvtx_pop() ((int (*)(void))nvtx_core_function[XPR_NVTX_POP])()
#define nvtx_mark(text) ((void (*)(const char *))nvtx_core_function[XPR_NVTX_MARK_A])(text)
#define nvtx_start(text) ((uint64_t (*)(const char *))nvtx_core_function[XPR_NVTX_START_A])(text)
#define nvtx_end(id) ((void (*)(uint64_t))nvtx_core_function[XPR_NVTX_END])(id)
#define nvtx_name_category(c, text) ((void (*)(uint32_t, const char *))nvtx_core_function[XPR_NVTX_NAME_CATEGORY_A])(c, text)
#define nvtx_name_thread(tid, text) ((void (*)(uint32_t, const char *))nvtx_core_function[XPR_NVTX_NAME_THREAD_A])(tid, text)
#define nvtx_domain(text) ((void *(*)(const char *))nvtx_core2_function[XPR_NVTX_DOMAIN_CREATE_A])(text)
#define nvtx_string(d, text) ((void *(*)(void *, const char *))nvtx_core2_function[XPR_NVTX_REGISTER_STRING_A])(d, text)
#define nvtx_domain_category(d, c, text) \
    ((void (*)(void *, uint32_t, const char *))nvtx_core2_function[XPR_NVTX_DOMAIN_NAME_CATEGORY_A])(d, c, text)
#define nvtx_domain_push(d, a) ((int (*)(void *, const nvtx_attributes *))nvtx_core2_function[XPR_NVTX_DOMAIN_PUSH])(d, a)
#define nvtx_domain_pop(d) ((int (*)(void *))nvtx_core2_function[XPR_NVTX_DOMAIN_POP])(d)
#define nvtx_domain_mark(d, a) ((void (*)(void *, const nvtx_attributes *))nvtx_core2_function[XPR_NVTX_DOMAIN_MARK])(d, a)
#define nvtx_domain_start(d, a) ((uint64_t (*)(void *, const nvtx_attributes *))nvtx_core2_function[XPR_NVTX_DOMAIN_START])(d, a)
#define nvtx_domain_end(d, id) ((void (*)(void *, uint64_t))nvtx_core2_function[XPR_NVTX_DOMAIN_END])(d, id)
#define nvtx_schema(d, s) \
    ((uint64_t (*)(void *, const struct xpr_nvtx_schema *))nvtx_payload_slots[XPR_NVTX_SCHEMA_REGISTER])(d, s)
#define nvtx_push_payload(d, p, n) \
    ((int (*)(void *, const struct xpr_nvtx_payload *, size_t))nvtx_payload_slots[XPR_NVTX_PUSH_PAYLOAD])(d, p, n)
#define nvtx_pop_payload(d, p, n) \
    ((int (*)(void *, const struct xpr_nvtx_payload *, size_t))nvtx_payload_slots[XPR_NVTX_POP_PAYLOAD])(d, p, n)

/* Attributes with a message that is registered, or plain text. */
static inline nvtx_attributes nvtx_named(int type, const void *message) {
    nvtx_attributes a;
    memset(&a, 0, sizeof a);
    a.version = 3;
    a.bytes = sizeof a;
    a.message_type = type;
    a.message.registered = message;
    return a;
}

#endif
