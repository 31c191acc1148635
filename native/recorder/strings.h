/* Interned names, text arguments and argument schemas of one capture.
 *
 * Ownership: the table copies what it is given. Threads: every function locks; nothing blocks on I/O under the lock.
 * Cost: about 40 ns for a short string that is known; callers keep their own cache in front.
 * Memory is bounded: past a limit a string becomes "(more names)" or "(more texts)" and the use is counted. */
#ifndef XPROF_PY_RECORDER_STRINGS_H
#define XPROF_PY_RECORDER_STRINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "xprof_py/shard_format.h"

enum {
    XPR_MORE_NAMES = 0, /* ids that are always there */
    XPR_MORE_TEXTS = 1,
    XPR_MAX_NAMES = 65536,
    XPR_MAX_TEXTS = 65536,
    XPR_MAX_SCHEMAS = 65535,
    XPR_MAX_STRING_BYTES = 1024, /* of one string; the rest is cut off at a character's edge */
    XPR_MAX_ALL_STRING_BYTES = 64 << 20,
};

enum xpr_string_use { XPR_USE_NAME, XPR_USE_TEXT };

/* A growing run of bytes; `failed` once memory ran out. */
struct xpr_bytes {
    uint8_t *data;
    size_t used, room;
    bool failed;
};
void *xpr_bytes_add(struct xpr_bytes *b, size_t bytes); /* room for bytes, zeroed; NULL: out of memory */
void xpr_bytes_free(struct xpr_bytes *b);

struct xpr_string_counts {
    uint64_t strings, more_names, more_texts, dropped_args;
};

/* Empties the table for a new capture. 0, or ENOMEM with the table unusable. */
int xpr_strings_reset(void);
/* Gives the memory back; every later use counts as "more". */
void xpr_strings_clear(void);

/* The id of a UTF-8 text. `is_new` (may be NULL) tells whether this call added it. Never fails. */
uint32_t xpr_intern(const char *text, size_t bytes, enum xpr_string_use use, bool *is_new);

/* The id of (keys, kinds), 1 <= count <= XPR_MAX_ARGS; 0 past the limit or without memory (its arguments are counted). */
uint32_t xpr_intern_schema(const uint32_t *keys, uint32_t count, uint64_t kinds);

/* Counts arguments that were left out of an event. */
void xpr_count_dropped_args(uint64_t count);

struct xpr_string_counts xpr_strings_counts(void);

/* Moves the records added since the last call into the two runs (the caller frees them). */
void xpr_strings_take(struct xpr_bytes *strings, struct xpr_bytes *schemas);

/* For fork: the lock held across it, so that the child finds a consistent table. */
void xpr_strings_lock(void);
void xpr_strings_unlock(void);
void xpr_strings_after_fork_child(void);

#endif
