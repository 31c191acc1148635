#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "recorder/own_memory.h"
#include "tests/check.h"

int main(void) {
    struct xpr_memory memory;
    static const char one[] = "one", two[] = "two more";
    CHECK(xpr_memory_open(&memory) == 0);

    /* Places lie one behind the other, in their order. */
    struct xpr_place_in_memory both[] = {{(uintptr_t)two, sizeof two}, {(uintptr_t)one, sizeof one}};
    CHECK(xpr_memory_read(&memory, both, 2));
    CHECK(memcmp(memory.bytes, "two more\0one", sizeof one + sizeof two) == 0);

    /* What is not mapped makes the read fail, wherever it stands, and no signal comes. */
    char *gone = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(gone != MAP_FAILED);
    CHECK(munmap(gone + 4096, 4096) == 0);
    const uintptr_t bad[] = {16, (uintptr_t)gone + 4096, UINT64_C(0xdddddddddddddddd), UINT64_C(0xffff800000000000)};
    for (int i = 0; i < 4; i++) {
        struct xpr_place_in_memory places[] = {{(uintptr_t)one, sizeof one}, {bad[i], 8}, {(uintptr_t)two, sizeof two}};
        CHECK(!xpr_memory_read(&memory, places, 3));
        CHECK(!xpr_memory_read(&memory, places + 1, 1));
    }
    struct xpr_place_in_memory over_the_end = {(uintptr_t)gone + 4000, 200};
    CHECK(!xpr_memory_read(&memory, &over_the_end, 1));

    /* More than there is room for. */
    struct xpr_place_in_memory large = {(uintptr_t)gone, XPR_MEMORY_ROOM + 1};
    CHECK(!xpr_memory_read(&memory, &large, 1));
    CHECK(xpr_memory_read(&memory, both, 2));
    xpr_memory_close(&memory);
    xpr_memory_close(&memory);
    return 0;
}
