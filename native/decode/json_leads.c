#include "decode/json_leads.h"

/* The row of what is not kept: nothing is guessed behind it. */
enum { UNKNOWN = XPR_LEADS - 1 };

static int16_t row_of(xpr_leads *leads, const uint8_t *from, size_t length, int meaning) {
    if (length > XPR_LEAD_BYTES) return UNKNOWN;
    int16_t row = 1;
    for (; row <= leads->count; row++)
        if (leads->leads[row].length == length && memcmp(leads->leads[row].bytes, from, length) == 0) return row;
    if (row == UNKNOWN) return UNKNOWN;
    xpr_lead *lead = &leads->leads[row];
    memcpy(lead->bytes, from, length);
    memset(lead->mask, 0xff, length);
    lead->length = (uint8_t)length;
    lead->meaning = (int16_t)meaning;
    return leads->count = row;
}

void xpr_leads_learn(xpr_leads *leads, const uint8_t *from, const uint8_t *to, int meaning) {
    int16_t row = row_of(leads, from, (size_t)(to - from), meaning);
    int16_t *after = leads->leads[leads->current].after;
    if (row != UNKNOWN && leads->current != UNKNOWN) {
        after[1] = after[0];
        after[0] = row;
    }
    leads->current = row;
}
