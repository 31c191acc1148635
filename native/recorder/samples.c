#include "recorder/samples.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { FRAME_SLOTS = 2 * XPR_MAX_FRAMES, STACK_SLOTS = 2 * XPR_MAX_STACKS };

struct frame {
    uint32_t file, function, line;
};

struct stack {
    uint32_t first, count; /* in `members` */
};

/* The hash tables hold ids, 0: empty. Entry i of `frames` and `stacks` has the id i + 1. */
static struct {
    pthread_mutex_t lock;
    bool open;
    uint32_t *frame_slots, *stack_slots;
    struct frame *frames;
    struct stack *stacks;
    uint32_t frame_count, stack_count;
    struct xpr_bytes members; /* uint32_t frame ids of all stacks */
    struct xpr_bytes new_frames, new_stacks, samples;
    struct xpr_sample_counts counts;
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 29;
}

static void release(void) {
    free(table.frame_slots);
    free(table.stack_slots);
    free(table.frames);
    free(table.stacks);
    table.frame_slots = table.stack_slots = NULL;
    table.frames = NULL;
    table.stacks = NULL;
    table.frame_count = table.stack_count = 0;
    xpr_bytes_free(&table.members);
    xpr_bytes_free(&table.new_frames);
    xpr_bytes_free(&table.new_stacks);
    xpr_bytes_free(&table.samples);
    table.open = false;
}

void xpr_samples_reset(void) {
    pthread_mutex_lock(&table.lock);
    release();
    memset(&table.counts, 0, sizeof table.counts);
    pthread_mutex_unlock(&table.lock);
}

static bool allocate(void) {
    table.frame_slots = calloc(FRAME_SLOTS, sizeof *table.frame_slots);
    table.stack_slots = calloc(STACK_SLOTS, sizeof *table.stack_slots);
    table.frames = malloc(XPR_MAX_FRAMES * sizeof *table.frames);
    table.stacks = malloc(XPR_MAX_STACKS * sizeof *table.stacks);
    if (!table.frame_slots || !table.stack_slots || !table.frames || !table.stacks) release();
    return table.frame_slots != NULL;
}

int xpr_samples_open(void) {
    pthread_mutex_lock(&table.lock);
    if (!table.open) table.open = allocate();
    bool opened = table.open;
    pthread_mutex_unlock(&table.lock);
    return opened ? 0 : ENOMEM;
}

void xpr_samples_clear(void) {
    pthread_mutex_lock(&table.lock);
    release();
    pthread_mutex_unlock(&table.lock);
}

static uint32_t find_frame(const struct frame *wanted) {
    uint64_t hash = mix(mix(mix(0, wanted->file), wanted->function), wanted->line);
    uint32_t *slot = &table.frame_slots[hash % FRAME_SLOTS];
    while (*slot) {
        const struct frame *known = &table.frames[*slot - 1];
        if (known->file == wanted->file && known->function == wanted->function && known->line == wanted->line) return *slot;
        if (++slot == table.frame_slots + FRAME_SLOTS) slot = table.frame_slots;
    }
    struct xpr_frame_record *record =
        table.frame_count < XPR_MAX_FRAMES ? xpr_bytes_add(&table.new_frames, sizeof *record) : NULL;
    if (!record) {
        table.counts.more_frames++;
        return 0;
    }
    table.frames[table.frame_count++] = *wanted;
    *record = (struct xpr_frame_record){table.frame_count, wanted->file, wanted->function, wanted->line};
    return *slot = table.frame_count;
}

uint32_t xpr_intern_frame(uint32_t file, uint32_t function, uint32_t line) {
    struct frame wanted = {file, function, line};
    pthread_mutex_lock(&table.lock);
    uint32_t id = table.open ? find_frame(&wanted) : 0;
    pthread_mutex_unlock(&table.lock);
    return id;
}

static uint32_t find_stack(const uint32_t *frames, uint32_t count) {
    uint64_t hash = count;
    for (uint32_t i = 0; i < count; i++) hash = mix(hash, frames[i]);
    uint32_t *slot = &table.stack_slots[hash % STACK_SLOTS];
    while (*slot) {
        const struct stack *known = &table.stacks[*slot - 1];
        const uint32_t *members = (const uint32_t *)table.members.data + known->first;
        if (known->count == count && memcmp(members, frames, count * sizeof *frames) == 0) return *slot;
        if (++slot == table.stack_slots + STACK_SLOTS) slot = table.stack_slots;
    }
    size_t bytes = count * sizeof *frames, used = table.members.used, records = table.new_stacks.used;
    bool has_room = table.stack_count < XPR_MAX_STACKS;
    uint32_t *kept = has_room ? xpr_bytes_add(&table.members, bytes) : NULL;
    struct xpr_stack_record *record =
        kept ? xpr_bytes_add(&table.new_stacks, sizeof *record + ((bytes + 7) & ~(size_t)7)) : NULL;
    if (!record) {
        table.members.used = used;
        table.new_stacks.used = records;
        table.counts.more_stacks++;
        return 0;
    }
    memcpy(kept, frames, bytes);
    table.stacks[table.stack_count++] = (struct stack){(uint32_t)(used / sizeof *frames), count};
    *record = (struct xpr_stack_record){table.stack_count, count};
    memcpy(record + 1, frames, bytes);
    return *slot = table.stack_count;
}

uint32_t xpr_intern_stack(const uint32_t *frames, uint32_t count) {
    if (!count) return 0;
    pthread_mutex_lock(&table.lock);
    uint32_t id = table.open ? find_stack(frames, count) : 0;
    pthread_mutex_unlock(&table.lock);
    return id;
}

void xpr_add_sample(const struct xpr_sample_record *sample) {
    pthread_mutex_lock(&table.lock);
    if (table.open) {
        bool has_room = table.samples.used < XPR_MAX_WAITING_SAMPLES * sizeof *sample;
        void *place = has_room ? xpr_bytes_add(&table.samples, sizeof *sample) : NULL;
        table.counts.added++;
        if (place)
            memcpy(place, sample, sizeof *sample);
        else
            table.counts.dropped++;
    }
    pthread_mutex_unlock(&table.lock);
}

struct xpr_sample_counts xpr_samples_counts(void) {
    pthread_mutex_lock(&table.lock);
    struct xpr_sample_counts counts = table.counts;
    pthread_mutex_unlock(&table.lock);
    return counts;
}

void xpr_samples_take(struct xpr_bytes *frames, struct xpr_bytes *stacks, struct xpr_bytes *samples) {
    pthread_mutex_lock(&table.lock);
    *frames = table.new_frames;
    *stacks = table.new_stacks;
    *samples = table.samples;
    memset(&table.new_frames, 0, sizeof table.new_frames);
    memset(&table.new_stacks, 0, sizeof table.new_stacks);
    memset(&table.samples, 0, sizeof table.samples);
    pthread_mutex_unlock(&table.lock);
}

void xpr_samples_lock(void) { pthread_mutex_lock(&table.lock); }
void xpr_samples_unlock(void) { pthread_mutex_unlock(&table.lock); }

void xpr_samples_after_fork_child(void) {
    table.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    release();
}
