/* Reads this process's own memory at addresses that may be wrong by now: what is not mapped makes a read fail, never the
 * process. The kernel does it: pwritev() copies the places one behind the other into a memory file that is mapped here.
 * (process_vm_readv() does the same at four times the price per place, and is often forbidden in containers.)
 *
 * Threads: one at a time per `struct xpr_memory`. Cost: about 0.7 us a read, plus 0.1 us a place and 0.1 us a KiB. */
#ifndef XPROF_PY_RECORDER_OWN_MEMORY_H
#define XPROF_PY_RECORDER_OWN_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    XPR_MEMORY_ROOM = 256 << 10, /* of all places of one read */
    XPR_MEMORY_PLACES = 640,
};

struct xpr_place_in_memory {
    uintptr_t address;
    size_t bytes;
};

struct xpr_memory {
    const uint8_t *bytes; /* what the last read found, its places without a gap between them; NULL: not open */
    int file;
};

/* 0, or an errno; then `bytes` is NULL. What was opened is closed by xpr_memory_close, also in the child of a fork. */
int xpr_memory_open(struct xpr_memory *memory);
void xpr_memory_close(struct xpr_memory *memory);

/* The places in their order. False where one of them is not mapped, or they do not fit: `bytes` then holds nothing. */
bool xpr_memory_read(struct xpr_memory *memory, const struct xpr_place_in_memory *places, size_t count);

#endif
