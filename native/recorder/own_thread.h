/* Threads of ours inside somebody else's program. */
#ifndef XPROF_PY_RECORDER_OWN_THREAD_H
#define XPROF_PY_RECORDER_OWN_THREAD_H

#include <stddef.h>

/* Starts a detached thread that no signal of the program is delivered to. 0, or an errno. */
int xpr_start_own_thread(void *(*run)(void *), void *argument, size_t stack_bytes);

#endif
