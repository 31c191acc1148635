/* What stands between the values of an object: a comma, white space, the key, a colon. Programs write it the same way
 * for every object of a kind, so that what followed a lead before is compared with, byte by byte, instead of being read.
 *
 * Ownership: inside the structure. Threading: one thread at a time. Cost: a match is four compares of eight bytes.
 */
#ifndef XPROF_PY_DECODE_JSON_LEADS_H
#define XPROF_PY_DECODE_JSON_LEADS_H

#include <string.h>

#include "decode/json_text.h"

enum { XPR_LEAD_WORDS = 4, XPR_LEAD_BYTES = 8 * XPR_LEAD_WORDS, XPR_LEADS = 96, XPR_LEAD_GUESSES = 2 };

typedef struct {
    uint64_t bytes[XPR_LEAD_WORDS], mask[XPR_LEAD_WORDS];
    int16_t after[XPR_LEAD_GUESSES]; /* leads that followed, the last one first; 0: none */
    int16_t meaning;                 /* the caller's number for the key */
    uint8_t length;
} xpr_lead;

/* All zero: nothing is known. Row 0 stands for the beginning of an object. */
typedef struct {
    xpr_lead leads[XPR_LEADS];
    int16_t count, current;
} xpr_leads;

static inline void xpr_leads_begin(xpr_leads *leads) { leads->current = 0; }

/* Whether a lead comes that came here before: then moves behind it. */
static inline bool xpr_leads_match(xpr_leads *leads, xpr_json *json, int *meaning) {
    uint64_t words[XPR_LEAD_WORDS];
    if (json->end - json->at < XPR_LEAD_BYTES) return false;
    memcpy(words, json->at, sizeof words);
    int16_t *after = leads->leads[leads->current].after;
    for (int guess = 0; guess < XPR_LEAD_GUESSES && after[guess]; guess++) {
        const xpr_lead *lead = &leads->leads[after[guess]];
        uint64_t unlike = 0;
        for (int i = 0; i < XPR_LEAD_WORDS; i++) unlike |= (words[i] ^ lead->bytes[i]) & lead->mask[i];
        if (unlike) continue;
        int16_t found = after[guess];
        if (guess) after[1] = after[0];
        after[0] = leads->current = found;
        json->at += lead->length;
        *meaning = lead->meaning;
        return true;
    }
    return false;
}

/* A lead [from, to) was read that was not guessed. */
void xpr_leads_learn(xpr_leads *leads, const uint8_t *from, const uint8_t *to, int meaning);

#endif
