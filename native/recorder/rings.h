/* The threads' rings in a mapped file beside the shard (rings_format.h), so that a process that is killed loses nothing.
 *
 * The file's blocks are all allocated before they are mapped, and only on file systems where that is a promise: a full
 * disk is an errno here, never a SIGBUS. Where it cannot be had, or past XPR_MAX_RINGS_BYTES, rings are plain memory: the
 * caller is told, and only a killed process notices. Functions lock nothing: they are called under the capture's lock,
 * except for the journal's, under that of the strings. */
#ifndef XPROF_PY_RECORDER_RINGS_H
#define XPROF_PY_RECORDER_RINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "xprof_py/rings_format.h"

enum { XPR_JOURNAL_BYTES = 256 << 10, XPR_MAX_RINGS_BYTES = 256 << 20 };

/* What one ring takes in the file and in memory. */
static inline uint64_t xpr_ring_stride(uint64_t ring_bytes) {
    return (XPR_RING_HEADER_BYTES + ring_bytes + XPR_RINGS_ALIGNMENT - 1) / XPR_RINGS_ALIGNMENT * XPR_RINGS_ALIGNMENT;
}

/* Creates the file for a new capture. 0, or why there is none. */
int xpr_rings_open(const char *shard_path, uint64_t ring_bytes, uint64_t shard_id);

/* A ring that nobody uses, its slots right behind the header's page; NULL: none can be had, and *error says why. It stays
 * mapped until it is given back or detached. */
struct xpr_ring_header *xpr_rings_take(int *error);
/* Gives a drained ring back for another thread. */
void xpr_rings_give(struct xpr_ring_header *ring);
/* Puts plain memory in the ring's place, at the same address: a thread may still be storing there. */
void xpr_rings_detach(struct xpr_ring_header *ring, uint64_t bytes);

/* Keeps a copy of a string's or schema's record until it is in the shard. */
void xpr_journal_add(uint32_t type, const void *record, uint64_t bytes);
/* The records so far are about to be written, with those that were before; once they are, xpr_journal_written. */
void xpr_journal_taken(void);
void xpr_journal_written(void);

/* After the last ring was detached: unmaps what is left and removes the file, which holds nothing any more. */
void xpr_rings_close(void);
/* In the child of a fork: lets go of everything, which stays the parent's. */
void xpr_rings_after_fork_child(void);

#endif
