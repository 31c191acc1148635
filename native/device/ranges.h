/* What links the ranges that XLA opens on the host to the device work that they launch: the one door between the trace table
 * (native/recorder/trace_table.c), which hears of them, and the collector of device activity, which tags launches with them.
 *
 * Ownership: the collector sets xpr_device_ranges to a struct that lives for ever when its session begins, and to NULL when
 * it ends. Nobody else writes it. While it is NULL a range costs one load and a branch here.
 * Threads: any thread calls, without Python's lock; a call may still be under way as the pointer is set to NULL.
 * Balance: a thread pops only what it pushed in the same session. What was open as a session ended is not popped: the
 * collector must not take what an earlier session left on a thread's stack for its own (string ids are those of one capture).
 * Which ranges: those of XLA's NVTX domain, `TSL`, alone. Others, and our own spans, are found by thread and containment in
 * time, which costs nothing while recording. */
#ifndef XPROF_PY_DEVICE_RANGES_H
#define XPROF_PY_DEVICE_RANGES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct xpr_device_ranges {
    void (*push)(uint32_t string_id); /* an id of this capture's STRINGS */
    void (*pop)(void);
};

extern _Atomic(const struct xpr_device_ranges *) xpr_device_ranges;

/* Whether a session took it: then, and only then, xpr_device_range_pop belongs to it. */
static inline bool xpr_device_range_push(uint32_t string_id) {
    const struct xpr_device_ranges *ranges = atomic_load_explicit(&xpr_device_ranges, memory_order_acquire);
    if (__builtin_expect(ranges == NULL, 1)) return false;
    ranges->push(string_id);
    return true;
}

static inline void xpr_device_range_pop(void) {
    const struct xpr_device_ranges *ranges = atomic_load_explicit(&xpr_device_ranges, memory_order_acquire);
    if (ranges) ranges->pop();
}

#endif
