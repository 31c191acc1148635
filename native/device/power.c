#define _GNU_SOURCE
#include "device/power.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "recorder/clock.h"
#include "recorder/own_thread.h"
#include "recorder/power_rows.h"
#include "recorder/strings.h"

enum {
    STACK_BYTES = 256 << 10,
    SECOND = 1000000000,
    START_CPU_NS = 10000000,
    SHARE = 100, /* one part in so many of a core */
};

/* What is asked of a device: bits of xpr_nvml_device.unsupported. */
enum call { ENERGY, POWER, TEMPERATURE, SM_CLOCK, MEMORY_CLOCK, REASONS, UTILIZATION, MEMORY };
static const char *const CALL_NAMES[] = {
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetMemoryInfo",
};

struct run {
    struct xpr_power_options options;
    struct xpr_nvml nvml;
    struct xpr_power_report report; /* the thread's own; published under the lock */
    uint32_t uuids[XPR_MAX_POWER_DEVICES];
    int64_t began_ns, opened_ns;
    uint64_t capture; /* of power_rows.h */
};

static struct {
    pthread_mutex_t lock; /* never held across a call of NVML, nor while another lock is taken: fork takes them in any order */
    pthread_cond_t changed;
    bool running, stop, ended, abandoned;
    const char *calling; /* what the thread is in */
    struct xpr_power_report report;
    struct run *run;
} sampler = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int64_t monotonic_ns(void) { return xpr_clock_read_ns(CLOCK_MONOTONIC); }
static uint64_t cpu_ns(void) { return (uint64_t)xpr_clock_read_ns(CLOCK_THREAD_CPUTIME_ID); }

static void publish(struct run *r) {
    r->report.totals.cpu_ns = cpu_ns();
    r->report.wall_ns = monotonic_ns() - r->began_ns;
    pthread_mutex_lock(&sampler.lock);
    sampler.report = r->report;
    pthread_cond_broadcast(&sampler.changed);
    pthread_mutex_unlock(&sampler.lock);
}

/* Says what the thread calls next; false once nobody waits for the answer. */
static bool enter(const char *name) {
    pthread_mutex_lock(&sampler.lock);
    sampler.calling = name;
    bool go_on = !sampler.abandoned;
    pthread_mutex_unlock(&sampler.lock);
    return go_on;
}

/* --- the devices --------------------------------------------------------------------------------------------------- */

static bool fail(struct run *r, const char *what, int result) {
    char words[128];
    snprintf(r->report.error, sizeof r->report.error, "%s: %s", what, xpr_nvml_words(&r->nvml, result, words, sizeof words));
    return false;
}

static void describe(struct run *r, struct xpr_nvml_device *d) {
    if (r->nvml.uuid(d->handle, d->uuid, sizeof d->uuid) != NVML_SUCCESS) d->uuid[0] = 0;
    if (!r->nvml.name || r->nvml.name(d->handle, d->name, sizeof d->name) != NVML_SUCCESS) d->name[0] = 0;
    d->uuid[sizeof d->uuid - 1] = d->name[sizeof d->name - 1] = 0;
    if (!r->nvml.power_limit || r->nvml.power_limit(d->handle, &d->limit_mw) != NVML_SUCCESS) d->limit_mw = UINT32_MAX;
    const void *functions[] = {&r->nvml.energy, &r->nvml.power, &r->nvml.temperature, &r->nvml.clock,
                               &r->nvml.clock,  &r->nvml.clock_reasons, &r->nvml.utilization, &r->nvml.memory};
    for (unsigned call = ENERGY; call <= MEMORY; call++) {
        void *function;
        memcpy(&function, functions[call], sizeof function);
        if (!function) d->unsupported |= 1u << call;
    }
}

static bool find_devices(struct run *r) {
    unsigned count = 0;
    if (!enter("nvmlDeviceGetCount_v2")) return false;
    int result = r->nvml.count(&count);
    if (result != NVML_SUCCESS) return fail(r, "nvmlDeviceGetCount_v2", result);
    struct xpr_nvml_device *devices = r->report.devices;
    unsigned n = 0;
    if (count > XPR_MAX_POWER_DEVICES) count = XPR_MAX_POWER_DEVICES;
    for (unsigned i = 0; i < count; i++) {
        struct xpr_nvml_device *d = &devices[n];
        memset(d, 0, sizeof *d);
        d->index = i;
        if (!enter("nvmlDeviceGetHandleByIndex_v2")) return false;
        result = r->nvml.by_index(i, &d->handle);
        if (result != NVML_SUCCESS) {
            /* Lost, or not ours to see: CUDA does not count it either. */
            r->report.totals.failed_calls++;
            continue;
        }
        if (!enter("nvmlDeviceGetUUID")) return false;
        describe(r, d);
        n++;
    }
    if (!n) {
        snprintf(r->report.error, sizeof r->report.error, "no device can be asked, of %u", count);
        return false;
    }
    const char *why;
    const struct xpr_power_options *o = &r->options;
    r->report.count = xpr_nvml_visible(devices, n, o->visible_is_set ? o->visible : NULL, o->by_bus, &why);
    if (why) snprintf(r->report.note, sizeof r->report.note, "%s", why);
    if (r->report.count) return true;
    snprintf(r->report.error, sizeof r->report.error, "CUDA_VISIBLE_DEVICES=%.80s shows no device", o->visible);
    return false;
}

static bool open_nvml(struct run *r) {
    if (!enter("dlopen") || !xpr_nvml_open(&r->nvml, r->options.library, r->report.error, sizeof r->report.error)) return false;
    if (!enter("nvmlInit_v2")) return false;
    int result = r->nvml.init();
    if (result != NVML_SUCCESS) return fail(r, "nvmlInit_v2", result);
    if (find_devices(r)) return true;
    r->nvml.shutdown();
    return false;
}

/* --- one look ------------------------------------------------------------------------------------------------------ */

/* Whether `call` is to be made of the device; settle() takes its result. */
static bool wants(const struct xpr_nvml_device *d, enum call call) {
    return !d->lost && !(d->unsupported & 1u << call) && enter(CALL_NAMES[call]);
}

static bool settle(struct run *r, struct xpr_nvml_device *d, enum call call, int result) {
    if (result == NVML_SUCCESS) return true;
    if (result == NVML_NOT_SUPPORTED) {
        d->unsupported |= 1u << call;
        return false;
    }
    r->report.totals.failed_calls++;
    if (result == NVML_GPU_IS_LOST) d->lost = true;
    return false;
}

static void look_at(struct run *r, struct xpr_nvml_device *d, uint32_t uuid) {
    const struct xpr_nvml *nvml = &r->nvml;
    struct xpr_power_record row;
    memset(&row, 0xff, sizeof row);
    row.device = d->index;
    row.uuid = uuid;
    unsigned value;
    unsigned long long wide;
    int64_t before_ns = xpr_clock_read_ns(CLOCK_REALTIME), after_ns = before_ns;
    if (wants(d, ENERGY)) {
        if (settle(r, d, ENERGY, nvml->energy(d->handle, &wide))) row.energy_mj = wide;
        after_ns = xpr_clock_read_ns(CLOCK_REALTIME);
    }
    if (wants(d, POWER)) {
        if (settle(r, d, POWER, nvml->power(d->handle, &value))) row.power_mw = value;
        if (row.energy_mj == UINT64_MAX) after_ns = xpr_clock_read_ns(CLOCK_REALTIME);
    }
    row.at_ns = before_ns + (after_ns - before_ns) / 2;
    if (wants(d, SM_CLOCK) && settle(r, d, SM_CLOCK, nvml->clock(d->handle, NVML_CLOCK_SM, &value))) row.sm_clock_mhz = value;
    if (wants(d, REASONS) && settle(r, d, REASONS, nvml->clock_reasons(d->handle, &wide))) row.clock_reasons = wide;
    if (wants(d, TEMPERATURE) && settle(r, d, TEMPERATURE, nvml->temperature(d->handle, NVML_TEMPERATURE_GPU, &value)))
        row.temperature_c = value;
    if (wants(d, MEMORY_CLOCK) && settle(r, d, MEMORY_CLOCK, nvml->clock(d->handle, NVML_CLOCK_MEM, &value)))
        row.memory_clock_mhz = value;
    struct nvml_utilization busy;
    if (wants(d, UTILIZATION) && settle(r, d, UTILIZATION, nvml->utilization(d->handle, &busy))) {
        row.busy_percent = busy.gpu;
        row.memory_busy_percent = busy.memory;
    }
    struct nvml_memory memory;
    if (wants(d, MEMORY) && settle(r, d, MEMORY, nvml->memory(d->handle, &memory))) row.memory_used_bytes = memory.used;
    bool says_anything = row.energy_mj != UINT64_MAX || row.power_mw != UINT32_MAX || row.sm_clock_mhz != UINT32_MAX ||
                         row.temperature_c != UINT32_MAX || row.memory_used_bytes != UINT64_MAX;
    if (says_anything && enter(NULL)) xpr_add_power_row(r->capture, &row);
}

static void look(struct run *r) {
    for (uint32_t i = 0; i < r->report.count; i++)
        if (!r->report.devices[i].lost) look_at(r, &r->report.devices[i], r->uuids[i]);
    enter(NULL);
    r->report.looks++;
}

/* Waits for the next look. False: it is the stop. */
static bool wait_for_look(struct run *r, int64_t *next_ns) {
    int64_t now_ns = monotonic_ns();
    *next_ns += r->options.period_ns;
    if (*next_ns < now_ns) *next_ns = now_ns;
    int64_t used_ns = (int64_t)(r->report.totals.cpu_ns - r->report.open_cpu_ns) - START_CPU_NS;
    int64_t affordable_ns = r->opened_ns + used_ns * SHARE;
    if (affordable_ns > *next_ns) {
        *next_ns = affordable_ns;
        r->report.postponed++;
    }
    struct timespec until = {*next_ns / SECOND, *next_ns % SECOND};
    pthread_mutex_lock(&sampler.lock);
    while (!sampler.stop)
        if (pthread_cond_timedwait(&sampler.changed, &sampler.lock, &until) == ETIMEDOUT) break;
    bool go_on = !sampler.stop;
    pthread_mutex_unlock(&sampler.lock);
    return go_on;
}

static void sample(struct run *r) {
    for (uint32_t i = 0; i < r->report.count; i++) {
        const char *uuid = r->report.devices[i].uuid;
        r->uuids[i] = uuid[0] && enter(NULL) ? xpr_intern(uuid, strlen(uuid), XPR_USE_TEXT, NULL) : XPR_NO_STRING;
    }
    int64_t next_ns = r->opened_ns;
    do {
        look(r);
        publish(r);
    } while (wait_for_look(r, &next_ns));
    look(r);
}

static void *run_sampler(void *argument) {
    struct run *r = argument;
    pthread_setname_np(pthread_self(), "xprof_py.power");
    bool opened = open_nvml(r);
    enter(NULL);
    r->report.state = opened ? XPR_POWER_SAMPLING : XPR_POWER_FAILED;
    r->report.open_cpu_ns = cpu_ns();
    r->opened_ns = monotonic_ns();
    publish(r);
    if (opened && !r->options.only_open) sample(r);
    if (opened && enter("nvmlShutdown")) r->nvml.shutdown();
    publish(r);
    if (enter(NULL) && opened) xpr_set_power_totals(r->capture, &r->report.totals);
    pthread_mutex_lock(&sampler.lock);
    sampler.ended = true;
    sampler.run = NULL;
    free(r);
    pthread_cond_broadcast(&sampler.changed);
    pthread_mutex_unlock(&sampler.lock);
    return NULL;
}

/* --- start, stop, fork -------------------------------------------------------------------------------------------- */

static void init_lock(void) {
    sampler.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    xpr_init_condition(&sampler.changed);
}

static void before_fork(void) { pthread_mutex_lock(&sampler.lock); }
static void after_fork_parent(void) { pthread_mutex_unlock(&sampler.lock); }

static void after_fork_child(void) {
    free(sampler.run);
    sampler.run = NULL;
    sampler.calling = NULL;
    sampler.running = sampler.stop = sampler.ended = sampler.abandoned = false;
    init_lock();
}

static int once_result;

static void install_once(void) {
    init_lock();
    once_result = pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

int xpr_power_start(const struct xpr_power_options *options) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_once);
    if (once_result) return once_result;
    struct run *r = calloc(1, sizeof *r);
    if (!r) return ENOMEM;
    r->options = *options;
    r->began_ns = monotonic_ns();
    r->capture = xpr_power_rows_capture();
    pthread_mutex_lock(&sampler.lock);
    int error = sampler.running && !sampler.ended ? EBUSY : 0;
    if (!error) {
        sampler.stop = sampler.ended = sampler.abandoned = false;
        memset(&sampler.report, 0, sizeof sampler.report);
        error = xpr_start_own_thread(run_sampler, r, STACK_BYTES);
        sampler.running = !error;
        if (!error) sampler.run = r;
    }
    pthread_mutex_unlock(&sampler.lock);
    if (error) free(r);
    return error;
}

static struct timespec after(int64_t timeout_ns) {
    int64_t until_ns = monotonic_ns() + timeout_ns;
    return (struct timespec){until_ns / SECOND, until_ns % SECOND};
}

enum xpr_power_state xpr_power_wait(int64_t timeout_ns, struct xpr_power_report *report) {
    struct timespec until = after(timeout_ns);
    pthread_mutex_lock(&sampler.lock);
    while (sampler.running && !sampler.ended && sampler.report.state == XPR_POWER_OPENING)
        if (pthread_cond_timedwait(&sampler.changed, &sampler.lock, &until) == ETIMEDOUT) break;
    *report = sampler.report;
    pthread_mutex_unlock(&sampler.lock);
    return report->state;
}

bool xpr_power_stop(int64_t timeout_ns, struct xpr_power_report *report) {
    struct timespec until = after(timeout_ns);
    memset(report, 0, sizeof *report);
    pthread_mutex_lock(&sampler.lock);
    if (!sampler.running || sampler.abandoned) {
        pthread_mutex_unlock(&sampler.lock);
        return true;
    }
    sampler.stop = true;
    pthread_cond_broadcast(&sampler.changed);
    while (!sampler.ended)
        if (pthread_cond_timedwait(&sampler.changed, &sampler.lock, &until) == ETIMEDOUT) break;
    bool ended = sampler.ended;
    uint64_t capture = ended ? 0 : sampler.run->capture;
    *report = sampler.report;
    if (ended) {
        sampler.running = false;
    } else {
        sampler.abandoned = true;
        snprintf(report->stuck, sizeof report->stuck, "%s", sampler.calling ? sampler.calling : "no call of NVML");
        report->totals.failed_calls++;
    }
    pthread_mutex_unlock(&sampler.lock);
    if (!ended && report->state == XPR_POWER_SAMPLING) xpr_set_power_totals(capture, &report->totals);
    return ended;
}
