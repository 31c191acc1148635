/* Sampled stacks: interned once, bounded, counted past the bounds, and in the shard in an order that a reader can follow. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "recorder/recorder.h"
#include "recorder/samples.h"
#include "tests/check.h"

static char path[4096];

static void drop_taken(void) {
    struct xpr_bytes runs[3];
    xpr_samples_take(&runs[0], &runs[1], &runs[2]);
    for (int i = 0; i < 3; i++) xpr_bytes_free(&runs[i]);
}

static void add(uint32_t stack) {
    struct xpr_sample_record sample = {.tick = xpr_clock_now(), .os_tid = 7, .stack = stack, .flags = XPR_SAMPLE_ON_CPU};
    xpr_add_sample(&sample);
}

static void a_closed_table_takes_nothing(void) {
    xpr_samples_reset();
    CHECK(xpr_intern_frame(2, 3, 4) == 0);
    uint32_t frames[2] = {1, 2};
    CHECK(xpr_intern_stack(frames, 2) == 0);
    add(1);
    struct xpr_sample_counts counts = xpr_samples_counts();
    CHECK(counts.added == 0 && counts.more_frames == 0 && counts.more_stacks == 0);
}

static void equal_stacks_have_one_id(void) {
    xpr_samples_reset();
    CHECK(xpr_samples_open() == 0 && xpr_samples_open() == 0);
    uint32_t inner = xpr_intern_frame(2, 3, 10), outer = xpr_intern_frame(2, 4, 20);
    CHECK(inner == 1 && outer == 2 && xpr_intern_frame(2, 3, 10) == inner);
    CHECK(xpr_intern_frame(2, 3, 11) == 3 && xpr_intern_frame(3, 2, 10) == 4);
    uint32_t both[2] = {inner, outer}, turned[2] = {outer, inner};
    uint32_t id = xpr_intern_stack(both, 2);
    CHECK(id == 1 && xpr_intern_stack(both, 2) == id);
    CHECK(xpr_intern_stack(turned, 2) != id && xpr_intern_stack(both, 1) != id && xpr_intern_stack(both, 0) == 0);

    struct xpr_bytes frames, stacks, samples;
    add(id);
    xpr_samples_take(&frames, &stacks, &samples);
    CHECK(frames.used == 4 * sizeof(struct xpr_frame_record) && samples.used == sizeof(struct xpr_sample_record));
    const struct xpr_stack_record *first = (const void *)stacks.data;
    CHECK(first->id == 1 && first->count == 2 && memcmp(first + 1, both, sizeof both) == 0);
    xpr_bytes_free(&frames);
    xpr_bytes_free(&stacks);
    xpr_bytes_free(&samples);
    xpr_samples_take(&frames, &stacks, &samples);
    CHECK(!frames.used && !stacks.used && !samples.used);
    CHECK(xpr_intern_stack(both, 2) == id);
    xpr_samples_clear();
}

static void limits_hold_and_are_counted(void) {
    xpr_samples_reset();
    CHECK(xpr_samples_open() == 0);
    uint32_t frames[XPR_MAX_STACK_DEPTH + 1];
    for (uint32_t i = 0; i < XPR_MAX_FRAMES + 5; i++) CHECK(xpr_intern_frame(2, 3, i) == (i < XPR_MAX_FRAMES ? i + 1 : 0));
    for (uint32_t i = 0; i < XPR_MAX_STACKS + 3; i++) {
        for (uint32_t k = 0; k <= XPR_MAX_STACK_DEPTH; k++) frames[k] = (i * 31 + k) % XPR_MAX_FRAMES;
        frames[0] = i;
        CHECK(xpr_intern_stack(frames, XPR_MAX_STACK_DEPTH + 1) == (i < XPR_MAX_STACKS ? i + 1 : 0));
    }
    for (int i = 0; i < XPR_MAX_WAITING_SAMPLES + 9; i++) add(1);
    struct xpr_sample_counts counts = xpr_samples_counts();
    CHECK(counts.more_frames == 5 && counts.more_stacks == 3 && counts.dropped == 9);
    CHECK(counts.added == XPR_MAX_WAITING_SAMPLES + 9);
    drop_taken();
    xpr_samples_clear();
}

/* What a finished shard holds of samples, checked chunk by chunk. */
struct found {
    uint64_t samples;
    struct xpr_sampler_record totals;
    bool has_totals;
};

static struct found read_shard(void) {
    struct found found = {0};
    FILE *file = fopen(path, "rb");
    CHECK(file);
    fseek(file, sizeof(struct xpr_shard_header), SEEK_SET);
    struct xpr_chunk_header chunk;
    uint64_t frames = 0, stacks = 0;
    while (fread(&chunk, sizeof chunk, 1, file) == 1) {
        char *body = malloc(chunk.bytes + 1);
        CHECK(fread(body, 1, chunk.bytes, file) == chunk.bytes);
        if (chunk.type == XPR_CHUNK_FRAMES) frames += chunk.bytes / sizeof(struct xpr_frame_record);
        if (chunk.type == XPR_CHUNK_STACKS) {
            for (uint64_t at = 0; at < chunk.bytes; stacks++) {
                const struct xpr_stack_record *record = (const void *)(body + at);
                const uint32_t *members = (const void *)(record + 1);
                for (uint32_t i = 0; i < record->count; i++) CHECK(members[i] <= frames);
                at += sizeof *record + ((record->count * sizeof *members + 7) & ~(size_t)7);
            }
        }
        if (chunk.type == XPR_CHUNK_SAMPLES) {
            const struct xpr_sample_record *sample = (const void *)body;
            for (uint64_t i = 0; i < chunk.bytes / sizeof *sample; i++) CHECK(sample[i].stack && sample[i].stack <= stacks);
            found.samples += chunk.bytes / sizeof *sample;
        }
        if (chunk.type == XPR_CHUNK_SAMPLER) {
            memcpy(&found.totals, body, sizeof found.totals);
            found.has_totals = true;
        }
        free(body);
    }
    fclose(file);
    return found;
}

static void record_samples(uint64_t budget_bytes, uint32_t count) {
    struct xpr_report report;
    CHECK(xpr_recorder_start(path, budget_bytes, 4096) == 0);
    CHECK(xpr_samples_open() == 0);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t frames[3];
        for (uint32_t k = 0; k < 3; k++) frames[k] = xpr_intern_frame(2, 3 + k, i);
        add(xpr_intern_stack(frames, 3));
        if (i % 500 == 499) usleep(60000);
    }
    CHECK(xpr_recorder_off() != 0);
    xpr_recorder_finish(30000000000, 0, 0, &report);
    CHECK(report.finished);
}

static void a_shard_holds_all_of_them(void) {
    record_samples(1 << 20, 2000);
    struct found found = read_shard();
    CHECK(found.samples == 2000 && found.has_totals && found.totals.written == 2000 && found.totals.dropped == 0);
}

static void past_the_budget_they_are_counted(void) {
    record_samples(1 << 16, 2000);
    struct found found = read_shard();
    CHECK(found.samples < 2000 && found.has_totals);
    CHECK(found.totals.written == found.samples && found.totals.written + found.totals.dropped == 2000);
}

static void without_samples_nothing_tells_of_them(void) {
    record_samples(1 << 20, 0);
    struct found found = read_shard();
    CHECK(found.samples == 0 && !found.has_totals);
}

int main(void) {
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/test_samples_%d.xpr", folder ? folder : "/tmp", (int)getpid());
    a_closed_table_takes_nothing();
    equal_stacks_have_one_id();
    limits_hold_and_are_counted();
    a_shard_holds_all_of_them();
    past_the_budget_they_are_counted();
    without_samples_nothing_tells_of_them();
    unlink(path);
    return 0;
}
