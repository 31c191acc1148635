/* What one pair of trace.h costs beside two bare reads of the clock; CPU nanoseconds of each, one line per round. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <time.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "xprof_py/trace.h"

XPROF_PY_SITE(site, "region");

static double cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static uint64_t bare(void) {
#if defined(__x86_64__)
    return __rdtsc();
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_nsec;
#endif
}

/* CPU nanoseconds of one pair, and of two bare reads, in the mean of n. */
__attribute__((visibility("default"))) double pair_ns(long n) {
    double began = cpu_ns();
    for (long i = 0; i < n; i++) {
        xprof_py_span span = xprof_py_begin_at(&site);
        __asm__ volatile("" ::: "memory");
        xprof_py_end(&site, span);
    }
    return (cpu_ns() - began) / (double)n;
}

__attribute__((visibility("default"))) double bare_ns(long n) {
    uint64_t sum = 0;
    double began = cpu_ns();
    for (long i = 0; i < n; i++) {
        sum += bare();
        __asm__ volatile("" ::: "memory");
        sum += bare();
    }
    double spent = cpu_ns() - began;
    __asm__ volatile("" ::"r"(sum));
    return spent / (double)n;
}

/* Two reads of the thread's CPU clock, which every recorded step makes: system calls. */
__attribute__((visibility("default"))) double cpu_clock_ns(long n) {
    double began = cpu_ns(), sum = 0;
    for (long i = 0; i < 2 * n; i++) sum += cpu_ns();
    double spent = cpu_ns() - began;
    __asm__ volatile("" ::"m"(sum));
    return spent / (double)n;
}

/* The same pairs on several threads at once: CPU nanoseconds of one pair, in the mean of all. */
struct share {
    long n;
    double ns;
};

static void *in_thread(void *share) {
    struct share *s = share;
    s->ns = pair_ns(s->n);
    return NULL;
}

__attribute__((visibility("default"))) double threads_pair_ns(int threads, long n) {
    pthread_t started[8];
    struct share shares[8];
    if (threads > 8) threads = 8;
    double sum = 0;
    for (int i = 0; i < threads; i++) {
        shares[i].n = n;
        pthread_create(&started[i], NULL, in_thread, &shares[i]);
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(started[i], NULL);
        sum += shares[i].ns;
    }
    return sum / threads;
}
