#include "columns/utf8.h"

#include <string.h>

/* Length of the next character, or minus the length of the ill-formed part there. length > 0. */
static int next(const uint8_t *bytes, size_t length) {
    uint8_t first = bytes[0];
    if (first < 0x80) return 1;
    int size;
    uint8_t low = 0x80, high = 0xbf; /* what the second byte may be */
    if (first >= 0xc2 && first <= 0xdf) {
        size = 2;
    } else if (first >= 0xe0 && first <= 0xef) {
        size = 3;
        if (first == 0xe0) low = 0xa0;
        if (first == 0xed) high = 0x9f;
    } else if (first >= 0xf0 && first <= 0xf4) {
        size = 4;
        if (first == 0xf0) low = 0x90;
        if (first == 0xf4) high = 0x8f;
    } else {
        return -1;
    }
    for (int i = 1; i < size; i++) {
        if ((size_t)i == length || bytes[i] < low || bytes[i] > high) return -i;
        low = 0x80;
        high = 0xbf;
    }
    return size;
}

bool xpr_utf8_valid(const uint8_t *bytes, size_t length) {
    size_t at = 0;
    while (at < length) {
        /* Names are nearly always ASCII: eight at a time. */
        uint64_t word;
        while (length - at >= 8) {
            memcpy(&word, bytes + at, 8);
            if (word & UINT64_C(0x8080808080808080)) break;
            at += 8;
        }
        if (at == length) return true;
        int size = next(bytes + at, length - at);
        if (size < 0) return false;
        at += (size_t)size;
    }
    return true;
}

size_t xpr_utf8_repaired_length(const uint8_t *bytes, size_t length) {
    if (xpr_utf8_valid(bytes, length)) return length;
    size_t result = 0;
    for (size_t at = 0; at < length;) {
        int size = next(bytes + at, length - at);
        result += size > 0 ? (size_t)size : 3;
        at += (size_t)(size > 0 ? size : -size);
    }
    return result;
}

void xpr_utf8_repair(const uint8_t *bytes, size_t length, char *to) {
    for (size_t at = 0; at < length;) {
        int size = next(bytes + at, length - at);
        if (size > 0) {
            memcpy(to, bytes + at, (size_t)size);
            to += size;
            at += (size_t)size;
        } else {
            memcpy(to, "\xef\xbf\xbd", 3);
            to += 3;
            at += (size_t)-size;
        }
    }
}
