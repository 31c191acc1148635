/* The recorder: nothing is lost or counted twice, whatever happens to threads, the file or the process. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "recorder/drain.h"
#include "recorder/recorder.h"
#include "tests/check.h"

enum { MAX_THREADS = 512 };

static char path[4096];
static const int64_t LONG_NS = 30000000000;

/* What a shard holds: events per thread, in order. */
struct contents {
    uint64_t events, open, clock_samples, threads, strings;
    uint64_t last_value[MAX_THREADS]; /* values of a thread's events must rise by one */
    uint64_t per_thread[MAX_THREADS];
    bool ended;
    struct xpr_end_record end;
};

static uint64_t checksum_of(const uint8_t *bytes, size_t n, size_t own) {
    uint64_t a = 0, b = 0;
    for (size_t i = 0; i < n; i += 8) {
        uint64_t w;
        memcpy(&w, bytes + i, 8);
        if (i == own) w = 0;
        a += w;
        b += a;
    }
    return a ^ (b << 32 | b >> 32);
}

static void read_events(struct contents *c, const struct xpr_chunk_header *chunk) {
    const struct xpr_event *slots = (const void *)(chunk + 1);
    size_t n = chunk->bytes / sizeof *slots;
    CHECK(c->clock_samples >= 2 && chunk->thread < c->threads);
    for (size_t i = 0; i < n;) {
        unsigned used = slots[i].flags & XPR_EVENT_SLOTS;
        CHECK(used >= 1 && i + used <= n && slots[i].kind != XPR_KIND_MORE);
        for (unsigned k = 1; k < used; k++) {
            struct xpr_more more;
            memcpy(&more, &slots[i + k], sizeof more);
            CHECK(more.kind == XPR_KIND_MORE && more.index == k - 1 && more.value_c == slots[i].value + k);
        }
        if (slots[i].duration == XPR_DURATION_OPEN) {
            c->open++;
        } else {
            CHECK(c->per_thread[chunk->thread] == 0 || slots[i].value > c->last_value[chunk->thread]);
            c->last_value[chunk->thread] = slots[i].value;
            c->per_thread[chunk->thread]++;
        }
        c->events++;
        i += used;
    }
}

static void read_shard(struct contents *c) {
    memset(c, 0, sizeof *c);
    FILE *file = fopen(path, "rb");
    CHECK(file);
    struct stat state;
    CHECK(fstat(fileno(file), &state) == 0);
    size_t size = (size_t)state.st_size;
    uint8_t *bytes = malloc(size);
    CHECK(bytes && fread(bytes, 1, size, file) == size);
    fclose(file);
    const struct xpr_shard_header *header = (const void *)bytes;
    CHECK(memcmp(header->magic, XPR_SHARD_MAGIC, 8) == 0 && header->version == XPR_SHARD_VERSION);
    CHECK(header->checksum == checksum_of(bytes, sizeof *header, offsetof(struct xpr_shard_header, checksum)));
    uint32_t sequence = 0;
    for (size_t at = sizeof *header; at < size;) {
        const struct xpr_chunk_header *chunk = (const void *)(bytes + at);
        CHECK(chunk->magic == XPR_CHUNK_MAGIC && chunk->sequence == sequence++ && !c->ended);
        size_t all = sizeof *chunk + chunk->bytes;
        CHECK(at + all <= size);
        CHECK(chunk->checksum == checksum_of(bytes + at, all, offsetof(struct xpr_chunk_header, checksum)));
        if (chunk->type == XPR_CHUNK_EVENTS) read_events(c, chunk);
        if (chunk->type == XPR_CHUNK_CLOCK) c->clock_samples++;
        if (chunk->type == XPR_CHUNK_STRINGS) c->strings++;
        if (chunk->type == XPR_CHUNK_THREADS) {
            for (size_t i = 0; i < chunk->bytes;) {
                const struct xpr_thread_record *t = (const void *)((const uint8_t *)(chunk + 1) + i);
                CHECK(t->index < MAX_THREADS && t->os_tid != 0);
                c->threads++;
                i += sizeof *t + ((t->bytes + 7) & ~7u);
            }
        }
        if (chunk->type == XPR_CHUNK_END) {
            c->ended = true;
            memcpy(&c->end, chunk + 1, sizeof c->end);
        }
        at += all;
    }
    free(bytes);
}

/* One event whose `slots` slots carry its number. */
static bool append(struct xpr_log *log, uint32_t name, uint64_t number, unsigned slots) {
    struct xpr_event event[XPR_MAX_SLOTS];
    event[0] = (struct xpr_event){.start = xpr_clock_now(), .duration = 1, .name = name, .kind = 1, .flags = (uint8_t)slots};
    event[0].value = number;
    for (unsigned k = 1; k < slots; k++) {
        struct xpr_more more = {.index = k - 1, .kind = XPR_KIND_MORE, .value_c = number + k};
        memcpy(&event[k], &more, sizeof more);
    }
    return xpr_log_append(log, event, slots);
}

struct work {
    uint32_t generation;
    uint64_t count;
    unsigned slots;
    uint64_t kept, dropped;
};

static void *record_many(void *argument) {
    struct work *w = argument;
    struct xpr_log *log = xpr_log_begin(w->generation, "a worker");
    CHECK(log && log == xpr_log_here(w->generation));
    uint32_t name = xpr_intern("work", 4, XPR_USE_NAME, NULL);
    for (uint64_t i = 0; i < w->count; i++) {
        if (append(log, name, i, 1 + (unsigned)(i % w->slots)))
            w->kept++;
        else
            w->dropped++;
    }
    return NULL;
}

static struct xpr_report stop(void) {
    struct xpr_report report;
    CHECK(xpr_recorder_off() != 0);
    xpr_recorder_finish(LONG_NS, 0, 0, &report);
    CHECK(report.finished && !report.recording);
    return report;
}

static void every_event_of_every_thread(void) {
    enum { THREADS = 6, EVENTS = 20000 };
    CHECK(xpr_recorder_start(path, 1 << 30, 1 << 20) == 0);
    struct work work[THREADS] = {0};
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        work[i] = (struct work){.generation = xpr_recording(), .count = EVENTS, .slots = XPR_MAX_SLOTS};
        CHECK(pthread_create(&threads[i], NULL, record_many, &work[i]) == 0);
    }
    uint64_t kept = 0, dropped = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        kept += work[i].kept;
        dropped += work[i].dropped;
    }
    struct xpr_report r = stop();
    CHECK(kept + dropped == THREADS * EVENTS);
    CHECK(r.accepted == kept && r.dropped_ring == dropped && r.written == kept && r.threads == THREADS);
    struct contents c;
    read_shard(&c);
    CHECK(c.ended && c.events == kept && c.end.written == kept && c.end.dropped_ring == dropped);
}

static void threads_that_end_at_once(void) {
    enum { THREADS = 300 };
    CHECK(xpr_recorder_start(path, 1 << 30, 4 << 20) == 0);
    for (int i = 0; i < THREADS; i++) {
        struct work work = {.generation = xpr_recording(), .count = 10, .slots = 1};
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, record_many, &work) == 0);
        pthread_join(thread, NULL);
    }
    struct xpr_report r = stop();
    CHECK(r.written == THREADS * 10 && r.threads == THREADS);
    struct contents c;
    read_shard(&c);
    CHECK(c.threads == THREADS);
    for (int i = 0; i < THREADS; i++) CHECK(c.per_thread[i] == 10);
}

static void a_small_budget(void) {
    enum { BUDGET = 20000 };
    CHECK(xpr_recorder_start(path, BUDGET, 1 << 20) == 0);
    struct work work = {.generation = xpr_recording(), .count = 5000, .slots = 3};
    record_many(&work);
    struct xpr_report r = stop();
    CHECK(r.dropped_budget > 0 && r.written > 0 && r.written + r.dropped_budget + r.dropped_ring == 5000);
    struct contents c;
    read_shard(&c);
    CHECK(c.ended && c.events == r.written && c.per_thread[0] == c.last_value[0] + 1); /* the first ones, no holes */
    CHECK(r.bytes < BUDGET + 1024);
}

static void a_full_ring(void) {
    CHECK(xpr_recorder_start(path, 1 << 30, 1) == 0); /* rounded up to 32 slots */
    struct work work = {.generation = xpr_recording(), .count = 100000, .slots = 2};
    record_many(&work);
    struct xpr_report r = stop();
    CHECK(r.dropped_ring > 0 && r.written + r.dropped_ring == 100000 && r.dropped_ring == work.dropped);
    struct contents c;
    read_shard(&c);
    CHECK(c.events == r.written);
}

static void spans_open_at_the_stop(void) {
    CHECK(xpr_recorder_start(path, 1 << 30, 1 << 16) == 0);
    struct xpr_log *log = xpr_log_begin(xpr_recording(), NULL);
    uint32_t name = xpr_intern("open", 4, XPR_USE_NAME, NULL);
    CHECK(append(log, name, 0, 1));
    uint32_t generation = xpr_recorder_off();
    CHECK(generation && xpr_log_begin(xpr_recording(), NULL) == NULL);
    struct xpr_event open = {.start = 1, .duration = XPR_DURATION_OPEN, .name = name, .kind = 1, .flags = 1};
    xpr_recorder_add_open(log->index, &open, 1);
    struct xpr_report r;
    xpr_recorder_finish(LONG_NS, 3, 4, &r);
    CHECK(r.accepted == 2 && r.written == 2);
    struct contents c;
    read_shard(&c);
    CHECK(c.open == 1 && c.events == 2 && c.end.reentered == 3 && c.end.hook_errors == 4);
}

static void starts_that_fail(void) {
    CHECK(xpr_recorder_start("/no such folder/x.xpr", 1 << 30, 1 << 20) == ENOENT);
    CHECK(xpr_recorder_start("/dev/full", 1 << 30, 1 << 20) == ENOSPC);
    CHECK(xpr_recording() == 0 && xpr_recorder_off() == 0);
    CHECK(xpr_recorder_start(path, 1 << 30, 1 << 20) == 0);
    CHECK(xpr_recorder_start(path, 1 << 30, 1 << 20) == EBUSY);
    stop();
}

static void a_file_that_cannot_grow(void) {
    struct rlimit before, limit;
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    limit = before;
    limit.rlim_cur = 4096;
    CHECK(xpr_recorder_start(path, 1 << 30, 1 << 20) == 0);
    struct work work = {.generation = xpr_recording(), .count = 10, .slots = 1};
    record_many(&work);
    usleep(200000);
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    struct xpr_log *log = xpr_log_here(work.generation);
    uint32_t name = xpr_intern("a name of the lost time", 23, XPR_USE_NAME, NULL);
    for (uint64_t i = 10; i < 2010; i++) CHECK(append(log, name, i, 1));
    usleep(200000);
    struct xpr_report during;
    xpr_recorder_report(&during);
    CHECK(during.recording && during.last_errno == EFBIG && during.dropped_error == 2000);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    usleep(1200000); /* writing rests for a second after an error */
    for (uint64_t i = 2010; i < 2015; i++) CHECK(append(log, name, i, 1));
    struct xpr_report r = stop();
    CHECK(r.written == 15 && r.dropped_error == 2000 && r.accepted == 2015);
    struct contents c;
    read_shard(&c); /* whole again: the failed chunk was cut off */
    CHECK(c.ended && c.events == 15 && c.end.write_errors > 0 && c.end.last_errno == EFBIG);
}

static void a_folder_that_is_removed(void) {
    char folder[] = "/tmp/recorder_gone_XXXXXX";
    CHECK(mkdtemp(folder));
    char file[128], rings[136];
    snprintf(file, sizeof file, "%s/x.xpr", folder);
    snprintf(rings, sizeof rings, "%s.rings", file);
    CHECK(xpr_recorder_start(file, 1 << 30, 1 << 20) == 0);
    CHECK(unlink(file) == 0 && (unlink(rings) == 0 || errno == ENOENT) && rmdir(folder) == 0);
    struct work work = {.generation = xpr_recording(), .count = 10, .slots = 1};
    record_many(&work);
    struct xpr_report r = stop();
    CHECK(r.removed && r.written == 10);
}

/* The descriptor of the open shard, found as a program that closes everything would find it. */
static int shard_descriptor(void) {
    for (int fd = 0; fd < 256; fd++) {
        char link[64], target[4096];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, target, sizeof target - 1);
        if (n < 0) continue;
        target[n] = 0;
        if (strcmp(target, path) == 0) return fd;
    }
    return -1;
}

static void a_descriptor_that_the_program_takes_away(void) {
    CHECK(xpr_recorder_start(path, 1 << 30, 1 << 20) == 0);
    int fd = shard_descriptor();
    CHECK(fd > 2);
    char other[4200];
    snprintf(other, sizeof other, "%s.other", path);
    int victim = open(other, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(victim >= 0 && write(victim, "precious", 8) == 8 && dup2(victim, fd) == fd);
    struct work work = {.generation = xpr_recording(), .count = 10, .slots = 1};
    record_many(&work);
    struct xpr_report r = stop();
    CHECK(r.last_errno == EBADF && r.written == 0 && r.dropped_error == 10);
    struct stat state;
    CHECK(fstat(fd, &state) == 0 && state.st_size == 8); /* untouched, and still open */
    close(fd);
    close(victim);
    unlink(other);
}

static void a_program_without_standard_streams(void) {
    int kept = fcntl(0, F_DUPFD, 100);
    CHECK(kept >= 100);
    close(0);
    CHECK(xpr_recorder_start(path, 1 << 30, 1 << 20) == 0);
    CHECK(shard_descriptor() > 2);
    stop();
    CHECK(dup2(kept, 0) == 0);
    close(kept);
}

static void a_forked_child(void) {
    CHECK(xpr_recorder_start(path, 1 << 30, 1 << 20) == 0);
    struct work work = {.generation = xpr_recording(), .count = 100, .slots = 2};
    record_many(&work);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(xpr_recording() == 0 && xpr_log_here(work.generation) == NULL);
        CHECK(xpr_log_begin(work.generation, NULL) == NULL && xpr_recorder_off() == 0);
        struct xpr_report r;
        xpr_recorder_finish(LONG_NS, 0, 0, &r); /* nothing to wait for */
        strcat(path, ".child");
        CHECK(xpr_recorder_start(path, 1 << 30, 1 << 20) == 0);
        struct work own = {.generation = xpr_recording(), .count = 7, .slots = 1};
        record_many(&own);
        r = stop();
        struct contents c;
        read_shard(&c);
        CHECK(r.written == 7 && c.events == 7 && unlink(path) == 0);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    struct xpr_log *log = xpr_log_here(work.generation);
    CHECK(log && append(log, 0, 100, 1));
    struct xpr_report r = stop();
    struct contents c;
    read_shard(&c);
    CHECK(r.written == 101 && c.ended && c.events == 101);
}

static void again_and_again(void) {
    for (int i = 0; i < 30; i++) {
        CHECK(xpr_recorder_start(path, 1 << 30, (uint64_t)1 << (12 + i % 4)) == 0);
        struct work work = {.generation = xpr_recording(), .count = 50, .slots = 1};
        record_many(&work);
        struct xpr_report r = stop();
        CHECK(r.written == 50 && r.threads == 1);
    }
    struct xpr_report last;
    xpr_recorder_report(&last);
    CHECK(last.written == 50 && last.finished);
}

static void *keep_appending(void *argument) {
    atomic_bool *end = argument;
    while (!atomic_load(end)) {
        uint32_t generation = xpr_recording();
        struct xpr_log *log = generation ? xpr_log_here(generation) : NULL;
        if (generation && !log) log = xpr_log_begin(generation, NULL);
        if (log) append(log, xpr_intern("racing", 6, XPR_USE_NAME, NULL), xpr_clock_now(), 2);
    }
    return NULL;
}

static void starts_and_stops_beside_threads_that_record(void) {
    atomic_bool end = false;
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, keep_appending, &end) == 0);
    for (int i = 0; i < 10; i++) {
        CHECK(xpr_recorder_start(path, 1 << 24, 1 << 14) == 0);
        usleep(5000);
        struct xpr_report r = stop();
        struct contents c;
        read_shard(&c);
        CHECK(c.ended && c.events == r.written);
    }
    atomic_store(&end, true);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
}

/* More threads at once than the rings' file has room for: the others record into memory, and nothing else changes. */
static void more_threads_than_the_file_has_room_for(void) {
    enum { THREADS = 6, RING = 64 << 20 };
    CHECK(xpr_recorder_start(path, 1 << 30, RING) == 0);
    struct work work[THREADS] = {0};
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        work[i] = (struct work){.generation = xpr_recording(), .count = 2000, .slots = 1};
        CHECK(pthread_create(&threads[i], NULL, record_many, &work[i]) == 0);
    }
    struct xpr_report during;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    xpr_recorder_report(&during);
    struct xpr_report r = stop();
    CHECK(r.written == THREADS * 2000 && (during.rings_in_memory == 0 || during.rings_errno != 0));
    struct contents c;
    read_shard(&c);
    CHECK(c.ended && c.events == r.written);
}

static void open_spans_in_any_order(void) {
    CHECK(xpr_recorder_start(path, 1 << 30, 1 << 16) == 0);
    struct xpr_log *log = xpr_log_begin(xpr_recording(), NULL);
    for (uint64_t i = 1; i <= 40; i++) xpr_log_enter(log, i, xpr_event_word(2, 1), 0);
    CHECK(atomic_load(&log->open->count) == 32 && log->open->more == 8 && log->open->spans[31].start == 32);
    for (uint64_t i = 40; i > 32; i--) xpr_log_leave(log, i);
    xpr_log_leave(log, 99); /* not entered here */
    CHECK(atomic_load(&log->open->count) == 32 && log->open->more == 0);
    xpr_log_leave(log, 3); /* of another task: not the last one */
    CHECK(atomic_load(&log->open->count) == 31 && log->open->spans[2].start == 4 && log->open->spans[30].start == 32);
    uint32_t generation = xpr_recording();
    xpr_log_left_elsewhere(log->index, generation, 5);
    xpr_log_left_elsewhere(log->index + 1, generation, 6); /* no such thread */
    xpr_log_left_elsewhere(log->index, generation - 1, 7); /* of another capture */
    struct xpr_event spans[XPR_MAX_OPEN_SPANS];
    uint32_t count;
    uint64_t head;
    CHECK(xpr_open_spans_of(log, spans, &count, &head) && count == 30 && spans[3].start == 6);
    CHECK(atomic_load(&log->open->count) == 31); /* the thread itself has not come by */
    CHECK(xpr_log_enter(log, 41, xpr_event_word(2, 1), 0) && atomic_load(&log->open->count) == 32);
    CHECK(xpr_open_spans_of(log, spans, &count, &head) && count == 31 && spans[30].start == 41);
    CHECK(xpr_log_enter(log, 42, xpr_event_word(2, 1), 0)); /* needs the place */
    CHECK(atomic_load(&log->open->count) == 32 && log->open->spans[3].start == 6 && log->open->spans[31].start == 42);
    xpr_log_left_elsewhere(log->index, generation, 42);
    xpr_log_leave(log, 41); /* the last one of its own */
    CHECK(atomic_load(&log->open->count) == 30 && log->open->spans[29].start == 32);
    xpr_log_enter(log, 43, xpr_event_word(2, 1) | (uint64_t)1 << 48, 5);
    CHECK(xpr_open_spans_of(log, spans, &count, &head) && count == 31 && spans[30].value == 5);
    xpr_log_leave(log, 43);
    xpr_log_enter(log, 44, xpr_event_word(2, 1), 6);
    CHECK(xpr_open_spans_of(log, spans, &count, &head) && count == 31 && spans[30].start == 44 && spans[30].value == 0);
    struct xpr_report r = stop();
    struct contents c;
    read_shard(&c);
    CHECK(c.open == 31 && c.events == 31 && r.written == 31 && r.accepted == 31);
}

/* A thread that others leave more spans of than can be told to it: nothing is said of what it does, rather than something wrong. */
static void more_spans_left_elsewhere_than_fit(void) {
    CHECK(xpr_recorder_start(path, 1 << 30, 1 << 16) == 0);
    struct xpr_log *log = xpr_log_begin(xpr_recording(), NULL);
    struct xpr_event spans[XPR_MAX_OPEN_SPANS];
    uint32_t count;
    uint64_t head;
    for (uint64_t i = 1; i <= XPR_MAX_LEFT + 1; i++) xpr_log_enter(log, i, xpr_event_word(2, 1), 0);
    for (uint64_t i = 1; i <= XPR_MAX_LEFT; i++) xpr_log_left_elsewhere(log->index, xpr_recording(), i);
    CHECK(xpr_open_spans_of(log, spans, &count, &head) && count == 0);
    xpr_log_left_elsewhere(log->index, xpr_recording(), XPR_MAX_LEFT + 1);
    CHECK(xpr_open_spans_of(log, spans, &count, &head) && count == 0);
    xpr_log_enter(log, 100, xpr_event_word(2, 1), 0);
    CHECK(atomic_load(&log->open->count) == 1 && log->open->spans[0].start == 100);
    xpr_log_leave(log, 100);
    stop();
}

int main(void) {
    signal(SIGXFSZ, SIG_IGN);
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/test_recorder_%d.xpr", folder ? folder : "/tmp", (int)getpid());
    every_event_of_every_thread();
    threads_that_end_at_once();
    a_small_budget();
    a_full_ring();
    spans_open_at_the_stop();
    starts_that_fail();
    a_file_that_cannot_grow();
    a_folder_that_is_removed();
    a_descriptor_that_the_program_takes_away();
    a_program_without_standard_streams();
    more_threads_than_the_file_has_room_for();
    open_spans_in_any_order();
    more_spans_left_elsewhere_than_fit();
    a_forked_child();
    again_and_again();
    starts_and_stops_beside_threads_that_record();
    unlink(path);
    return 0;
}
