/* Where in a nested message the decoder is, for errors such as "planes[1].lines[3].events[12]".
 * Ownership: everything is inside the structures; threading: one thread at a time; cost: one store per element. */
#ifndef XPROF_PY_DECODE_PLACE_H
#define XPROF_PY_DECODE_PLACE_H

#include <stddef.h>
#include <stdint.h>

enum { XPR_PLACE_DEPTH = 8 };

typedef struct {
    int depth;
    struct {
        const char *field;
        uint64_t index;
    } level[XPR_PLACE_DEPTH];
} xpr_place;

/* The `reason` of a decode that ran out of memory, to be compared by address. */
extern const char XPR_OUT_OF_MEMORY[];

/* What went wrong in a buffer: filled by a decoder that fails. */
typedef struct {
    size_t offset;      /* bytes from the start of the buffer */
    char place[192];    /* path of the innermost message being read, "" at the top */
    const char *reason; /* a string constant */
} xpr_decode_error;

/* Write the path as text; it is cut where it does not fit. */
void xpr_place_text(const xpr_place *place, char *text, size_t size);

#endif
