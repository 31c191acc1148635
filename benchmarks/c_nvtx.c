/* What one pair of NVTX calls costs a C program, in CPU nanoseconds: with our library attached, and with empty slots, which is
 * what NVTX's headers come to without a tool. */
#define _GNU_SOURCE
#include <time.h>

#include "../native/tests/nvtx_client.h"

static double cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static nvtx_attributes attributes;
static void *domain;

/* Returns whether the tool at path attached. */
__attribute__((visibility("default"))) int attach(const char *path) {
    if (!nvtx_attach(path)) return 0;
    domain = nvtx_domain("benchmark");
    attributes = nvtx_named(XPR_NVTX_MESSAGE_REGISTERED, nvtx_string(domain, "region"));
    return 1;
}

/* The mean over n pairs; the second argument of each: whether the calls are made, as NVTX's headers do, only if a slot holds
 * a function. */
#define PAIRS(name, slot, body)                                                                    \
    __attribute__((visibility("default"))) double name(long n, int attached) {                     \
        xpr_nvtx_function none = NULL;                                                             \
        xpr_nvtx_function volatile *begins = attached ? &slot : &none;                             \
        double began = cpu_ns();                                                                   \
        for (long i = 0; i < n; i++)                                                               \
            if (*begins) {                                                                         \
                body;                                                                              \
            }                                                                                      \
        return (cpu_ns() - began) / (double)n;                                                     \
    }

PAIRS(registered_ns, nvtx_core2_function[XPR_NVTX_DOMAIN_PUSH], nvtx_domain_push(domain, &attributes); nvtx_domain_pop(domain))
PAIRS(plain_ns, nvtx_core_function[XPR_NVTX_PUSH_A], nvtx_push("region"); nvtx_pop())
PAIRS(start_end_ns, nvtx_core2_function[XPR_NVTX_DOMAIN_START],
      uint64_t id = nvtx_domain_start(domain, &attributes);
      nvtx_domain_end(domain, id))
