#define _GNU_SOURCE
#include "recorder/own_thread.h"

#include <signal.h>
#include <time.h>

int xpr_start_own_thread(void *(*run)(void *), void *argument, size_t stack_bytes) {
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error) return error;
    pthread_attr_setstacksize(&attributes, stack_bytes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigset_t every, before;
    sigfillset(&every);
    /* The new thread inherits the mask: the program's signal handlers must never run on it. */
    pthread_sigmask(SIG_SETMASK, &every, &before);
    pthread_t thread;
    error = pthread_create(&thread, &attributes, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

void xpr_init_condition(pthread_cond_t *condition) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}
