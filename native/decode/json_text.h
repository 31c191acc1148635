/* JSON text as tracers really write it: values found and skipped without building anything.
 *
 * Beyond the standard are read: raw control bytes in strings, a backslash that begins no escape (it stays a backslash),
 * NaN and infinities. A string in which one of the first two was found is counted as odd.
 * Ownership: values point into the caller's bytes. Threading: no shared state. Cost: one pass; nesting is bounded.
 */
#ifndef XPROF_PY_DECODE_JSON_TEXT_H
#define XPROF_PY_DECODE_JSON_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* MORE: right so far, and the bytes end before the value does. */
typedef enum { XPR_JSON_OK, XPR_JSON_MORE, XPR_JSON_BROKEN } xpr_json_status;

typedef enum {
    XPR_JSON_STRING,
    XPR_JSON_NUMBER,
    XPR_JSON_TRUE,
    XPR_JSON_FALSE,
    XPR_JSON_NULL, /* also NaN and infinities: no value that could be used */
    XPR_JSON_OBJECT,
    XPR_JSON_ARRAY
} xpr_json_kind;

typedef struct {
    const uint8_t *at, *end;
    bool final;          /* no bytes follow `end`: a number may end there */
    bool backslash_ends; /* `\"` before a comma, colon or bracket is a backslash and the string's end */
    uint64_t odd;        /* odd strings so far */
    const uint8_t *first_odd;
} xpr_json;

/* `text` of a string is what lies between its quotes, `escaped` or not; of anything else the whole value. */
typedef struct {
    xpr_json_kind kind;
    bool escaped;
    bool simple; /* a number of at most 18 digits before its point and 9 behind it, without sign and exponent */
    uint8_t behind; /* of a simple one how many digits are behind the point */
    const uint8_t *text;
    size_t length;
    uint64_t whole; /* of a simple one the digits before its point, and those behind it */
    uint32_t fraction;
} xpr_json_value;

static inline bool xpr_json_is_space(uint8_t c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/* Past white space; then MORE at the end of the bytes. */
static inline xpr_json_status xpr_json_space(xpr_json *json) {
    while (json->at < json->end && xpr_json_is_space(*json->at)) json->at++;
    return json->at < json->end ? XPR_JSON_OK : XPR_JSON_MORE;
}

/* Read the value that begins at `at`, after white space, and move behind it. After MORE and BROKEN `at` is anywhere. */
xpr_json_status xpr_json_read(xpr_json *json, xpr_json_value *value);
/* A string, then a colon, with white space around them; moves to the value. */
xpr_json_status xpr_json_key(xpr_json *json, xpr_json_value *key);

/* Write an escaped string's text plainly; returns its length, at most `length`. `to` has room for `length` bytes.
 * A \u of half a surrogate pair becomes U+FFFD. */
size_t xpr_json_unescape(const uint8_t *text, size_t length, uint8_t *to);

/* The number times 10^shift, rounded to the nearest whole (halves away from 0), without a double in between.
 * False where it is none or beyond 10^30. */
bool xpr_json_decimal(const uint8_t *text, size_t length, int shift, __int128 *value);

#endif
