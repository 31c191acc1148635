/* Rows of a coded column by their code, and then in order: a counting sort.
 *
 * Ownership: the caller owns every array. Threading: no state. Cost: two passes over the column. */
#ifndef XPROF_PY_KERNELS_ROWS_BY_CODE_H
#define XPROF_PY_KERNELS_ROWS_BY_CODE_H

#include <stddef.h>
#include <stdint.h>

/* Fill begin[codes + 1], which has been zeroed: rows of code c will be begin[c] up to begin[c + 1]; none where keep[c]
 * is 0. Returns 0; or -1 where a code is out of range. */
int xpr_count_codes(const int32_t *code, size_t count, const uint8_t *keep, size_t codes, int64_t *begin);

/* Fill rows[begin[codes]] after xpr_count_codes; `next` is scratch of `codes` numbers. */
void xpr_rows_by_code(const int32_t *code, size_t count, const uint8_t *keep, size_t codes, const int64_t *begin,
                      int64_t *next, int32_t *rows);

#endif
