#include "probe/siphash.h"

#include <string.h>

static uint64_t word(const uint8_t *p) {
    uint64_t w = 0;
    for (int i = 7; i >= 0; i--) w = w << 8 | p[i];
    return w;
}

static uint64_t left(uint64_t x, int n) { return x << n | x >> (64 - n); }

static void rounds(uint64_t v[4], int n) {
    while (n--) {
        v[0] += v[1], v[1] = left(v[1], 13) ^ v[0], v[0] = left(v[0], 32);
        v[2] += v[3], v[3] = left(v[3], 16) ^ v[2];
        v[0] += v[3], v[3] = left(v[3], 21) ^ v[0];
        v[2] += v[1], v[1] = left(v[1], 17) ^ v[2], v[2] = left(v[2], 32);
    }
}

static void absorb(uint64_t v[4], uint64_t m) {
    v[3] ^= m;
    rounds(v, 2);
    v[0] ^= m;
}

uint64_t xpr_siphash(const uint8_t key[16], const void *content, size_t bytes) {
    uint64_t k0 = word(key), k1 = word(key + 8);
    uint64_t v[4] = {k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d, k0 ^ 0x6c7967656e657261, k1 ^ 0x7465646279746573};
    const uint8_t *p = content;
    size_t whole = bytes & ~(size_t)7;
    for (size_t i = 0; i < whole; i += 8) absorb(v, word(p + i));
    uint8_t last[8] = {0};
    if (bytes & 7) memcpy(last, p + whole, bytes & 7);
    last[7] = (uint8_t)bytes;
    absorb(v, word(last));
    v[2] ^= 0xff;
    rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
