#define _GNU_SOURCE
#include "recorder/flight.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "recorder/drain.h"

/* --- segments --------------------------------------------------------------------------------------------------- */

static void segment_path(const struct xpr_flight *f, uint64_t number, char *path) {
    snprintf(path, PATH_MAX, "%s.%llu.segment", f->base, (unsigned long long)number);
}

static void close_segment(struct xpr_flight *f) {
    if (f->count) f->segments[f->count - 1].bytes = atomic_load(&f->segment.offset);
    xpr_writer_close(&f->segment);
    f->write_errors += atomic_load(&f->segment.write_errors);
    if (atomic_load(&f->segment.last_errno)) f->last_errno = atomic_load(&f->segment.last_errno);
    f->segment.fd = -1;
}

static void remove_oldest(struct xpr_flight *f) {
    char path[PATH_MAX];
    segment_path(f, f->segments[0].number, path);
    unlink(path);
    f->forgotten += f->segments[0].events;
    memmove(f->segments, f->segments + 1, --f->count * sizeof *f->segments);
}

static int open_segment(struct xpr_capture *c, int64_t now_ns) {
    struct xpr_flight *f = &c->flight;
    if (f->count == XPR_MAX_SEGMENTS) remove_oldest(f);
    char path[PATH_MAX];
    segment_path(f, f->next_number, path);
    int error = xpr_writer_open(&f->segment, path, UINT64_MAX, c->ring_bytes);
    if (error) {
        f->last_errno = error;
        f->write_errors++;
        unlink(path);
        return error;
    }
    struct xpr_report totals;
    pthread_mutex_lock(&c->lock);
    xpr_capture_totals(c, &totals);
    pthread_mutex_unlock(&c->lock);
    f->segments[f->count++] = (struct xpr_segment){
        .number = f->next_number++,
        .dropped_ring = totals.dropped_ring,
        .dropped_budget = totals.dropped_budget,
        .dropped_error = totals.dropped_error,
        .began_ns = now_ns,
    };
    return xpr_drain_clock(c, true) ? 0 : atomic_load(&f->segment.last_errno);
}

int xpr_flight_prepare(struct xpr_capture *c) { return open_segment(c, xpr_clock_read_ns(CLOCK_MONOTONIC)); }

void xpr_flight_turn(struct xpr_capture *c) {
    struct xpr_flight *f = &c->flight;
    int64_t now_ns = xpr_clock_read_ns(CLOCK_MONOTONIC);
    uint64_t budget = c->writer.budget_bytes, bytes = atomic_load(&f->segment.offset);
    bool is_open = f->segment.fd >= 0 && f->count;
    if (is_open && (now_ns - f->segments[f->count - 1].began_ns >= f->window_ns / XPR_SEGMENTS_PER_WINDOW ||
                    bytes >= budget / XPR_SEGMENTS_PER_WINDOW)) {
        close_segment(f);
        is_open = false;
    }
    if (!is_open) open_segment(c, now_ns);
    uint64_t sum = atomic_load(&f->segment.offset);
    for (unsigned i = 0; i + 1 < f->count; i++) sum += f->segments[i].bytes;
    while (f->count > 1 && (sum > budget || f->segments[1].began_ns <= now_ns - f->window_ns)) {
        sum -= f->segments[0].bytes;
        remove_oldest(f);
    }
}

/* Appends the chunks of a file of ours, those of the type `except` left out. False: it could not be read, or `to` not be
 * written; what was appended stays. */
static bool append_chunks(struct xpr_writer *to, const char *path, int except) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    uint8_t *payload = NULL;
    size_t room = 0;
    bool good = true;
    struct xpr_chunk_header chunk;
    for (off_t at = sizeof(struct xpr_shard_header); good; at += (off_t)(sizeof chunk + chunk.bytes)) {
        if (pread(fd, &chunk, sizeof chunk, at) != sizeof chunk || chunk.magic != XPR_CHUNK_MAGIC) break;
        if (chunk.type == except) continue;
        if (chunk.bytes > room) {
            uint8_t *larger = realloc(payload, chunk.bytes);
            if (!larger) {
                good = false;
                break;
            }
            payload = larger;
            room = chunk.bytes;
        }
        for (size_t got = 0; good && got < chunk.bytes;) {
            ssize_t more = pread(fd, payload + got, chunk.bytes - got, at + (off_t)(sizeof chunk + got));
            if (more <= 0 && errno != EINTR) good = false;
            if (more > 0) got += (size_t)more;
        }
        struct xpr_part part = {payload, chunk.bytes};
        good = good && xpr_writer_add(to, chunk.type, chunk.thread, &part, 1, true);
    }
    free(payload);
    close(fd);
    return good;
}

static bool append_segments(const struct xpr_flight *f, struct xpr_writer *to) {
    char path[PATH_MAX];
    bool good = true;
    for (unsigned i = 0; i < f->count; i++) {
        segment_path(f, f->segments[i].number, path);
        if (!append_chunks(to, path, -1)) good = false;
    }
    return good;
}

void xpr_flight_gather(struct xpr_capture *c) {
    close_segment(&c->flight);
    c->writer.budget_bytes = UINT64_MAX;
    append_segments(&c->flight, &c->writer);
}

void xpr_flight_remove(struct xpr_capture *c) {
    char path[PATH_MAX];
    for (unsigned i = 0; i < c->flight.count; i++) {
        segment_path(&c->flight, c->flight.segments[i].number, path);
        unlink(path);
    }
}

void xpr_flight_free(struct xpr_flight *f) {
    if (f->segment.fd >= 0 && f->window_ns) xpr_writer_close(&f->segment);
    char **texts[] = {&f->base, &f->folder, &f->shard_name, &f->run_file_name, &f->head};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        free(*texts[i]);
        *texts[i] = NULL;
    }
}

/* --- snapshots -------------------------------------------------------------------------------------------------- */

static int write_file(const char *path, const char *head, const char *name, const char *about) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return errno;
    int printed = dprintf(fd, "%s, \"snapshot\": {\"name\": \"%s\", \"about\": %s}}\n", head, name, about);
    int error = printed < 0 ? errno : 0;
    if (close(fd) != 0 && !error) error = errno;
    return error;
}

static int make_folder_of(const char *path) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash) *slash = 0;
    return mkdir(folder, 0777) == 0 || errno == EEXIST ? 0 : errno;
}

static bool add_end(struct xpr_capture *c, struct xpr_writer *to, uint64_t events) {
    const struct xpr_segment *oldest = &c->flight.segments[0];
    struct xpr_report totals;
    pthread_mutex_lock(&c->lock);
    xpr_capture_totals(c, &totals);
    pthread_mutex_unlock(&c->lock);
    /* What was lost before the oldest segment is no loss of the snapshot's. */
    totals.written = events;
    totals.dropped_ring -= oldest->dropped_ring;
    totals.dropped_budget -= oldest->dropped_budget;
    totals.dropped_error -= oldest->dropped_error;
    struct xpr_end_record end = xpr_end_of(c, &totals);
    struct xpr_part part = {&end, sizeof end};
    return xpr_writer_add(to, XPR_CHUNK_END, 0, &part, 1, true);
}

/* The spans that threads are in. */
static uint64_t add_open_spans(struct xpr_capture *c, struct xpr_writer *to) {
    struct xpr_bytes events = {0}, threads = {0};
    pthread_mutex_lock(&c->lock);
    for (struct xpr_log *log = c->logs; log; log = log->next) {
        if (atomic_load(&log->generation) != c->generation) continue;
        struct xpr_event spans[XPR_MAX_OPEN_SPANS];
        uint32_t count;
        uint64_t head;
        if (!xpr_open_spans_of(log, spans, &count, &head)) continue;
        for (uint32_t i = 0; i < count; i++) {
            struct xpr_event *event = xpr_bytes_add(&events, sizeof *event);
            uint32_t *thread = event ? xpr_bytes_add(&threads, sizeof *thread) : NULL;
            if (!thread) break;
            *event = spans[i];
            *thread = log->index;
        }
    }
    pthread_mutex_unlock(&c->lock);
    uint64_t written = 0;
    for (size_t i = 0; i < threads.used / sizeof(uint32_t); i++) {
        struct xpr_part part = {(struct xpr_event *)(void *)events.data + i, sizeof(struct xpr_event)};
        written += xpr_writer_add(to, XPR_CHUNK_EVENTS, ((uint32_t *)(void *)threads.data)[i], &part, 1, true);
    }
    xpr_bytes_free(&events);
    xpr_bytes_free(&threads);
    return written;
}

static int write_shard(struct xpr_capture *c, const char *path, struct xpr_snapshot *taken) {
    struct xpr_writer to;
    int error = xpr_writer_open(&to, path, UINT64_MAX, c->ring_bytes);
    if (error) return error;
    /* Losses are totals of the whole recording; the snapshot's own stand at its end. */
    bool good = append_chunks(&to, c->flight.base, XPR_CHUNK_LOSSES) && append_segments(&c->flight, &to);
    taken->events = add_open_spans(c, &to);
    for (unsigned i = 0; i < c->flight.count; i++) taken->events += c->flight.segments[i].events;
    good = good && add_end(c, &to, taken->events);
    taken->bytes = atomic_load(&to.offset);
    xpr_writer_close(&to);
    error = atomic_load(&to.last_errno);
    return error ? error : good ? 0 : EIO;
}

/* The shard first: a folder whose run file is there is complete. */
static int write_snapshot(struct xpr_capture *c, struct xpr_snapshot *taken, const char *folder, const char *shard_name,
                          const char *run_file_name, const char *head) {
    char path[PATH_MAX], temporary[PATH_MAX + 8];
    snprintf(path, sizeof path, "%s/%s", folder, taken->name);
    if (mkdir(path, 0777) != 0 && errno != EEXIST) return errno;
    snprintf(path, sizeof path, "%s/%s/%s", folder, taken->name, shard_name);
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    int error = make_folder_of(path);
    if (!error) error = write_shard(c, temporary, taken);
    if (!error && rename(temporary, path) != 0) error = errno;
    if (error) {
        unlink(temporary);
        return error;
    }
    snprintf(path, sizeof path, "%s/%s/%s", folder, taken->name, run_file_name);
    error = make_folder_of(path);
    return error ? error : write_file(path, head, taken->name, taken->about);
}

static atomic_uint signalled;

void xpr_flight_answer(struct xpr_capture *c) {
    struct xpr_flight *f = &c->flight;
    pthread_mutex_lock(&c->lock);
    if (!f->wanted && f->folder && atomic_exchange(&signalled, 0)) {
        f->signals++;
        if (f->taken >= f->limit) {
            f->refused++;
        } else {
            snprintf(f->request.name, sizeof f->request.name, "signal-%u", f->signals);
            snprintf(f->request.about, sizeof f->request.about, "{\"reason\": \"signal\", \"count\": %u}", f->signals);
            f->wanted = true;
            f->asked++;
        }
    }
    bool wanted = f->wanted && f->folder;
    if (!wanted) {
        pthread_mutex_unlock(&c->lock);
        return;
    }
    struct xpr_snapshot taken = f->request;
    char *folder = strdup(f->folder), *shard_name = strdup(f->shard_name), *run_file_name = strdup(f->run_file_name);
    char *head = strdup(f->head);
    pthread_mutex_unlock(&c->lock);

    xpr_drain_clock(c, true); /* so that even the last events have a rate */
    taken.error = ENOMEM;
    if (folder && shard_name && run_file_name && head)
        taken.error = write_snapshot(c, &taken, folder, shard_name, run_file_name, head);
    free(folder);
    free(shard_name);
    free(run_file_name);
    free(head);

    pthread_mutex_lock(&c->lock);
    f->snapshots[f->taken++] = taken;
    f->wanted = false;
    f->answered++;
    pthread_cond_broadcast(&c->done);
    pthread_mutex_unlock(&c->lock);
}

/* --- the signal ------------------------------------------------------------------------------------------------- */

static struct sigaction handler_before;
static int signal_number;

static void on_signal(int number, siginfo_t *info, void *context) {
    int error = errno;
    atomic_store(&signalled, 1);
    if (handler_before.sa_flags & SA_SIGINFO) {
        if (handler_before.sa_sigaction) handler_before.sa_sigaction(number, info, context);
    } else if (handler_before.sa_handler != SIG_DFL && handler_before.sa_handler != SIG_IGN) {
        handler_before.sa_handler(number);
    }
    errno = error;
}

int xpr_flight_signal_on(int number) {
    if (signal_number) return EBUSY;
    if (sigaction(number, NULL, &handler_before) != 0) return errno;
    bool has_handler = (handler_before.sa_flags & SA_SIGINFO) ||
                       (handler_before.sa_handler != SIG_DFL && handler_before.sa_handler != SIG_IGN);
    struct sigaction ours = {.sa_sigaction = on_signal};
    /* A handler that counts on interrupting system calls, as Python's does, goes on to interrupt them. */
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | (has_handler ? handler_before.sa_flags & SA_RESTART : SA_RESTART);
    ours.sa_mask = handler_before.sa_mask;
    atomic_store(&signalled, 0);
    if (sigaction(number, &ours, NULL) != 0) return errno;
    signal_number = number;
    return 0;
}

void xpr_flight_signal_off(void) {
    struct sigaction now;
    if (signal_number && sigaction(signal_number, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) &&
        now.sa_sigaction == on_signal)
        sigaction(signal_number, &handler_before, NULL);
    signal_number = 0;
}
