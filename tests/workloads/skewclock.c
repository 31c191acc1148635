/* LD_PRELOAD shim: gives one process a CLOCK_REALTIME with a known error, so that the truth is exact.
 *
 *   shown = real + OFF_NS + PPM * 1e-6 * (real - T0_NS) [+ STEP_NS once real >= STEP_AT_NS]
 *
 * The other clocks stay real. Environment: SKEW_OFF_NS SKEW_PPM SKEW_T0_NS SKEW_STEP_NS SKEW_STEP_AT_NS.
 * Build: cc -O2 -shared -fPIC -o skewclock.so skewclock.c -ldl */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int64_t off_ns, t0_ns, step_ns;
int64_t skewclock_step_at_ns; /* a program may set it as it runs */
static double ppm;

static int64_t whole(const char *name) {
    const char *value = getenv(name);
    return value ? atoll(value) : 0;
}

__attribute__((constructor)) static void init(void) {
    const char *value = getenv("SKEW_PPM");
    real_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    off_ns = whole("SKEW_OFF_NS");
    t0_ns = whole("SKEW_T0_NS");
    step_ns = whole("SKEW_STEP_NS");
    skewclock_step_at_ns = whole("SKEW_STEP_AT_NS");
    ppm = value ? atof(value) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    if (!real_clock_gettime) init();
    int result = real_clock_gettime(clock, at);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t real_ns = (int64_t)at->tv_sec * 1000000000 + at->tv_nsec;
        int64_t shown_ns = real_ns + off_ns + (int64_t)(ppm * 1e-6 * (double)(real_ns - t0_ns));
        if (skewclock_step_at_ns && real_ns >= skewclock_step_at_ns) shown_ns += step_ns;
        at->tv_sec = shown_ns / 1000000000;
        at->tv_nsec = shown_ns % 1000000000;
    }
    return result;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return result;
}

time_t time(time_t *place) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (place) *place = now.tv_sec;
    return now.tv_sec;
}
