#define _GNU_SOURCE
#include "device/cupti_load.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIBCUDA "libcuda.so.1"
#define NEEDED true
#define OPTIONAL false

bool xpr_cuda_is_loaded(void) {
    void *cuda = dlopen(LIBCUDA, RTLD_LAZY | RTLD_NOLOAD);
    if (cuda) dlclose(cuda);
    return cuda != NULL;
}

static bool no_driver(char *why) {
    const char *error = dlerror();
    snprintf(why, XPR_CUPTI_WHY_BYTES, "no NVIDIA driver: %s", error ? error : LIBCUDA);
    return false;
}

bool xpr_cuda_is_there(char *why) {
    void *cuda = dlopen(LIBCUDA, RTLD_LAZY | RTLD_LOCAL);
    if (!cuda) return no_driver(why);
    dlclose(cuda);
    return true;
}

static bool is_loaded(const char *name) {
    void *library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    if (library) dlclose(library);
    return library != NULL;
}

static void *open_cupti(const char *const *candidates, char *why) {
    const char *chosen = getenv("XPROF_CUPTI_LIB");
    if (chosen && *chosen) {
        void *library = dlopen(chosen, RTLD_NOW | RTLD_LOCAL);
        const char *error = library ? NULL : dlerror();
        if (!library) snprintf(why, XPR_CUPTI_WHY_BYTES, "XPROF_CUPTI_LIB: %s", error ? error : chosen);
        return library;
    }
    static const char *const names[] = {"libcupti.so.13", "libcupti.so.12"};
    void *library = NULL;
    for (int i = 0; i < 2 && !library; i++) library = dlopen(names[i], RTLD_NOW | RTLD_NOLOAD);
    /* Of two releases on disk the one that fits the program's CUDA runtime, as its driver may be too old for the other. */
    bool is_12 = is_loaded("libcudart.so.12") && !is_loaded("libcudart.so.13");
    for (int i = 0; i < 2 && !library; i++) {
        const char *name = names[is_12 ? 1 - i : i];
        for (const char *const *path = candidates; path && *path && !library; path++)
            if (strstr(*path, name)) library = dlopen(*path, RTLD_NOW | RTLD_LOCAL);
        if (!library) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (!library) {
        const char *error = dlerror();
        snprintf(why, XPR_CUPTI_WHY_BYTES,
                 "no CUPTI (%s); pip install nvidia-cuda-cupti, or set XPROF_CUPTI_LIB to the library's path",
                 error ? error : names[0]);
    }
    return library;
}

bool xpr_cupti_load(struct xpr_cupti *c, const char *const *candidates, char *why) {
    memset(c, 0, sizeof *c);
    /* The program keeps it, too, once it uses CUDA. */
    if (!dlopen(LIBCUDA, RTLD_LAZY | RTLD_LOCAL)) return no_driver(why);
    void *library = open_cupti(candidates, why);
    if (!library) return false;

    const struct {
        const char *name;
        void *place;
        bool needed;
    } one[] = {
        {"cuptiGetVersion", &c->version, NEEDED},
        {"cuptiSubscribe", &c->subscribe, OPTIONAL},
        {"cuptiSubscribe_v2", &c->subscribe_v2, OPTIONAL},
        {"cuptiUnsubscribe", &c->unsubscribe, NEEDED},
        {"cuptiEnableCallback", &c->enable_callback, OPTIONAL},
        {"cuptiGetCallbackName", &c->callback_name, OPTIONAL},
        {"cuptiGetGraphNodeId", &c->graph_node_id, OPTIONAL},
        {"cuptiGetGraphId", &c->graph_id, OPTIONAL},
        {"cuptiActivityFlushAll", &c->flush_all, NEEDED},
        {"cuptiActivityRegisterCallbacks", &c->register_callbacks, OPTIONAL},
        {"cuptiActivityEnable", &c->enable, OPTIONAL},
        {"cuptiActivityEnableAndDump", &c->enable_and_dump, OPTIONAL},
        {"cuptiActivityDisable", &c->disable, OPTIONAL},
        {"cuptiActivityGetNextRecord", &c->next_record, OPTIONAL},
        {"cuptiActivityGetNumDroppedRecords", &c->dropped, OPTIONAL},
        {"cuptiActivityPushExternalCorrelationId", &c->push, OPTIONAL},
        {"cuptiActivityPopExternalCorrelationId", &c->pop, OPTIONAL},
        {"cuptiGetTimestamp", &c->timestamp, OPTIONAL},
        {"cuptiSetThreadIdType", &c->thread_id_type, OPTIONAL},
        {"cuptiActivityEnableRuntimeApi", &c->enable_runtime, OPTIONAL},
        {"cuptiActivityEnableDriverApi", &c->enable_driver, OPTIONAL},
        {"cuptiActivityRegisterCallbacks_v2", &c->register_callbacks_v2, OPTIONAL},
        {"cuptiActivityEnable_v2", &c->enable_v2, OPTIONAL},
        {"cuptiActivityEnableAndDump_v2", &c->enable_and_dump_v2, OPTIONAL},
        {"cuptiActivityDisable_v2", &c->disable_v2, OPTIONAL},
        {"cuptiActivityGetNextRecord_v2", &c->next_record_v2, OPTIONAL},
        {"cuptiActivityGetNumDroppedRecords_v2", &c->dropped_v2, OPTIONAL},
        {"cuptiActivityPushExternalCorrelationId_v2", &c->push_v2, OPTIONAL},
        {"cuptiActivityPopExternalCorrelationId_v2", &c->pop_v2, OPTIONAL},
        {"cuptiGetTimestamp_v2", &c->timestamp_v2, OPTIONAL},
        {"cuptiActivitySetAttribute_v2", &c->set_attribute_v2, OPTIONAL},
        {"cuptiActivityEnableRuntimeApi_v2", &c->enable_runtime_v2, OPTIONAL},
        {"cuptiActivityEnableDriverApi_v2", &c->enable_driver_v2, OPTIONAL},
    };
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) {
        void *found = dlsym(library, one[i].name);
        if (!found && one[i].needed) {
            snprintf(why, XPR_CUPTI_WHY_BYTES, "this CUPTI has no %s", one[i].name);
            return false;
        }
        memcpy(one[i].place, &found, sizeof found);
    }
    Dl_info about;
    if (dladdr((void *)(uintptr_t)c->version, &about) && about.dli_fname)
        snprintf(c->path, sizeof c->path, "%s", about.dli_fname);
    c->has_v2 = c->subscribe_v2 && c->register_callbacks_v2 && c->enable_v2 && c->disable_v2 && c->next_record_v2 &&
                c->dropped_v2 && c->push_v2 && c->pop_v2;
    bool has_v1 = c->subscribe && c->register_callbacks && c->enable && c->disable && c->next_record && c->dropped;
    if (!c->has_v2 && !has_v1) snprintf(why, XPR_CUPTI_WHY_BYTES, "this CUPTI lacks its activity calls");
    if (!has_v1) c->subscribe = NULL;
    return c->has_v2 || has_v1;
}

const char *xpr_cupti_result(int code) {
    static const struct {
        int code;
        const char *text;
    } known[] = {
        {1, "invalid parameter"},
        {2, "invalid device"},
        {3, "invalid context"},
        {7, "invalid operation"},
        {8, "out of memory"},
        {9, "hardware error"},
        {10, "a parameter's size does not suffice"},
        {11, "not implemented"},
        {12, "limit reached"},
        {13, "not ready"},
        {14, "not compatible: another tool of this process uses CUPTI in another way"},
        {15, "not initialised: the driver does not work, or is older than this CUPTI"},
        {18, "queue empty"},
        {19, "invalid handle"},
        {21, "invalid kind"},
        {23, "disabled"},
        {26, "hardware busy: another tool uses the counters"},
        {27, "not supported"},
        {33, "virtualised device not supported"},
        {34, "the CUDA compiler is not compatible"},
        {35, "insufficient privileges: NVreg_RestrictProfilingToAdminUsers, or a container without CAP_SYS_ADMIN"},
        {36, "the old profiler interface is in use"},
        {38, "legacy profiler not supported"},
        {39, "another tool holds CUPTI"},
        {40, "virtualised device: insufficient privileges"},
        {41, "confidential computing is on"},
        {42, "mining card not supported"},
        {43, "MIG device not supported"},
        {44, "SLI device not supported"},
        {45, "not supported under WSL"},
        {999, "unknown: no driver, or no device"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].code == code) return known[i].text;
    return "a code that this release does not know";
}
