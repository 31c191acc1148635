/* Reading the protobuf wire format from memory, one field at a time, never past the end.
 *
 * Ownership: nothing is allocated or copied; a wire is two pointers into the caller's bytes.
 * Threading: no shared state. Cost: a one-byte varint is one compare and one load.
 * Rules: those of the protobuf runtimes. Unknown fields and known fields of another wire type are skipped; groups are
 * skipped when they are closed by their own number; field number 0, wire types 6 and 7, tags beyond 32 bits, varints of
 * more than ten bytes and lengths beyond the enclosing message are errors.
 */
#ifndef XPROF_PY_DECODE_WIRE_H
#define XPROF_PY_DECODE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { XPR_VARINT = 0, XPR_FIXED64 = 1, XPR_LEN = 2, XPR_GROUP = 3, XPR_END_GROUP = 4, XPR_FIXED32 = 5 };
enum { XPR_GROUP_DEPTH = 100 };

/* The tag of a field as it stands on the wire. */
#define XPR_TAG(field, type) ((uint32_t)(field) << 3 | (type))

/* Why and where decoding stopped. `at` points into the caller's bytes, `reason` to a string constant. */
typedef struct {
    const uint8_t *at;
    const char *reason;
} xpr_failure;

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
    xpr_failure *failure;
} xpr_wire;

static inline bool xpr_wire_fail(const xpr_wire *w, const uint8_t *at, const char *reason) {
    w->failure->at = at;
    w->failure->reason = reason;
    return false;
}

/* The seven low bits of each of eight bytes, the first lowest, as one number. */
static inline uint64_t xpr_sevens(uint64_t word) {
    word = (word & UINT64_C(0x007f007f007f007f)) | (word & UINT64_C(0x7f007f007f007f00)) >> 1;
    word = (word & UINT64_C(0x00003fff00003fff)) | (word & UINT64_C(0x3fff00003fff0000)) >> 2;
    return (word & UINT64_C(0x000000000fffffff)) | (word & UINT64_C(0x0fffffff00000000)) >> 4;
}

static inline bool xpr_wire_long_varint(xpr_wire *w, uint64_t *value) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    /* Times are numbers of six to eight bytes: these are read at once. */
    if (w->end - w->at >= 8) {
        uint64_t word;
        memcpy(&word, w->at, 8);
        uint64_t last = ~word & UINT64_C(0x8080808080808080);
        if (last) {
            last &= -last;
            *value = xpr_sevens(word & (last - 1));
            w->at += (__builtin_ctzll(last) >> 3) + 1;
            return true;
        }
    }
#endif
    uint64_t result = 0;
    const uint8_t *at = w->at;
    for (unsigned shift = 0; shift < 70; shift += 7) {
        if (at == w->end) return xpr_wire_fail(w, w->at, "the message ends inside a number");
        uint8_t byte = *at++;
        /* Bits beyond 64 are dropped, as the runtimes do. */
        result |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            w->at = at;
            *value = result;
            return true;
        }
    }
    return xpr_wire_fail(w, w->at, "a number of more than ten bytes");
}

/* A number of up to eight bytes of which eight may be read; returns what follows it, or NULL where it is longer. Whether
 * it ends inside its message is for the caller to see. */
static inline const uint8_t *xpr_wire_quick_varint(const uint8_t *at, uint64_t *value) {
    if (*at < 0x80) {
        *value = *at;
        return at + 1;
    }
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    uint64_t word;
    memcpy(&word, at, 8);
    uint64_t last = ~word & UINT64_C(0x8080808080808080);
    if (!last) return NULL;
    *value = xpr_sevens(word & ((last & -last) - 1));
    return at + (__builtin_ctzll(last) >> 3) + 1;
#else
    return NULL;
#endif
}

static inline bool xpr_wire_varint(xpr_wire *w, uint64_t *value) {
    if (w->at != w->end && *w->at < 0x80) {
        *value = *w->at++;
        return true;
    }
    return xpr_wire_long_varint(w, value);
}

/* The next tag: field number and wire type in one number, compare it with XPR_TAG. */
static inline bool xpr_wire_tag(xpr_wire *w, uint32_t *tag) {
    const uint8_t *start = w->at;
    uint64_t value;
    if (!xpr_wire_varint(w, &value)) return false;
    if (value > UINT32_MAX) return xpr_wire_fail(w, start, "a field number out of range");
    if (value < 8) return xpr_wire_fail(w, start, "field number 0");
    if ((value & 7) > XPR_FIXED32) return xpr_wire_fail(w, start, "an unknown wire type");
    *tag = (uint32_t)value;
    return true;
}

/* The bytes of a length-delimited field; `inner` reads them, `w` goes on after them. */
static inline bool xpr_wire_inner(xpr_wire *w, xpr_wire *inner) {
    const uint8_t *start = w->at;
    uint64_t length;
    if (!xpr_wire_varint(w, &length)) return false;
    if (length > (uint64_t)(w->end - w->at)) return xpr_wire_fail(w, start, "a length beyond the end of its message");
    inner->at = w->at;
    inner->end = w->at + length;
    inner->failure = w->failure;
    w->at += length;
    return true;
}

static inline bool xpr_wire_fixed64(xpr_wire *w, uint64_t *bits) {
    if (w->end - w->at < 8) return xpr_wire_fail(w, w->at, "the message ends inside a number");
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--) value = value << 8 | w->at[i];
    *bits = value;
    w->at += 8;
    return true;
}

/* Skip the value of a field whose tag has been read. */
bool xpr_wire_skip(xpr_wire *w, uint32_t tag);

/* Read a string field's bytes; the same as xpr_wire_inner, for readers of pointer and length. */
static inline bool xpr_wire_bytes(xpr_wire *w, const uint8_t **bytes, size_t *length) {
    xpr_wire inner;
    if (!xpr_wire_inner(w, &inner)) return false;
    *bytes = inner.at;
    *length = (size_t)(inner.end - inner.at);
    return true;
}

#endif
