#include "decode/chrome_slices.h"

#include <stdlib.h>
#include <string.h>

#include "decode/json_text.h"
#include "decode/xspace.h"

/* The bytes of the shortest object that has a key, and of the longest key of an event. */
enum { LEAST = 5, LONGEST_KEY = 4 };

/* Whether the brace at `at` looks like that of an event behind another one: `}, {"` and a short key. */
static bool seems_event(const uint8_t *bytes, size_t used, size_t at) {
    size_t before = at, next = at + 1;
    while (before > 0 && xpr_json_is_space(bytes[before - 1])) before--;
    if (before == 0 || bytes[--before] != ',') return false;
    while (before > 0 && xpr_json_is_space(bytes[before - 1])) before--;
    if (before == 0 || bytes[before - 1] != '}') return false;
    while (next < used && xpr_json_is_space(bytes[next])) next++;
    if (used - next < LEAST || bytes[next] != '"') return false;
    size_t room = used - next - 1;
    return memchr(bytes + next + 1, '"', room < LONGEST_KEY + 1 ? room : LONGEST_KEY + 1) != NULL;
}

void xpr_chrome_begin_stretch(xpr_chrome_stretch *stretch) {
    xpr_chrome_init(&stretch->chrome);
    xpr_chrome_assume(&stretch->chrome, 0);
    stretch->guessed = stretch->read = false;
}

/* A joined stretch as one that begins at byte `at`, in the memory that it has: memory that is given back and taken anew
 * costs as much as reading does. What its scanner knows of keys is of use too. */
static void begin_again(xpr_chrome *chrome, uint64_t at) {
    xpr_table *tables[] = {&chrome->events, &chrome->args, &chrome->damages};
    xpr_dictionary *dictionaries[] = {&chrome->categories, &chrome->names, &chrome->labels, &chrome->texts};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) tables[i]->count = 0;
    for (size_t i = 0; i < sizeof dictionaries / sizeof *dictionaries; i++) xpr_dictionary_clear(dictionaries[i]);
    chrome->odd_strings = chrome->odd_at = chrome->large_numbers = chrome->repaired_in_vain = chrome->nameless = 0;
    chrome->truncated_at = chrome->lost_at = 0;
    chrome->used = chrome->at = chrome->wanted = 0;
    xpr_chrome_assume(chrome, at);
}

void xpr_chrome_free_stretch(xpr_chrome_stretch *stretch) { xpr_chrome_free(&stretch->chrome); }

int xpr_chrome_cut_stretch(xpr_chrome_stretch *stretch, size_t wanted, xpr_chrome_stretch *next) {
    xpr_chrome *held = &stretch->chrome;
    const uint8_t *brace = NULL;
    size_t at = wanted;
    while (at < held->used && (brace = memchr(held->buffer + at, '{', held->used - at)) != NULL) {
        at = (size_t)(brace - held->buffer);
        if (seems_event(held->buffer, held->used, at)) break;
        at++;
        brace = NULL;
    }
    if (brace == NULL && held->used / 2 < wanted) return 0;
    if (brace == NULL) at = held->used;
    begin_again(&next->chrome, held->base + at);
    next->guessed = brace != NULL;
    next->read = false;
    if (!xpr_chrome_hold(&next->chrome, held->buffer + at, held->used - at)) return -1;
    held->used = at;
    held->length = held->base + at;
    return 1;
}

void xpr_chrome_read_stretch(xpr_chrome_stretch *stretch) {
    xpr_decode_error error;
    if (stretch->guessed) stretch->read = xpr_chrome_read(&stretch->chrome, &error) == 0;
}

/* The numbers of a stretch's strings among those of the whole: in order, as one scanner would have met them. NULL where
 * memory is out. */
static int32_t *joined(xpr_dictionary *whole, const xpr_dictionary *own) {
    int32_t *number = malloc((own->strings.count + 1) * sizeof *number);
    for (size_t i = 0; number && i < own->strings.count; i++) {
        int64_t start = own->strings.offsets[i];
        const uint8_t *text = own->strings.bytes ? (const uint8_t *)own->strings.bytes + start : NULL;
        number[i] = xpr_dictionary_number(whole, text, (size_t)(own->strings.offsets[i + 1] - start));
        if (number[i] < 0) {
            free(number);
            return NULL;
        }
    }
    whole->strings.repaired += own->strings.repaired;
    return number;
}

static void renumber(const xpr_table *events, int column, size_t from, const int32_t *number) {
    int32_t *code = xpr_i32(events, column);
    for (size_t i = from; i < events->count; i++) code[i] = number[code[i]];
}

static bool append_events(xpr_chrome *whole, const xpr_chrome *stretch) {
    size_t from = whole->events.count;
    int32_t *category = joined(&whole->categories, &stretch->categories);
    int32_t *name = joined(&whole->names, &stretch->names);
    int32_t *label = joined(&whole->labels, &stretch->labels);
    bool done = category && name && label && xpr_table_append(&whole->events, &stretch->events);
    if (done) {
        renumber(&whole->events, XPR_CHROME_CATEGORY, from, category);
        renumber(&whole->events, XPR_CHROME_NAME, from, name);
        renumber(&whole->events, XPR_CHROME_PROCESS, from, label);
        renumber(&whole->events, XPR_CHROME_THREAD, from, label);
    }
    free(category);
    free(name);
    free(label);
    return done;
}

/* Before the events are appended: their number is that of the first of them. */
static bool append_args(xpr_chrome *whole, const xpr_chrome *stretch) {
    size_t from = whole->args.count;
    int32_t *text = joined(&whole->texts, &stretch->texts);
    bool done = text && xpr_table_append(&whole->args, &stretch->args);
    int64_t *event = xpr_i64(&whole->args, XPR_CHROME_ARGS_EVENT), *value = xpr_i64(&whole->args, XPR_CHROME_ARGS_VALUE);
    const uint8_t *kind = xpr_u8(&whole->args, XPR_CHROME_ARGS_KIND);
    for (size_t i = from; done && i < whole->args.count; i++) {
        event[i] += (int64_t)whole->events.count;
        if (kind[i] == XPR_TEXT) value[i] = text[value[i]];
    }
    free(text);
    return done;
}

static bool append_damages(xpr_chrome *whole, const xpr_chrome *stretch) {
    const int64_t *at = xpr_i64(&stretch->damages, XPR_CHROME_DAMAGE_AT);
    const int64_t *end = xpr_i64(&stretch->damages, XPR_CHROME_DAMAGE_END);
    for (size_t i = 0; i < stretch->damages.count; i++)
        if (!xpr_chrome_damaged(whole, (uint64_t)at[i], (uint64_t)end[i])) return false;
    return true;
}

/* What the stretch's scanner has not read, and the state in which it waits for more. */
static void take_state(xpr_chrome *whole, xpr_chrome *stretch) {
    uint8_t *buffer = whole->buffer;
    size_t capacity = whole->capacity;
    whole->buffer = stretch->buffer;
    whole->capacity = stretch->capacity;
    whole->used = stretch->used;
    whole->at = stretch->at;
    whole->base = stretch->base;
    whole->length = stretch->length;
    whole->state = stretch->state;
    whole->lost_at = stretch->lost_at;
    whole->wanted = stretch->wanted;
    if (stretch->truncated_at) whole->truncated_at = stretch->truncated_at;
    stretch->buffer = buffer;
    stretch->capacity = capacity;
    stretch->used = stretch->at = 0;
}

int xpr_chrome_join(xpr_chrome *whole, xpr_chrome_stretch *stretch, bool *proven, xpr_decode_error *error) {
    xpr_chrome *own = &stretch->chrome;
    *proven = stretch->read && xpr_chrome_between_events(whole) && whole->length == own->base;
    if (!*proven) return xpr_chrome_feed(whole, own->buffer, own->used, error);
    if (!append_args(whole, own) || !append_events(whole, own) || !append_damages(whole, own)) {
        error->place[0] = '\0';
        error->offset = (size_t)own->base;
        error->reason = XPR_OUT_OF_MEMORY;
        return -1;
    }
    if (whole->odd_strings == 0) whole->odd_at = own->odd_at;
    whole->odd_strings += own->odd_strings;
    whole->large_numbers += own->large_numbers;
    whole->repaired_in_vain += own->repaired_in_vain;
    whole->nameless += own->nameless;
    take_state(whole, own);
    return 0;
}
