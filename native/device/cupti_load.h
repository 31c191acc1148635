/* Finds the process's CUPTI and its entry points.
 *
 * Without NVIDIA's driver no function of libcupti is called: some versions crash then. So libcuda comes first, and what is
 * asked here makes no call into libcupti at all. Libraries that were opened stay open: CUPTI cannot be unloaded safely.
 * Threads: none of this locks; its callers do. */
#ifndef XPROF_PY_DEVICE_CUPTI_LOAD_H
#define XPROF_PY_DEVICE_CUPTI_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/cupti_abi.h"

enum { XPR_CUPTI_WHY_BYTES = 512, XPR_CUPTI_PATH_BYTES = 1024 };

/* Entry points; NULL where the library has none. */
struct xpr_cupti {
    char path[XPR_CUPTI_PATH_BYTES]; /* of the library's file */
    bool has_v2;                     /* all of the second family that the collector needs */

    int (*version)(uint32_t *version);
    int (*subscribe)(ct_subscriber *, ct_callback, void *user);
    int (*subscribe_v2)(ct_subscriber *, ct_callback, void *user, struct ct_subscriber_options *);
    int (*unsubscribe)(ct_subscriber);
    int (*enable_callback)(uint32_t on, ct_subscriber, uint32_t domain, uint32_t number);
    int (*callback_name)(uint32_t domain, uint32_t number, const char **name);
    int (*graph_node_id)(void *node, uint64_t *id);
    int (*graph_id)(void *graph, uint32_t *id);
    int (*flush_all)(uint32_t flags);

    int (*register_callbacks)(ct_request, ct_complete);
    int (*enable)(uint32_t kind);
    int (*enable_and_dump)(uint32_t kind);
    int (*disable)(uint32_t kind);
    int (*next_record)(uint8_t *buffer, size_t valid, struct ct_record **);
    int (*dropped)(void *context, uint32_t stream, size_t *count);
    int (*push)(uint32_t kind, uint64_t id);
    int (*pop)(uint32_t kind, uint64_t *last);
    int (*timestamp)(uint64_t *);
    int (*thread_id_type)(uint32_t type);
    int (*enable_runtime)(uint32_t number, uint8_t on);
    int (*enable_driver)(uint32_t number, uint8_t on);

    int (*register_callbacks_v2)(ct_subscriber, ct_request_v2, ct_complete_v2);
    int (*enable_v2)(ct_subscriber, uint32_t kind, void *config);
    int (*enable_and_dump_v2)(ct_subscriber, uint32_t kind, void *config);
    int (*disable_v2)(ct_subscriber, uint32_t kind, void *config);
    int (*next_record_v2)(ct_subscriber, uint8_t *buffer, size_t valid, struct ct_record **);
    int (*dropped_v2)(ct_subscriber, void *context, uint32_t stream, size_t *count);
    int (*push_v2)(ct_subscriber, uint32_t kind, uint64_t id);
    int (*pop_v2)(ct_subscriber, uint32_t kind, uint64_t *last);
    int (*timestamp_v2)(ct_subscriber, uint64_t *);
    int (*set_attribute_v2)(ct_subscriber, uint32_t attribute, size_t *bytes, void *value);
    int (*enable_runtime_v2)(ct_subscriber, uint32_t number, uint8_t on);
    int (*enable_driver_v2)(ct_subscriber, uint32_t number, uint8_t on);
};

/* Whether the process has NVIDIA's driver loaded: who uses CUDA has. */
bool xpr_cuda_is_loaded(void);

/* Whether it could have it: loads it, calls nothing in it, and lets go of it again. `why` not, XPR_CUPTI_WHY_BYTES. */
bool xpr_cuda_is_there(char *why);

/* Opens libcuda (which stays), then libcupti: XPROF_CUPTI_LIB, else the one that the process has, else `candidates` (paths,
 * NULL at the end), else what the loader finds by name. False, with the reason in `why`, where there is none, or one that
 * lacks what the collector needs. */
bool xpr_cupti_load(struct xpr_cupti *cupti, const char *const *candidates, char *why);

/* CUPTI's result code as text of our own: the library's may not be asked when it fails. */
const char *xpr_cupti_result(int code);

#endif
