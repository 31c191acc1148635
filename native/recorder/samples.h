/* Sampled stacks of one capture: interned frames and stacks, and the samples on their way to the shard.
 *
 * Ownership: the table copies what it is given. Threads: every function locks, nothing blocks on I/O under the lock; one
 * sampler adds, the drainer takes. Cost: about 20 ns for a frame or a stack that is known, plus 1 ns per frame of a stack.
 * Memory is bounded: past a limit a frame or stack becomes 0 and the use is counted; samples that nobody takes are dropped. */
#ifndef XPROF_PY_RECORDER_SAMPLES_H
#define XPROF_PY_RECORDER_SAMPLES_H

#include <stdint.h>

#include "recorder/strings.h"
#include "xprof_py/shard_format.h"

enum {
    XPR_MAX_FRAMES = 16384,
    XPR_MAX_STACKS = 16384,
    XPR_MAX_STACK_DEPTH = 96, /* frames of one stack; the outermost of a deeper one are left out */
    XPR_MAX_WAITING_SAMPLES = 16384,
};

struct xpr_sample_counts {
    uint64_t added, dropped, more_frames, more_stacks;
};

/* Forgets the capture before. */
void xpr_samples_reset(void);
/* Opens the table, unless it is open. 0, or ENOMEM: then no samples are taken. */
int xpr_samples_open(void);
/* Closes the table and gives its memory back, its counts kept; what is added afterwards is ignored. */
void xpr_samples_clear(void);

/* Ids, 0 past the limits, without memory or while the table is closed. */
uint32_t xpr_intern_frame(uint32_t file, uint32_t function, uint32_t line);
uint32_t xpr_intern_stack(const uint32_t *frames, uint32_t count);

void xpr_add_sample(const struct xpr_sample_record *sample);

struct xpr_sample_counts xpr_samples_counts(void);

/* Moves the records added since the last call into the three runs (the caller frees them). */
void xpr_samples_take(struct xpr_bytes *frames, struct xpr_bytes *stacks, struct xpr_bytes *samples);

/* For fork: the lock held across it. */
void xpr_samples_lock(void);
void xpr_samples_unlock(void);
void xpr_samples_after_fork_child(void);

#endif
