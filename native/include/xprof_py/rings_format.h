/* What a running recorder keeps for the case that its process is killed: RUN/shards/<rank>-<pid>.xpr.rings. Version 1.
 *
 * The file is mapped and shared, so the kernel has all that was ever stored there, however the process ends. It is removed
 * when the shard is complete. postprocess/readers/shard_left.py reads it beside a shard without END.
 *
 * Layout: the header (header_bytes), the journal (journal_bytes), then up to the end of the file rings, each ring_stride after
 * the one before: a header of XPR_RING_HEADER_BYTES, then ring_bytes of slots.
 *
 * The journal is a ring of records { uint32_t type; uint32_t bytes; payload, padded to 8 } of the strings and schemas that
 * [journal_tail, journal_head) say are not in the shard yet; type and payload are those of a shard's chunk. */
#ifndef XPROF_PY_RINGS_FORMAT_H
#define XPROF_PY_RINGS_FORMAT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "xprof_py/shard_format.h"

#define XPR_RINGS_MAGIC "XPRRINGS"
#define XPR_RINGS_VERSION 1u
#define XPR_RINGS_HEADER_BYTES 65536u
#define XPR_RING_HEADER_BYTES 4096u
#define XPR_RINGS_ALIGNMENT 65536u /* of everything that is mapped by itself: the largest page of any machine */
#define XPR_MAX_OPEN_SPANS 32
#define XPR_MAX_LEFT 64

struct xpr_rings_header {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes;
    uint64_t pid;
    uint64_t process_start; /* field 22 of /proc/<pid>/stat: tells a process from a later one of its pid; 0: not known */
    uint64_t shard_id;      /* equal to that of the shard which the rings belong to */
    uint64_t journal_bytes;
    uint64_t ring_bytes; /* of one ring's slots */
    uint64_t ring_stride;
    struct xpr_clock_record clock; /* before the shard's first one */
    char boot_id[40];
    _Alignas(64) _Atomic uint64_t journal_head, journal_tail; /* bytes */
    _Atomic uint64_t journal_skipped;                          /* records that found no place */
};

/* Spans that a thread has entered and not left, the outermost first: events of one slot whose duration is open; the value of
 * one without a schema means nothing. Only the thread itself changes them. The start of one that was left on another thread
 * goes into `left`, a ring, until the thread needs the place: such a span is not open any more. Where more were left than
 * `left` holds, nothing is known of any. */
struct xpr_open_spans {
    _Atomic uint32_t count; /* at most XPR_MAX_OPEN_SPANS */
    uint32_t zero;
    _Atomic uint32_t left_count, left_taken; /* starts put into `left`, and those of them that the thread has taken out */
    uint32_t more;                           /* inner ones that found no place */
    uint32_t reserved[3];
    struct xpr_event spans[XPR_MAX_OPEN_SPANS];
    _Atomic uint64_t left[XPR_MAX_LEFT];
};

struct xpr_ring_header {
    _Atomic uint64_t head; /* slots appended; the thread's */
    uint64_t reserved0[7];
    /* The drainer's. A chunk is announced before it is written, so that a reader knows whether slots from `tail` on are in
     * the file already: if the whole chunk is there, those before pending_tail are. pending_offset is stored last. */
    _Atomic uint64_t tail; /* slots taken */
    _Atomic uint64_t pending_offset, pending_tail;
    _Atomic uint64_t pending_segment; /* number of the segment + 1, 0: the shard */
    uint64_t reserved1[4];
    _Atomic uint32_t thread; /* index in the shard + 1; 0: nobody's */
    uint32_t reserved2;
    uint64_t os_tid;
    _Atomic uint64_t dropped_ring;
    uint64_t reserved3[5];
    char name[64]; /* of the thread, cut off, ends with 0 */
    struct xpr_open_spans open;
};

_Static_assert(sizeof(struct xpr_rings_header) <= XPR_RINGS_HEADER_BYTES, "rings");
_Static_assert(sizeof(struct xpr_ring_header) <= XPR_RING_HEADER_BYTES, "ring");
_Static_assert(offsetof(struct xpr_rings_header, clock) == 64 && offsetof(struct xpr_rings_header, journal_head) == 192, "rings");
_Static_assert(offsetof(struct xpr_ring_header, tail) == 64 && offsetof(struct xpr_ring_header, thread) == 128 &&
                   offsetof(struct xpr_ring_header, name) == 192 && offsetof(struct xpr_ring_header, open) == 256 &&
                   offsetof(struct xpr_open_spans, spans) == 32 && offsetof(struct xpr_open_spans, left) == 32 + 32 * 32 &&
                   sizeof(struct xpr_event) == 32,
               "ring");

#endif
