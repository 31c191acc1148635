/* Appends checked chunks to one shard file. Used by one thread at a time: the starter, then the drainer.
 *
 * Nothing is mapped: a full disk is an errno here, never a SIGBUS. After a failed write the file is cut back to its last
 * whole chunk, writing rests for a second, and the next chunk goes where the failed one began. A program may close every
 * descriptor it finds and open others in their place: nothing is written to a file that is not the shard. */
#ifndef XPROF_PY_RECORDER_SHARD_WRITER_H
#define XPROF_PY_RECORDER_SHARD_WRITER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "xprof_py/shard_format.h"

struct xpr_part {
    const void *bytes;
    uint64_t length; /* a multiple of 8 */
};

struct xpr_writer {
    int fd; /* -1: closed */
    uint64_t device, inode; /* of the file that fd was opened for */
    uint32_t sequence;
    uint64_t budget_bytes;
    _Atomic uint64_t offset; /* where the next chunk begins: the size of the file's good part */
    _Atomic uint64_t write_errors;
    _Atomic int last_errno;
    int64_t rest_until_ns; /* MONOTONIC */
    uint64_t shard_id;
};

/* Opens a file above the standard streams: a program without them prints into whatever takes their place. -1 and errno. */
int xpr_open_above_standard(const char *path, int flags);

/* The kernel's boot id as text, padded with 0; empty where unknown. */
void xpr_read_boot_id(char *text, size_t room);

/* Creates or empties the file and writes its header. 0 or errno (the file is then closed). */
int xpr_writer_open(struct xpr_writer *w, const char *path, uint64_t budget_bytes, uint64_t ring_bytes);

/* How many bytes of payload still fit the budget. */
uint64_t xpr_writer_room(const struct xpr_writer *w);

/* Appends one chunk of at most two parts, whatever the budget. False: not written, counted in write_errors.
 * `insist` tries even while writing rests. */
bool xpr_writer_add(struct xpr_writer *w, uint16_t type, uint32_t thread, const struct xpr_part *parts, int count,
                    bool insist);

/* Closes the file. Tells whether it had lost its name (its folder was removed, say). */
bool xpr_writer_close(struct xpr_writer *w);

#endif
