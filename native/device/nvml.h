/* NVML, as far as the power sampler asks it: own declarations of its functions and numbers, which NVIDIA keeps stable.
 *
 * The library is opened at run time and never closed: drivers do not bear it. Threads: none of this locks; NVML does. */
#ifndef XPROF_PY_DEVICE_NVML_H
#define XPROF_PY_DEVICE_NVML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    NVML_SUCCESS = 0,
    NVML_NOT_SUPPORTED = 3,
    NVML_GPU_IS_LOST = 15,
    NVML_TEMPERATURE_GPU = 0,
    NVML_CLOCK_SM = 1,
    NVML_CLOCK_MEM = 2,
};

typedef struct xpr_nvml_handle *nvml_device;

struct nvml_utilization {
    unsigned gpu, memory; /* percent of the last sample period */
};

struct nvml_memory {
    unsigned long long total, free, used; /* bytes */
};

struct xpr_nvml {
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *);
    int (*by_index)(unsigned, nvml_device *);
    int (*uuid)(nvml_device, char *, unsigned);
    /* From here on a driver may lack what is asked for: then it is NULL, and not told. */
    int (*name)(nvml_device, char *, unsigned);
    int (*power_limit)(nvml_device, unsigned *);              /* mW */
    int (*power)(nvml_device, unsigned *);                    /* mW */
    int (*energy)(nvml_device, unsigned long long *);         /* mJ since the driver was loaded */
    int (*temperature)(nvml_device, int sensor, unsigned *);  /* degrees Celsius */
    int (*clock)(nvml_device, int which, unsigned *);         /* MHz */
    int (*clock_reasons)(nvml_device, unsigned long long *);
    int (*utilization)(nvml_device, struct nvml_utilization *);
    int (*memory)(nvml_device, struct nvml_memory *);
    const char *(*error_string)(int);
};

/* Opens the library and finds the functions. False: `error` says why, and `nvml` is not to be used. */
bool xpr_nvml_open(struct xpr_nvml *nvml, const char *library, char *error, size_t room);

/* NVML's words for a result, or its number where it has none. */
const char *xpr_nvml_words(const struct xpr_nvml *nvml, int result, char *text, size_t room);

enum { XPR_UUID_BYTES = 96, XPR_DEVICE_NAME_BYTES = 96, XPR_MAX_POWER_DEVICES = 64 };
#define XPR_NO_ORDINAL UINT32_MAX

struct xpr_nvml_device {
    nvml_device handle;
    uint32_t index;   /* NVML's: of the machine, by PCI bus */
    uint32_t ordinal; /* CUDA's: of the process; XPR_NO_ORDINAL where that is not certain */
    uint32_t limit_mw; /* UINT32_MAX: not told */
    bool lost;
    uint32_t unsupported; /* bits of what NVML says it does not support, by the calls of power.c */
    char uuid[XPR_UUID_BYTES], name[XPR_DEVICE_NAME_BYTES];
};

/* Keeps those of the machine's `count` devices, by index, that CUDA shows the process, in CUDA's order; returns how many.
 *
 * visible: CUDA_VISIBLE_DEVICES, NULL where it is not set. by_bus: CUDA counts devices by PCI bus as NVML does
 * (CUDA_DEVICE_ORDER); otherwise it puts fast ones first, and a number tells a device only where all have one name. Where it
 * cannot be known which are shown, all are kept without ordinals, and `why` (a constant) says so; else it is NULL. */
unsigned xpr_nvml_visible(struct xpr_nvml_device *devices, unsigned count, const char *visible, bool by_bus,
                          const char **why);

#endif
