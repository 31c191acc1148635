/* A libnvidia-ml for machines without one: its functions by their real names and arguments, answering what a script says.
 *
 * The script is FAKE_NVML, read by nvmlInit, or what fake_nvml_script was given: words between spaces.
 *   devices=2            how many; each draws power=MW (300000) all the time, and its energy is that integral
 *   fail=CALL:CODE       CALL (energy, power, temperature, clock, reasons, utilization, memory, init, count) gives CODE
 *   hang=CALL:N          its N-th call (from 0) never returns, unless fake_nvml_release is called
 *   lost=DEVICE:N        from the N-th look at its energy on every call for DEVICE gives GPU_IS_LOST
 *   burn_us=N            reading power takes N us of CPU
 *   names=differ         devices of different models
 *   uuids=cupti          those of the devices of native/tests/fakes/cupti.c
 * FAKE_OLD: a driver before 535 and a GPU before Volta: no energy, reasons by their older name. FAKE_BROKEN: no count. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { MOST = 16 };

static char script[1024];
static int64_t began_ns;
static unsigned device_count;
static atomic_uint calls[16];
static atomic_uint looks[MOST];
static atomic_bool released;
static char devices[MOST];

static int64_t now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static const char *word(const char *key) {
    size_t length = strlen(key);
    for (const char *at = script; (at = strstr(at, key)); at++)
        if ((at == script || at[-1] == ' ') && at[length] == '=') return at + length + 1;
    return NULL;
}

static unsigned long number(const char *key, unsigned long otherwise) {
    const char *at = word(key);
    return at ? strtoul(at, NULL, 10) : otherwise;
}

/* key=CALL:N of the script, for this call; -1: not in it. */
static long of_call(const char *key, const char *call) {
    const char *at = word(key);
    size_t length = strlen(call);
    return at && strncmp(at, call, length) == 0 && at[length] == ':' ? strtol(at + length + 1, NULL, 10) : -1;
}

static int answer(int place, const char *call, const void *device) {
    unsigned n = atomic_fetch_add(&calls[place], 1);
    if (of_call("hang", call) == (long)n)
        while (!atomic_load(&released)) usleep(1000);
    if (device) {
        unsigned index = (unsigned)((const char *)device - devices);
        const char *lost = word("lost");
        if (strcmp(call, "energy") == 0) atomic_fetch_add(&looks[index], 1);
        if (lost && strtoul(lost, NULL, 10) == index) {
            const char *from = strchr(lost, ':');
            if (from && atomic_load(&looks[index]) > strtoul(from + 1, NULL, 10)) return 15;
        }
    }
    long code = of_call("fail", call);
    return code < 0 ? 0 : (int)code;
}

EXPORT void fake_nvml_script(const char *text) { snprintf(script, sizeof script, "%s", text); }
EXPORT void fake_nvml_release(void) { atomic_store(&released, true); }

EXPORT int nvmlInit_v2(void) {
    const char *said = getenv("FAKE_NVML");
    if (said) fake_nvml_script(said);
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) atomic_store(&calls[i], 0);
    for (unsigned i = 0; i < MOST; i++) atomic_store(&looks[i], 0);
    atomic_store(&released, false);
    began_ns = now_ns(CLOCK_REALTIME);
    device_count = (unsigned)number("devices", 1);
    return answer(0, "init", NULL);
}
EXPORT int nvmlShutdown(void) { return 0; }
EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned room) {
    snprintf(text, room, "580.1");
    return 0;
}
EXPORT const char *nvmlErrorString(int result) { return result == 9 ? "Driver Not Loaded" : result == 999 ? "Unknown Error" : "other"; }

#ifndef FAKE_BROKEN
EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = device_count;
    return answer(1, "count", NULL);
}
#endif
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index >= device_count || index >= MOST) return 2;
    *device = &devices[index];
    return 0;
}
EXPORT int nvmlDeviceGetUUID(void *device, char *text, unsigned room) {
    if (word("uuids")) {
        unsigned first = 16 * (unsigned)((char *)device - devices), used = (unsigned)snprintf(text, room, "GPU-");
        for (unsigned i = 0; i < 16; i++)
            used += (unsigned)snprintf(text + used, room - used, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", first + i);
        return 0;
    }
    snprintf(text, room, "GPU-%08x-0000-0000-0000-00000000000%d", 0xabc0u + (unsigned)((char *)device - devices), 1);
    return 0;
}
EXPORT int nvmlDeviceGetName(void *device, char *text, unsigned room) {
    int index = (int)((char *)device - devices);
    snprintf(text, room, "Fake H200 %d", word("names") ? index : 0);
    return 0;
}
EXPORT int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *mw) {
    (void)device;
    *mw = 700000;
    return 0;
}
EXPORT int nvmlDeviceGetPowerUsage(void *device, unsigned *mw) {
    int64_t until_ns = now_ns(CLOCK_THREAD_CPUTIME_ID) + (int64_t)number("burn_us", 0) * 1000;
    while (now_ns(CLOCK_THREAD_CPUTIME_ID) < until_ns) continue;
    *mw = (unsigned)number("power", 300000);
    return answer(2, "power", device);
}
#ifndef FAKE_OLD
EXPORT int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *mj) {
    int64_t ns = now_ns(CLOCK_REALTIME) - began_ns;
    *mj = 5000000ULL + (unsigned long long)ns / 1000000 * number("power", 300000) / 1000;
    return answer(3, "energy", device);
}
EXPORT int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *bits) {
    *bits = 0x4;
    return answer(6, "reasons", device);
}
#else
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *bits) {
    *bits = 0x20;
    return answer(6, "reasons", device);
}
#endif
EXPORT int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
    *celsius = sensor == 0 ? 61 : 0;
    return answer(4, "temperature", device);
}
EXPORT int nvmlDeviceGetClockInfo(void *device, int which, unsigned *mhz) {
    *mhz = which == 1 ? 1980 : which == 2 ? 3201 : 0;
    return answer(5, "clock", device);
}
struct utilization {
    unsigned gpu, memory;
};
EXPORT int nvmlDeviceGetUtilizationRates(void *device, struct utilization *busy) {
    *busy = (struct utilization){97, 42};
    return answer(7, "utilization", device);
}
struct memory {
    unsigned long long total, free, used;
};
EXPORT int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {
    *memory = (struct memory){141ULL << 30, 41ULL << 30, 100ULL << 30};
    return answer(8, "memory", device);
}
