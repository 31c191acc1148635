/* The power sampler: one thread that asks NVML every period what each device draws, how fast it runs and why not faster.
 *
 * NVML is opened, and its devices found, on the thread: both take long. Each look is a row per device (shard_format.h, POWER),
 * stamped half way through the call that reads its energy. A call that fails leaves its field untold and is counted; one that
 * a device does not support is not asked again; a device that is lost is asked no more. A call that never returns ends the
 * sampling, whose totals say in which call; the capture goes on and stops without it.
 *
 * The thread uses at most 1 % of a core, and 10 ms to begin with, besides what NVML takes to start: where calls cost more,
 * the next look is put off until it may, and that is counted. So it is never further beyond than one look and the one that is
 * taken at the stop. No signal reaches the thread, and the child of a fork has none. */
#ifndef XPROF_PY_DEVICE_POWER_H
#define XPROF_PY_DEVICE_POWER_H

#include <stdbool.h>
#include <stdint.h>

#include "device/nvml.h"
#include "xprof_py/shard_format.h"

enum { XPR_LIBRARY_BYTES = 1024, XPR_VISIBLE_BYTES = 4096 };

struct xpr_power_options {
    char library[XPR_LIBRARY_BYTES];
    bool visible_is_set;
    char visible[XPR_VISIBLE_BYTES]; /* CUDA_VISIBLE_DEVICES */
    bool by_bus;                     /* CUDA_DEVICE_ORDER=PCI_BUS_ID */
    int64_t period_ns;
    bool only_open; /* find the devices and end: whether there is anything to sample */
};

enum xpr_power_state { XPR_POWER_OPENING, XPR_POWER_SAMPLING, XPR_POWER_FAILED };

struct xpr_power_report {
    enum xpr_power_state state;
    char error[256]; /* XPR_POWER_FAILED: why */
    char note[160];  /* what is not known of the devices */
    char stuck[64];  /* the call that did not return by the stop */
    uint32_t count;
    struct xpr_nvml_device devices[XPR_MAX_POWER_DEVICES];
    struct xpr_power_totals_record totals; /* written, dropped: 0, the shard has them */
    uint64_t looks, postponed;
    uint64_t open_cpu_ns; /* of totals.cpu_ns: what NVML took to start */
    int64_t wall_ns;
};

/* Starts the thread. 0; EBUSY while one runs, one stuck in NVML included; else why there is no thread. */
int xpr_power_start(const struct xpr_power_options *options);

/* Waits at most timeout_ns until the devices are found, or why not is known. */
enum xpr_power_state xpr_power_wait(int64_t timeout_ns, struct xpr_power_report *report);

/* Tells the thread to take its last look and waits for it, at most timeout_ns. False: it has not ended. The report is that so
 * far then, and from now on nothing of it reaches a shard. Nothing ran: true, with an empty report. */
bool xpr_power_stop(int64_t timeout_ns, struct xpr_power_report *report);

#endif
