/* UTF-8 as Unicode defines it: no surrogates, no overlong forms, nothing above U+10FFFF.
 * Repair replaces each maximal ill-formed part by U+FFFD, the same result as Python's bytes.decode("utf-8", "replace").
 * Ownership: none; `to` has room for xpr_utf8_repaired_length bytes. Threading: pure functions. */
#ifndef XPROF_PY_COLUMNS_UTF8_H
#define XPROF_PY_COLUMNS_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool xpr_utf8_valid(const uint8_t *bytes, size_t length);
size_t xpr_utf8_repaired_length(const uint8_t *bytes, size_t length);
void xpr_utf8_repair(const uint8_t *bytes, size_t length, char *to);

#endif
