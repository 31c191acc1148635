/* Which sites of trace.h are wanted: what xprof_py.set_filter said, for threads that have no GIL.
 *
 * Threads: any may ask; the answer is kept by the asker, since it takes a lock. The number says when to ask anew. */
#ifndef XPROF_PY_RECORDER_FILTER_H
#define XPROF_PY_RECORDER_FILTER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

extern _Atomic uint32_t xpr_filter_now;

/* Of the filter in force, below 2^31; 0: there is none. */
static inline uint32_t xpr_filter_number(void) { return atomic_load_explicit(&xpr_filter_now, memory_order_relaxed); }

/* Puts a filter in force. level: NULL, no limit. categories: `count` texts, NULL: no limit; copied. False: no memory, and
 * the filter is the one from before. Both NULL take it away. */
bool xpr_filter_set(const int64_t *level, const char *const *categories, size_t count);

/* Twice the filter's number, and one more if what has this level and category (NULL: none) passes. */
uint32_t xpr_filter_ask(const int32_t *level, const char *category);

void xpr_filter_lock(void);
void xpr_filter_unlock(void);
void xpr_filter_after_fork_child(void);

#endif
