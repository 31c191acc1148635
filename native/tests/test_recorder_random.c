/* Threads that begin, end, hand spans to one another and fork, at random from a seed, beside captures that start and stop:
 * every event is in the file or counted, and the open spans are exactly those that were not left. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "decode/shard.h"
#include "recorder/recorder.h"

#define CHECK(claim)                                                                              \
    do {                                                                                          \
        if (!(claim)) {                                                                           \
            fprintf(stderr, "%s:%d: seed %llu: not so: %s\n", __FILE__, __LINE__, seed, #claim); \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

/* The stop puts memory in the place of a file that a late thread still stores to: TSan takes mmap for a store of its own. */
#ifdef __SANITIZE_THREAD__
enum { UNDER_TSAN = 1 };
#else
enum { UNDER_TSAN = 0 };
#endif

enum { WORKERS = 4, MOST_OPEN = 20, STEPS = 400, MAX_THREADS = 4096 };

static unsigned long long seed = 1;
static char path[4096];
static _Atomic uint64_t next_start = 1;
static atomic_bool parked;
static atomic_int settled;

struct worker;
struct span {
    uint64_t start;
    uint32_t generation, thread;
    struct worker *of;
};

struct worker {
    pthread_t id;
    uint64_t state; /* of its dice */
    struct span open[MOST_OPEN];
    unsigned count;
    uint64_t appended; /* in this capture by all the threads that it was */
    _Atomic int noted; /* spans that it entered and nobody left */
};

static struct worker workers[WORKERS];
static pthread_mutex_t handing = PTHREAD_MUTEX_INITIALIZER;
static struct span handed[WORKERS];
static unsigned handed_count;

static unsigned roll(uint64_t *state, unsigned sides) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (unsigned)(*state >> 33) % sides;
}

static void append(struct worker *w, struct xpr_log *log, uint64_t start, unsigned slots) {
    struct xpr_event event[3] = {{.start = start, .duration = 1, .name = 0, .kind = 1, .flags = (uint8_t)slots}};
    for (unsigned k = 1; k < slots; k++) {
        struct xpr_more more = {.index = k - 1, .kind = XPR_KIND_MORE};
        memcpy(&event[k], &more, sizeof more);
    }
    xpr_log_append(log, event, slots);
    w->appended++;
}

static void hand_over(struct worker *w) {
    pthread_mutex_lock(&handing);
    if (w->count && handed_count < WORKERS) handed[handed_count++] = w->open[--w->count];
    pthread_mutex_unlock(&handing);
}

/* Leaves a span that another thread entered, as a task that moves on does. */
static void take_over(struct worker *w, struct xpr_log *log) {
    pthread_mutex_lock(&handing);
    struct span span = {0};
    if (handed_count) span = handed[--handed_count];
    pthread_mutex_unlock(&handing);
    if (!span.start) return;
    if (log->index != span.thread) xpr_log_left_elsewhere(span.thread, span.generation, span.start);
    append(w, log, span.start, 1);
    if (log->index == span.thread) xpr_log_leave(log, span.start);
    atomic_fetch_sub(&span.of->noted, 1);
}

static void fork_here(void) {
    if (UNDER_TSAN) return; /* gcc's dies of it */
    pid_t child = fork();
    if (child == 0) _exit(xpr_recording() == 0 && xpr_this_log == NULL ? 0 : 1);
    int status = 1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static void *work(void *argument) {
    struct worker *w = argument;
    uint32_t generation = xpr_recording();
    struct xpr_log *log = xpr_log_begin(generation, NULL);
    for (unsigned i = 0; log && i < STEPS && generation == xpr_recording(); i++) {
        unsigned what = roll(&w->state, 100);
        if (what < 30 && w->count < MOST_OPEN && atomic_load(&w->noted) < MOST_OPEN) {
            struct span span = {atomic_fetch_add(&next_start, 1), generation, log->index, w};
            xpr_log_enter(log, span.start, xpr_event_word(0, 1), 0);
            w->open[w->count++] = span;
            atomic_fetch_add(&w->noted, 1);
        } else if (what < 60 && w->count) {
            unsigned which = what % 4 ? w->count - 1 : roll(&w->state, w->count);
            append(w, log, w->open[which].start, 1);
            xpr_log_leave(log, w->open[which].start);
            memmove(&w->open[which], &w->open[which + 1], (--w->count - which) * sizeof *w->open);
            atomic_fetch_sub(&w->noted, 1);
        } else if (what < 70) {
            hand_over(w);
        } else if (what < 80) {
            take_over(w, log);
        } else if (what < 98) {
            append(w, log, atomic_fetch_add(&next_start, 1), 1 + what % 3);
        } else if (what < 99) {
            fork_here();
        } else {
            usleep(1000);
        }
    }
    bool ends = roll(&w->state, 2) && !atomic_load(&w->noted);
    atomic_fetch_add(&settled, 1);
    while (!ends && !atomic_load(&parked)) usleep(200); /* open spans stay a living thread's */
    return NULL;
}

static void check_shard(uint64_t events, uint64_t open) {
    FILE *file = fopen(path, "rb");
    CHECK(file && fseek(file, 0, SEEK_END) == 0);
    size_t size = (size_t)ftell(file);
    uint8_t *bytes = malloc(size);
    rewind(file);
    CHECK(bytes && fread(bytes, 1, size, file) == size);
    fclose(file);
    struct xpr_slot_run *runs = malloc(size / sizeof(struct xpr_chunk_header) * sizeof *runs);
    size_t count = 0;
    for (size_t at = sizeof(struct xpr_shard_header); at < size;) {
        struct xpr_chunk_header chunk;
        memcpy(&chunk, bytes + at, sizeof chunk);
        size_t words = (sizeof chunk + chunk.bytes) / 8;
        CHECK(chunk.magic == XPR_CHUNK_MAGIC && at + 8 * words <= size && chunk.thread < MAX_THREADS);
        CHECK(xpr_shard_checksum(bytes + at, words, 3) == chunk.checksum);
        if (chunk.type == XPR_CHUNK_EVENTS)
            runs[count++] = (struct xpr_slot_run){bytes + at + sizeof chunk, chunk.bytes / 32, chunk.thread};
        at += 8 * words;
    }
    uint64_t tick = 0;
    int64_t at_ps = 0;
    double rate = 1000;
    struct xpr_shard_events found;
    CHECK(xpr_decode_shard_events(runs, count, MAX_THREADS, (struct xpr_tick_map){&tick, &at_ps, &rate, 1, 1}, 1, &found) == 0);
    CHECK(found.broken == 0 && found.count == events && (open == UINT64_MAX || found.open == open));
    /* Each span is there once: as it ended, or as open. */
    uint8_t *seen = calloc(atomic_load(&next_start), 1);
    for (size_t i = 0; i < found.count; i++) {
        uint64_t start = (uint64_t)found.start_ps[i] / 1000;
        CHECK(start < atomic_load(&next_start) && !seen[start]++);
    }
    /* Damage costs no more than itself: whatever the bytes, decoding them ends, in bounds. */
    uint64_t dice = seed * 77 + 1;
    xpr_shard_events_free(&found);
    for (unsigned i = 0; i < size / 64; i++) bytes[roll(&dice, (unsigned)size)] ^= (uint8_t)(1 << roll(&dice, 8));
    CHECK(xpr_decode_shard_events(runs, count, MAX_THREADS, (struct xpr_tick_map){&tick, &at_ps, &rate, 1, 1}, 1, &found) == 0);
    xpr_shard_events_free(&found);
    free(seen);
    free(runs);
    free(bytes);
}

static void one_capture(uint64_t *dice) {
    struct xpr_recorder_options options = {
        .budget_bytes = 1 << 30, .ring_bytes = (uint64_t)1024 << roll(dice, 8), .rings_in_memory = UNDER_TSAN || roll(dice, 4) == 0};
    CHECK(xpr_recorder_begin(path, &options) == 0);
    atomic_store(&parked, false);
    atomic_store(&settled, 0);
    handed_count = 0;
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = (struct worker){.state = *dice + (uint64_t)i * 0x9E3779B97F4A7C15u + 1};
        CHECK(pthread_create(&workers[i].id, NULL, work, &workers[i]) == 0);
    }
    /* The stop comes while they record, or once they all are done. */
    bool amid = roll(dice, 2);
    if (amid) usleep(roll(dice, 20000));
    while (!amid && atomic_load(&settled) < WORKERS) usleep(200);
    xpr_recorder_off();
    struct xpr_report r;
    xpr_recorder_finish(30000000000, 0, 0, &r);
    atomic_store(&parked, true);
    uint64_t appended = 0, open = 0;
    for (int i = 0; i < WORKERS; i++) {
        pthread_join(workers[i].id, NULL);
        appended += workers[i].appended;
        open += (uint64_t)atomic_load(&workers[i].noted);
    }
    CHECK(r.finished && r.last_errno == 0 && r.dropped_budget == 0 && r.dropped_error == 0);
    if (!amid) CHECK(r.written == r.accepted && r.written + r.dropped_ring == appended + open);
    check_shard(r.written, amid ? UINT64_MAX : open);
}

int main(int argc, char **argv) {
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/test_recorder_random_%d.xpr", folder ? folder : "/tmp", (int)getpid());
    unsigned long long last = argc > 1 ? strtoull(argv[1], NULL, 10) : 12;
    for (; seed <= last; seed++) {
        uint64_t dice = seed * 0x9E3779B97F4A7C15u;
        one_capture(&dice);
    }
    unlink(path);
    return 0;
}
