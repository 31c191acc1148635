#include "device/nvml.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* POSIX lets dlsym's pointer be a function's; ISO C wants the detour. */
static bool find(void *library, const char *name, void *function) {
    void *found = dlsym(library, name);
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

bool xpr_nvml_open(struct xpr_nvml *nvml, const char *library, char *error, size_t room) {
    memset(nvml, 0, sizeof *nvml);
    void *opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!opened) {
        const char *why = dlerror();
        snprintf(error, room, "%s", why ? why : library);
        return false;
    }
    const struct {
        const char *name;
        void *place;
    } needed[] = {{"nvmlInit_v2", &nvml->init},
                  {"nvmlShutdown", &nvml->shutdown},
                  {"nvmlDeviceGetCount_v2", &nvml->count},
                  {"nvmlDeviceGetHandleByIndex_v2", &nvml->by_index},
                  {"nvmlDeviceGetUUID", &nvml->uuid}};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        if (find(opened, needed[i].name, needed[i].place)) continue;
        snprintf(error, room, "%s has no %s", library, needed[i].name);
        return false;
    }
    find(opened, "nvmlDeviceGetName", &nvml->name);
    find(opened, "nvmlDeviceGetEnforcedPowerLimit", &nvml->power_limit);
    find(opened, "nvmlDeviceGetPowerUsage", &nvml->power);
    find(opened, "nvmlDeviceGetTotalEnergyConsumption", &nvml->energy);
    find(opened, "nvmlDeviceGetTemperature", &nvml->temperature);
    find(opened, "nvmlDeviceGetClockInfo", &nvml->clock);
    /* Renamed with driver 535; the bits are the same. */
    if (!find(opened, "nvmlDeviceGetCurrentClocksEventReasons", &nvml->clock_reasons))
        find(opened, "nvmlDeviceGetCurrentClocksThrottleReasons", &nvml->clock_reasons);
    find(opened, "nvmlDeviceGetUtilizationRates", &nvml->utilization);
    find(opened, "nvmlDeviceGetMemoryInfo", &nvml->memory);
    find(opened, "nvmlErrorString", &nvml->error_string);
    return true;
}

const char *xpr_nvml_words(const struct xpr_nvml *nvml, int result, char *text, size_t room) {
    const char *words = nvml->error_string ? nvml->error_string(result) : NULL;
    if (words)
        snprintf(text, room, "%s", words);
    else
        snprintf(text, room, "NVML error %d", result);
    return text;
}

static bool all_alike(const struct xpr_nvml_device *devices, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        if (!devices[i].name[0] || strcmp(devices[i].name, devices[0].name) != 0) return false;
    return true;
}

/* The device that a word of CUDA_VISIBLE_DEVICES tells; `count`: none, where CUDA ends the list. */
static unsigned told(const struct xpr_nvml_device *devices, unsigned count, const char *word, size_t length) {
    if (length > 4 && strncmp(word, "GPU-", 4) == 0) {
        unsigned found = count, matches = 0;
        for (unsigned i = 0; i < count; i++)
            if (strncmp(devices[i].uuid, word, length) == 0) {
                found = i;
                matches++;
            }
        return matches == 1 ? found : count;
    }
    char *end;
    unsigned long number = strtoul(word, &end, 10);
    return isdigit((unsigned char)*word) && end == word + length && number < count ? (unsigned)number : count;
}

unsigned xpr_nvml_visible(struct xpr_nvml_device *devices, unsigned count, const char *visible, bool by_bus,
                          const char **why) {
    bool numbers_tell = by_bus || all_alike(devices, count);
    *why = NULL;
    for (unsigned i = 0; i < count; i++) devices[i].ordinal = numbers_tell ? i : XPR_NO_ORDINAL;
    if (!visible) {
        if (!numbers_tell) *why = "CUDA puts fast devices first, and these differ: which is which is not known";
        return count;
    }
    struct xpr_nvml_device kept[XPR_MAX_POWER_DEVICES];
    unsigned n = 0;
    for (const char *at = visible; *at;) {
        at += strspn(at, " \t");
        size_t length = strcspn(at, ",");
        const char *next = at + length + (at[length] == ',');
        while (length && isspace((unsigned char)at[length - 1])) length--;
        if (strncmp(at, "MIG-", 4) == 0) {
            *why = "CUDA_VISIBLE_DEVICES names a part of a device (MIG): all devices are sampled";
        } else if (isdigit((unsigned char)*at) && !numbers_tell) {
            *why = "CUDA_VISIBLE_DEVICES counts devices by their speed, and these differ: all are sampled";
        }
        if (*why) {
            for (unsigned i = 0; i < count; i++) devices[i].ordinal = XPR_NO_ORDINAL;
            return count;
        }
        unsigned found = told(devices, count, at, length);
        if (found == count || n == XPR_MAX_POWER_DEVICES) break;
        kept[n] = devices[found];
        kept[n].ordinal = n;
        n++;
        at = next;
    }
    if (n) memcpy(devices, kept, n * sizeof *kept);
    return n;
}
