#include "decode/shard_args.h"

#include <stdlib.h>
#include <string.h>

#include "columns/memory.h"
#include "xprof_py/shard_format.h"

/* Where slots are: neighbours in the columns are neighbours in the file as a rule, so the last run is kept. */
struct place {
    const struct xpr_slot_run *runs;
    size_t *begins; /* number of each run's first slot, then of all slots */
    size_t run_count, run;
};

static __attribute__((noinline)) void find_run(struct place *p, size_t number) {
    size_t low = 0, high = p->run_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (p->begins[middle] <= number)
            low = middle;
        else
            high = middle;
    }
    p->run = low;
}

static inline const uint8_t *slot_at(struct place *p, size_t number) {
    if (__builtin_expect(number < p->begins[p->run] || number >= p->begins[p->run + 1], 0)) find_run(p, number);
    return p->runs[p->run].bytes + (number - p->begins[p->run]) * sizeof(struct xpr_event);
}

static inline uint64_t word_of(const uint8_t *slot, unsigned i) {
    uint64_t word;
    memcpy(&word, slot + 8 * i, sizeof word);
    return word;
}

/* How many arguments an event has by its third word; XPR_NO_SUCH_SCHEMA: nobody can tell. */
static inline unsigned count_of(const struct xpr_arg_schemas *schemas, uint64_t word) {
    size_t schema = word >> 48;
    if (!schema) return 0;
    unsigned count = schema < schemas->schemas ? schemas->counts[schema] : XPR_NO_SUCH_SCHEMA;
    return count != XPR_NO_SUCH_SCHEMA && (word >> 40 & XPR_EVENT_SLOTS) < 1 + (count + 1) / 3 ? XPR_NO_SUCH_SCHEMA : count;
}

static size_t count_all(struct place *p, const uint32_t *first, size_t events, const struct xpr_arg_schemas *schemas,
                        struct xpr_shard_args *out) {
    size_t count = 0;
    for (size_t i = 0; i < events; i++) {
        unsigned more = count_of(schemas, word_of(slot_at(p, first[i]), 2));
        if (more == XPR_NO_SUCH_SCHEMA)
            out->without_schema++;
        else
            count += more;
    }
    return count;
}

static void fill(struct place *p, const uint32_t *first, size_t events, const struct xpr_arg_schemas *schemas,
                 struct xpr_shard_args *out) {
    static const uint8_t word_in_more[3] = {0, 1, 3};
    struct xpr_shard_args to = *out; /* a copy, so that it stays in registers */
    for (size_t i = 0; i < events; i++) {
        const uint8_t *slot = slot_at(p, first[i]);
        uint64_t word = word_of(slot, 2);
        unsigned count = count_of(schemas, word);
        if (!count || count == XPR_NO_SUCH_SCHEMA) continue;
        size_t schema = word >> 48;
        uint64_t kinds = schemas->kinds[schema];
        const uint32_t *keys = schemas->keys + schemas->at[schema];
        for (unsigned k = 0; k < count; k++) {
            unsigned which = (k + 2) % 3;
            if (k && !which) slot = slot_at(p, first[i] + 1 + (k - 1) / 3);
            uint64_t value = word_of(slot, k ? word_in_more[which] : 3);
            uint8_t kind = k < 16 ? kinds >> 4 * k & 0xF : 0;
            if (kind == XPR_ARG_TEXT) {
                if (value < to.text_ids)
                    to.text_used[value] = 1;
                else
                    to.odd_texts++;
            }
            to.key_used[keys[k]] = 1;
            to.event[to.count] = (int64_t)i;
            to.key[to.count] = keys[k];
            to.kind[to.count] = kind;
            to.value[to.count++] = (int64_t)value;
        }
    }
    *out = to;
}

/* Row of each id among the used ones. NULL: no memory. */
static uint32_t *rows_of(const uint8_t *used, size_t ids) {
    uint32_t *row_of = malloc((ids + 1) * sizeof *row_of), rows = 0;
    for (size_t i = 0; row_of && i < ids; i++) {
        row_of[i] = rows;
        rows += used[i];
    }
    return row_of;
}

static int number(struct xpr_shard_args *out) {
    uint32_t *keys = rows_of(out->key_used, out->key_ids), *texts = rows_of(out->text_used, out->text_ids);
    int failed = keys && texts ? 0 : -1;
    for (size_t i = 0; !failed && i < out->count; i++) {
        out->key[i] = keys[out->key[i]];
        if (out->kind[i] == XPR_ARG_TEXT && !out->odd_texts) out->value[i] = texts[out->value[i]];
    }
    free(keys);
    free(texts);
    return failed;
}

void xpr_shard_args_free(struct xpr_shard_args *a) {
    xpr_column_free(a->event);
    xpr_column_free(a->key);
    xpr_column_free(a->kind);
    xpr_column_free(a->value);
    xpr_column_free(a->key_used);
    xpr_column_free(a->text_used);
    memset(a, 0, sizeof *a);
}

int xpr_decode_shard_args(const struct xpr_slot_run *runs, size_t run_count, const uint32_t *first, size_t events,
                          const struct xpr_arg_schemas *schemas, size_t text_ids, struct xpr_shard_args *out) {
    *out = (struct xpr_shard_args){.key_ids = schemas->key_ids, .text_ids = text_ids};
    struct place place = {.runs = runs, .begins = calloc(run_count + 2, sizeof *place.begins), .run_count = run_count};
    if (!place.begins) return -1;
    for (size_t r = 0; r < run_count; r++) place.begins[r + 1] = place.begins[r] + runs[r].slots;
    size_t count = run_count ? count_all(&place, first, events, schemas, out) : 0;
    out->event = xpr_new_column(count + 1, sizeof *out->event);
    out->key = xpr_new_column(count + 1, sizeof *out->key);
    out->kind = xpr_new_column(count + 1, 1);
    out->value = xpr_new_column(count + 1, sizeof *out->value);
    out->key_used = calloc(schemas->key_ids + 1, 1);
    out->text_used = calloc(text_ids + 1, 1);
    int failed = -1;
    if (out->event && out->key && out->kind && out->value && out->key_used && out->text_used) {
        if (count) fill(&place, first, events, schemas, out);
        failed = number(out);
    }
    free(place.begins);
    if (failed) xpr_shard_args_free(out);
    return failed;
}
