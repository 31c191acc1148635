#include "kernels/rows_by_code.h"

#include <string.h>

#include "columns/memory.h"

int xpr_count_codes(const int32_t *code, size_t count, const uint8_t *keep, size_t codes, int64_t *begin) {
    for (size_t first = 0; first < count; first += XPR_ROWS_AT_ONCE) {
        size_t end = xpr_end_of_rows(first, count);
        for (size_t row = first; row < end; row++) {
            if (code[row] < 0 || (size_t)code[row] >= codes) return -1;
            begin[code[row] + 1]++;
        }
        xpr_column_passed(code, first * sizeof *code, end * sizeof *code);
    }
    for (size_t c = 0; c < codes; c++) begin[c + 1] = begin[c] + (keep[c] ? begin[c + 1] : 0);
    return 0;
}

void xpr_rows_by_code(const int32_t *code, size_t count, const uint8_t *keep, size_t codes, const int64_t *begin,
                      int64_t *next, int32_t *rows) {
    memcpy(next, begin, codes * sizeof *next);
    for (size_t first = 0; first < count; first += XPR_ROWS_AT_ONCE) {
        size_t end = xpr_end_of_rows(first, count);
        for (size_t row = first; row < end; row++)
            if (keep[code[row]]) rows[next[code[row]]++] = (int32_t)row;
        xpr_column_passed(code, first * sizeof *code, end * sizeof *code);
    }
}
