#include "recorder/clock.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

enum { RATE_NS = 200000 };

uint32_t xpr_clock_kind = XPR_CLOCK_MONOTONIC;
double xpr_clock_ns_per_tick = 1;

#if defined(__x86_64__)
/* Reads the beginning of a file; 0 where it cannot be read. */
static size_t read_beginning(const char *path, char *text, size_t room) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    size_t used = 0;
    while (used < room - 1) {
        ssize_t got = read(fd, text + used, room - 1 - used);
        if (got <= 0) break;
        used += (size_t)got;
    }
    close(fd);
    text[used] = 0;
    return used;
}

static bool has_flag(const char *line, size_t bytes, const char *flag) {
    size_t n = strlen(flag);
    for (size_t i = 0; i + n < bytes; i++)
        if (line[i] == ' ' && memcmp(line + i + 1, flag, n) == 0 && (i + 1 + n == bytes || line[i + 1 + n] == ' '))
            return true;
    return false;
}

/* The counter is only as good as the kernel thinks: it marks one that stops, changes its rate or drifts between sockets. */
static bool counter_is_trusted(void) {
    char text[8192];
    if (!read_beginning("/sys/devices/system/clocksource/clocksource0/current_clocksource", text, sizeof text)) return false;
    if (strcmp(text, "tsc\n") != 0) return false;
    if (!read_beginning("/proc/cpuinfo", text, sizeof text)) return false;
    const char *flags = strstr(text, "\nflags");
    if (!flags) return false;
    const char *end = strchr(flags + 1, '\n');
    size_t bytes = end ? (size_t)(end - flags) : strlen(flags);
    return has_flag(flags, bytes, "constant_tsc") && has_flag(flags, bytes, "nonstop_tsc");
}
#endif

static void choose(void) {
#if defined(__x86_64__)
    if (counter_is_trusted()) xpr_clock_kind = XPR_CLOCK_TSC;
#elif defined(__aarch64__)
    /* The architecture guarantees a constant rate and one count for all cores. */
    xpr_clock_kind = XPR_CLOCK_CNTVCT;
#endif
    if (xpr_clock_kind == XPR_CLOCK_MONOTONIC) return;
    struct xpr_clock_record first = xpr_clock_sample(), last;
    do
        last = xpr_clock_sample();
    while (last.monotonic_ns - first.monotonic_ns < RATE_NS);
    xpr_clock_ns_per_tick = (double)(last.monotonic_ns - first.monotonic_ns) / (double)(last.tick - first.tick);
}

void xpr_clock_choose(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose);
}

struct xpr_clock_record xpr_clock_sample(void) {
    struct xpr_clock_record best = {.width_ticks = UINT64_MAX};
    for (int i = 0; i < 8; i++) {
        uint64_t before = xpr_clock_now();
        int64_t monotonic_ns = xpr_clock_read_ns(CLOCK_MONOTONIC);
        int64_t realtime_ns = xpr_clock_read_ns(CLOCK_REALTIME);
        uint64_t width = xpr_clock_now() - before;
        if (width < best.width_ticks) {
            best.tick = before + width / 2;
            best.monotonic_ns = monotonic_ns;
            best.realtime_ns = realtime_ns;
            best.width_ticks = width;
        }
    }
    return best;
}
