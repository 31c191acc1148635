/* Threads of ours inside somebody else's program. */
#ifndef XPROF_PY_RECORDER_OWN_THREAD_H
#define XPROF_PY_RECORDER_OWN_THREAD_H

#include <pthread.h>
#include <stddef.h>

/* Starts a detached thread that no signal of the program is delivered to. 0, or an errno. */
int xpr_start_own_thread(void *(*run)(void *), void *argument, size_t stack_bytes);

/* A condition that waits by CLOCK_MONOTONIC: a stepped clock must not stretch a timeout. */
void xpr_init_condition(pthread_cond_t *condition);

#endif
