#include "decode/place.h"

#include <inttypes.h>
#include <stdio.h>

const char XPR_OUT_OF_MEMORY[] = "out of memory";

void xpr_place_text(const xpr_place *place, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < place->depth && used < size; i++) {
        int wrote = snprintf(text + used, size - used, "%s%s[%" PRIu64 "]", i ? "." : "", place->level[i].field,
                             place->level[i].index);
        if (wrote < 0) return;
        used += (size_t)wrote;
    }
}
