/* The buffers that CUPTI writes its records to, between its threads and ours.
 *
 * Ownership: a buffer that was given belongs to CUPTI until it comes back, also where that is after the session's end. Threads:
 * every function locks. Memory is bounded: past the limit no buffer is given, which is counted, and CUPTI drops records, which
 * it counts. */
#ifndef XPROF_PY_DEVICE_CUPTI_BUFFERS_H
#define XPROF_PY_DEVICE_CUPTI_BUFFERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* For a session: buffers of so many bytes, at most `most` at once. */
void xpr_cupti_buffers_open(uint32_t bytes, uint32_t most);
/* No more are given; those that CUPTI has are freed as they come back. */
void xpr_cupti_buffers_close(void);

/* A buffer for CUPTI, aligned to 64 bytes, and its size; NULL and 0 past the limit. */
uint8_t *xpr_cupti_buffer_give(size_t *bytes);
/* CUPTI gives it back with `valid` bytes of records. Whether there is something to parse now. */
bool xpr_cupti_buffer_back(uint8_t *buffer, size_t valid);

/* The next buffer to parse, in the order in which they came back, NULL: none. Then xpr_cupti_buffer_free. */
uint8_t *xpr_cupti_buffer_full(size_t *valid);
void xpr_cupti_buffer_free(uint8_t *buffer);
bool xpr_cupti_buffers_waiting(void);

/* How often no buffer was given in this session. */
uint64_t xpr_cupti_buffers_refused(void);

/* For fork: the lock held across it. */
void xpr_cupti_buffers_lock(void);
void xpr_cupti_buffers_unlock(void);
void xpr_cupti_buffers_after_fork_child(void);

#endif
