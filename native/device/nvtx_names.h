/* What NVTX clients register and refer to later: domains, strings, categories, schemas of payloads, names of threads.
 *
 * Ownership: copies, kept until the process ends, since a handle may be used at any time. What is registered twice exists once.
 * Threads: any; nothing locks, so that a fork or a signal handler finds nothing held. Cost: registering allocates; a label's id
 * is one load once it has been used in the capture. */
#ifndef XPROF_PY_DEVICE_NVTX_NAMES_H
#define XPROF_PY_DEVICE_NVTX_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "device/nvtx_abi.h"
#include "xprof_py/trace.h"

/* A text, and the id that it has in one capture: the capture's number in bits 32-63. */
struct xpr_nvtx_label {
    const char *text;
    size_t bytes;
    uint64_t state;
};

struct xpr_nvtx_domain {
    struct xpr_nvtx_label name;
    bool is_xla; /* its ranges say which launches are whose */
};

/* Of events that name none. */
extern struct xpr_nvtx_domain xpr_nvtx_default_domain;

static inline struct xpr_nvtx_domain *xpr_nvtx_domain_of(struct xpr_nvtx_domain *domain) {
    return domain ? domain : &xpr_nvtx_default_domain;
}

/* NULL: no memory, or a domain that is to be left alone; the client then takes itself for one without a tool. */
struct xpr_nvtx_domain *xpr_nvtx_create_domain(const char *name);
struct xpr_nvtx_label *xpr_nvtx_register_string(struct xpr_nvtx_domain *domain, const char *text);
void xpr_nvtx_name_category(struct xpr_nvtx_domain *domain, uint32_t category, const char *name);
/* NULL: it was not named. */
struct xpr_nvtx_label *xpr_nvtx_category(struct xpr_nvtx_domain *domain, uint32_t category);
void xpr_nvtx_name_thread(uint32_t os_tid, const char *name);
const char *xpr_nvtx_thread_name(uint32_t os_tid);

struct xpr_nvtx_entry {
    uint64_t flags, type;
    size_t offset; /* SIZE_MAX: depends on the length of an array before it */
    size_t length; /* of an array of fixed size; where another entry holds it, that one's place */
    const char *name;
    bool is_length; /* of another entry's array */
};

/* A schema with its offsets worked out. `is_read` false: a union, for example, of which nothing is read. */
struct xpr_nvtx_layout {
    bool is_read;
    size_t bytes; /* 0: depends on the payload */
    size_t alignment, count;
    struct xpr_nvtx_entry entries[];
};

/* The id under which the client refers to it. 0: refused. */
uint64_t xpr_nvtx_register_schema(struct xpr_nvtx_domain *domain, const struct xpr_nvtx_schema *schema);
const struct xpr_nvtx_layout *xpr_nvtx_layout_of(struct xpr_nvtx_domain *domain, uint64_t id);

/* Bytes of one value of a predefined type, 0: not one that is read. */
size_t xpr_nvtx_bytes_of_type(uint64_t type);

/* A wide text as UTF-8 in `room` bytes, cut off at a character's edge. Returns its bytes without the 0. */
size_t xpr_nvtx_narrow(char *to, size_t room, const wchar_t *from);

uint32_t xpr_nvtx_intern_label(struct xpr_nvtx_label *label, uint32_t capture, int is_argument);

/* The id of a label in a capture. */
static inline uint32_t xpr_nvtx_id_of(struct xpr_nvtx_label *label, uint32_t capture, int is_argument) {
    uint64_t state = __atomic_load_n(&label->state, __ATOMIC_RELAXED);
    return __builtin_expect(state >> 32 == capture, 1) ? (uint32_t)state : xpr_nvtx_intern_label(label, capture, is_argument);
}

#endif
