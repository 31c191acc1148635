#define _GNU_SOURCE
#include "recorder/drain.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    ROUND_NS = 50000000,
    CLOCK_INTERVAL_NS = 1000000000,
    SECOND_SAMPLE_US = 1000,
};

/* A log as one round sees it. */
struct seen {
    struct xpr_log *log;
    uint64_t head;
    bool dead;
};

static bool add_whole(struct xpr_capture *c, uint16_t type, struct xpr_bytes *records, bool insist) {
    if (!records->used) return true;
    /* Strings and threads mean nothing without the events after them, so they end with the budget too. */
    struct xpr_writer *to = type == XPR_CHUNK_SAMPLES ? xpr_events_writer(c) : &c->writer;
    if (records->used > xpr_writer_room(to)) c->over_budget = true;
    if (c->over_budget) return false;
    struct xpr_part part = {records->data, records->used};
    if (!xpr_writer_add(to, type, 0, &part, 1, insist)) return false;
    records->used = 0;
    return true;
}

bool xpr_drain_clock(struct xpr_capture *c, bool insist) {
    struct xpr_clock_record sample = xpr_clock_sample();
    struct xpr_part part = {&sample, sizeof sample};
    if (!xpr_writer_add(xpr_events_writer(c), XPR_CHUNK_CLOCK, 0, &part, 1, insist)) return false;
    c->last_clock_ns = sample.monotonic_ns;
    c->clock_samples++;
    return true;
}

int xpr_drain_prepare(struct xpr_capture *c) {
    xpr_bytes_free(&c->strings);
    xpr_bytes_free(&c->schemas);
    xpr_bytes_free(&c->thread_records);
    xpr_bytes_free(&c->new_threads);
    xpr_bytes_free(&c->open_events);
    xpr_bytes_free(&c->frames);
    xpr_bytes_free(&c->stacks);
    c->samples_written = c->samples_dropped = 0;
    xpr_bytes_free(&c->probes);
    c->exchanges_written = c->exchanges_dropped = 0;
    c->device_written = c->device_dropped_budget = c->device_dropped_error = 0;
    c->power_written = c->power_dropped = 0;
    c->over_budget = c->removed = c->finished = false;
    c->reentered = c->hook_errors = c->noted_at_stop = 0;
    c->clock_interval_ns = ROUND_NS / 2;
    c->clock_samples = 0;
    atomic_store(&c->wake_wanted, false);
    if (c->flight.window_ns) return xpr_flight_prepare(c);
    return xpr_drain_clock(c, true) ? 0 : atomic_load(&c->writer.last_errno);
}

static void append(struct xpr_bytes *to, struct xpr_bytes *from) {
    if (!to->used) {
        xpr_bytes_free(to);
        *to = *from;
        memset(from, 0, sizeof *from);
        return;
    }
    void *place = from->used ? xpr_bytes_add(to, from->used) : NULL;
    if (place) memcpy(place, from->data, from->used);
    xpr_bytes_free(from);
}

/* Splits the next slots of a log into whole events that fit `room` bytes; counts both sides. */
struct split {
    uint64_t fit_slots, fit_events, other_events;
};

static struct split split_events(const struct xpr_log *log, uint64_t tail, uint64_t head, uint64_t room_slots) {
    struct split s = {0, 0, 0};
    if (head - tail <= room_slots) {
        /* All fit, as they do until the budget ends: no slot need be waited for to know where the next event begins. */
        s.fit_slots = head - tail;
        for (uint64_t i = tail; i < head; i++) s.fit_events += log->ring[i & log->mask].kind != XPR_KIND_MORE;
        return s;
    }
    for (uint64_t i = tail; i < head;) {
        unsigned slots = log->ring[i & log->mask].flags & XPR_EVENT_SLOTS;
        if (!s.other_events && i + slots - tail <= room_slots) {
            s.fit_events++;
            s.fit_slots += slots;
        } else {
            s.other_events++;
        }
        i += slots;
    }
    return s;
}

/* Says in the ring's header which slots the next chunk will hold, and where. */
static void announce(struct xpr_capture *c, struct xpr_ring_header *kept, uint64_t pending_tail) {
    uint64_t segment = c->flight.window_ns ? c->flight.segments[c->flight.count - 1].number + 1 : 0;
    atomic_store(&kept->pending_offset, 0);
    atomic_store(&kept->pending_tail, pending_tail);
    atomic_store(&kept->pending_segment, segment);
    atomic_store(&kept->pending_offset, atomic_load(&xpr_events_writer(c)->offset));
}

static bool add_events(struct xpr_capture *c, const struct xpr_log *log, uint64_t tail, uint64_t slots, bool insist) {
    if (c->flight.window_ns && !c->flight.count) return false; /* no segment could be created */
    if (log->kept) announce(c, log->kept, tail + slots);
    uint64_t from = tail & log->mask;
    uint64_t first = slots < log->capacity - from ? slots : log->capacity - from;
    struct xpr_part parts[2] = {{log->ring + from, first * sizeof(struct xpr_event)},
                                {log->ring, (slots - first) * sizeof(struct xpr_event)}};
    return xpr_writer_add(xpr_events_writer(c), XPR_CHUNK_EVENTS, log->index, parts, slots > first ? 2 : 1, insist);
}

static void count(_Atomic uint64_t *counter, uint64_t more) {
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + more, memory_order_relaxed);
}

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* In its first lap a ring's memory comes page by page as its thread stores there, which takes longer than all of its spans. So
 * the drainer asks for what the thread will come to: twice as much as it used since the last round. */
static void touch_ahead(struct xpr_log *log, uint64_t tail, uint64_t head) {
    uint64_t until = head + 2 * (head - tail), from = log->touched > head ? log->touched : head;
    if (until > log->capacity) until = log->capacity;
    if (from >= until) return;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = (uintptr_t)(log->ring + from) & ~(page - 1), end = (uintptr_t)(log->ring + until);
    /* Kernels before 5.14 do not know how; then the pages come as they did. */
    bool done = madvise((void *)begin, end - begin, MADV_POPULATE_WRITE) == 0;
    log->touched = done ? until : log->capacity;
}

static void drain_log(struct xpr_capture *c, struct seen *seen, bool context_written, bool insist) {
    struct xpr_log *log = seen->log;
    uint64_t tail = atomic_load_explicit(&log->tail, memory_order_relaxed);
    if (tail == seen->head) return;
    uint64_t room_slots = c->over_budget ? 0 : xpr_writer_room(xpr_events_writer(c)) / sizeof(struct xpr_event);
    struct split s = split_events(log, tail, seen->head, room_slots);
    if (s.other_events) c->over_budget = true;
    if (s.fit_events && context_written && add_events(c, log, tail, s.fit_slots, insist)) {
        count(&log->written, s.fit_events);
        if (c->flight.window_ns) c->flight.segments[c->flight.count - 1].events += s.fit_events;
    } else {
        count(&log->dropped_error, s.fit_events);
    }
    count(&log->dropped_budget, s.other_events);
    if (log->kept) atomic_store(&log->kept->tail, seen->head);
    atomic_store_explicit(&log->tail, seen->head, memory_order_release);
    if (!seen->dead && !insist) touch_ahead(log, tail, seen->head);
}

static struct xpr_losses_record losses_of(const struct xpr_log *log) {
    return (struct xpr_losses_record){
        .thread = log->index,
        .written = atomic_load(&log->written),
        .dropped_ring = atomic_load(&log->dropped_ring),
        .dropped_budget = atomic_load(&log->dropped_budget),
        .dropped_error = atomic_load(&log->dropped_error),
    };
}

static void add_losses(struct xpr_capture *c, struct seen *seen, size_t n, bool all, bool insist) {
    struct xpr_bytes records = {0};
    for (size_t i = 0; i < n; i++) {
        struct xpr_losses_record losses = losses_of(seen[i].log);
        uint64_t drops = losses.dropped_ring + losses.dropped_budget + losses.dropped_error;
        bool ends = all || (seen[i].dead && !c->flight.window_ns);
        if (!ends && drops == seen[i].log->reported_drops) continue;
        /* Past the budget everything is dropped: what a killed process had lost by then is told to within a half. */
        if (!ends && c->over_budget && drops < 2 * seen[i].log->reported_drops) continue;
        struct xpr_losses_record *record = xpr_bytes_add(&records, sizeof losses);
        if (!record) break;
        *record = losses;
        seen[i].log->reported_drops = drops;
    }
    struct xpr_part part = {records.data, records.used};
    if (records.used) xpr_writer_add(&c->writer, XPR_CHUNK_LOSSES, 0, &part, 1, insist);
    xpr_bytes_free(&records);
}

static void add_gone(struct xpr_gone *gone, const struct xpr_log *log) {
    gone->accepted += xpr_log_accepted(log);
    gone->written += atomic_load(&log->written);
    gone->dropped_ring += atomic_load(&log->dropped_ring);
    gone->dropped_budget += atomic_load(&log->dropped_budget);
    gone->dropped_error += atomic_load(&log->dropped_error);
    gone->open_in_c += (int64_t)(atomic_load(&log->begun_in_c) - atomic_load(&log->ended_in_c));
}

/* Takes the logs of ended threads out of the capture, their totals kept. */
static void retire(struct xpr_capture *c, const struct seen *seen, size_t n) {
    for (size_t i = 0; i < n; i++) {
        struct xpr_log *log = seen[i].log;
        if (!seen[i].dead) continue;
        pthread_mutex_lock(&c->lock);
        struct xpr_log **place = &c->logs;
        while (*place != log) place = &(*place)->next;
        *place = log->next;
        add_gone(&c->gone, log);
        xpr_free_log(log, true);
        pthread_mutex_unlock(&c->lock);
    }
}

bool xpr_open_spans_of(const struct xpr_log *log, struct xpr_event *spans, uint32_t *count, uint64_t *head) {
    struct xpr_open_spans *open = log->open;
    struct xpr_event again[XPR_MAX_OPEN_SPANS];
    for (int attempt = 0; attempt < 8; attempt++) {
        uint32_t n = atomic_load_explicit(&open->count, memory_order_acquire), taken = atomic_load(&open->left_taken);
        if (n > XPR_MAX_OPEN_SPANS) continue;
        for (uint32_t i = 0; i < n; i++) xpr_copy_slot(&spans[i], &open->spans[i]);
        *head = atomic_load_explicit(log->head, memory_order_acquire);
        for (uint32_t i = 0; i < n; i++) xpr_copy_slot(&again[i], &open->spans[i]);
        if (atomic_load(&open->count) != n || atomic_load(&open->left_taken) != taken ||
            memcmp(spans, again, n * sizeof *spans) != 0)
            continue;
        /* Those that put into `left` hold the lock as well. */
        uint32_t put = atomic_load(&open->left_count);
        *count = 0;
        for (uint32_t i = 0; put - taken <= XPR_MAX_LEFT && i < n; i++) {
            bool is_left = false;
            for (uint32_t k = taken; k != put; k++) is_left |= atomic_load(&open->left[k % XPR_MAX_LEFT]) == spans[i].start;
            if (is_left) continue;
            spans[*count] = spans[i];
            if (!spans[i].schema) spans[*count].value = 0; /* that of an earlier span */
            (*count)++;
        }
        return true;
    }
    return false;
}

/* At the stop: the spans that were begun through trace.h are open in nobody's books but the log's. */
static void add_noted(struct xpr_capture *c, struct seen *seen) {
    struct xpr_log *log = seen->log;
    struct xpr_event spans[XPR_MAX_OPEN_SPANS];
    uint32_t n;
    if (!log->mapping || !xpr_open_spans_of(log, spans, &n, &seen->head)) return;
    const struct xpr_open_event *known = (const void *)c->open_events.data;
    size_t known_count = c->open_events.used / sizeof *known;
    for (uint32_t i = 0; i < n; i++) {
        /* A thread that is between appending its event and taking out the note has appended nothing since. */
        bool is_known = seen->head && log->ring[(seen->head - 1) & log->mask].start == spans[i].start;
        for (size_t k = 0; k < known_count && !is_known; k++)
            is_known = known[k].thread == log->index && known[k].slots[0].start == spans[i].start;
        struct xpr_open_event *event = is_known ? NULL : xpr_bytes_add(&c->open_events, sizeof *event);
        if (!event) continue;
        known = (const void *)c->open_events.data;
        event->thread = log->index;
        event->count = 1;
        event->slots[0] = spans[i];
        c->noted_at_stop++;
    }
}

/* The logs of this capture and how far each is to be drained. NULL: no memory, try again in the next round. */
static struct seen *look(struct xpr_capture *c, size_t *n, bool last) {
    struct xpr_bytes taken = {0};
    pthread_mutex_lock(&c->lock);
    size_t room = 0;
    for (struct xpr_log *log = c->logs; log; log = log->next) room++;
    struct seen *seen = malloc((room ? room : 1) * sizeof *seen);
    *n = 0;
    if (seen) {
        for (struct xpr_log *log = c->logs; log; log = log->next) {
            if (atomic_load(&log->generation) != c->generation) continue;
            /* `dead` before `head`: a thread that is dead has appended its last event. */
            bool dead = atomic_load_explicit(&log->dead, memory_order_acquire);
            seen[*n] = (struct seen){log, atomic_load_explicit(log->head, memory_order_acquire), dead};
            if (last) add_noted(c, &seen[*n]);
            (*n)++;
        }
        taken = c->new_threads;
        memset(&c->new_threads, 0, sizeof c->new_threads);
    }
    pthread_mutex_unlock(&c->lock);
    append(&c->thread_records, &taken);
    return seen;
}

/* Samples that find no place are dropped, and counted: what they mention is kept for the next ones. */
static void add_samples(struct xpr_capture *c, struct xpr_bytes *samples, bool context_written, bool insist) {
    uint64_t count = samples->used / sizeof(struct xpr_sample_record);
    if (context_written && add_whole(c, XPR_CHUNK_FRAMES, &c->frames, insist) &&
        add_whole(c, XPR_CHUNK_STACKS, &c->stacks, insist) && add_whole(c, XPR_CHUNK_SAMPLES, samples, insist))
        c->samples_written += count;
    else
        c->samples_dropped += count;
    xpr_bytes_free(samples);
}

static void add_exchanges(struct xpr_capture *c, bool insist) {
    struct xpr_bytes probes, exchanges;
    xpr_exchanges_take(&probes, &exchanges);
    append(&c->probes, &probes);
    uint64_t count = exchanges.used / sizeof(struct xpr_exchange_record);
    if (add_whole(c, XPR_CHUNK_PROBES, &c->probes, insist) && add_whole(c, XPR_CHUNK_EXCHANGES, &exchanges, insist))
        c->exchanges_written += count;
    else
        c->exchanges_dropped += count;
    xpr_bytes_free(&exchanges);
}

static void add_device_chunk(struct xpr_capture *c, uint16_t type, struct xpr_bytes *records, size_t bytes_each,
                             bool context_written, bool insist) {
    uint64_t count = records->used / bytes_each;
    if (context_written && add_whole(c, type, records, insist))
        c->device_written += count;
    else if (c->over_budget)
        c->device_dropped_budget += count;
    else
        c->device_dropped_error += count;
}

static void add_device_batches(struct xpr_capture *c, struct xpr_device_batch *batch, bool context_written, bool insist) {
    while (batch) {
        struct xpr_device_batch *next = batch->next;
        if (context_written) add_whole(c, XPR_CHUNK_DEVICES, &batch->devices, insist);
        add_device_chunk(c, XPR_CHUNK_ACTIVITIES, &batch->activities, sizeof(struct xpr_activity_record), context_written,
                         insist);
        add_device_chunk(c, XPR_CHUNK_CALLS, &batch->calls, sizeof(struct xpr_call_record), context_written, insist);
        add_device_chunk(c, XPR_CHUNK_GRAPH_NODES, &batch->graph_nodes, sizeof(struct xpr_graph_node_record),
                         context_written, insist);
        xpr_device_batch_free(batch);
        batch = next;
    }
}

static void add_power(struct xpr_capture *c, struct xpr_bytes *rows, bool context_written, bool insist) {
    uint64_t count = rows->used / sizeof(struct xpr_power_record);
    if (context_written && add_whole(c, XPR_CHUNK_POWER, rows, insist))
        c->power_written += count;
    else
        c->power_dropped += count;
    xpr_bytes_free(rows);
}

static void drain_round(struct xpr_capture *c, bool last) {
    size_t n;
    struct seen *seen = look(c, &n, last);
    if (!seen) return;
    /* After the heads and the samples: the strings that they mention are interned by now. */
    struct xpr_bytes frames, stacks, samples, power, strings, schemas;
    xpr_samples_take(&frames, &stacks, &samples);
    struct xpr_device_batch *device_batches = xpr_device_records_take();
    append(&c->frames, &frames);
    append(&c->stacks, &stacks);
    xpr_power_rows_take(&power);
    xpr_strings_take(&strings, &schemas);
    append(&c->strings, &strings);
    append(&c->schemas, &schemas);

    bool clock_is_due = xpr_clock_read_ns(CLOCK_MONOTONIC) - c->last_clock_ns >= c->clock_interval_ns;
    if (last || c->clock_samples < 2 || (clock_is_due && !c->over_budget)) {
        xpr_drain_clock(c, last);
        /* Close together at first, so that even the events of a short life have a rate. */
        if (c->clock_interval_ns < CLOCK_INTERVAL_NS) c->clock_interval_ns *= 2;
        if (c->clock_interval_ns > CLOCK_INTERVAL_NS) c->clock_interval_ns = CLOCK_INTERVAL_NS;
    }
    bool context_written = c->clock_samples >= 2 && add_whole(c, XPR_CHUNK_STRINGS, &c->strings, last) &&
                           add_whole(c, XPR_CHUNK_SCHEMAS, &c->schemas, last);
    if (context_written) xpr_journal_written();
    context_written = context_written && add_whole(c, XPR_CHUNK_THREADS, &c->thread_records, last);
    for (size_t i = 0; i < n; i++) drain_log(c, &seen[i], context_written, last);
    add_samples(c, &samples, context_written, last);
    add_exchanges(c, last);
    add_device_batches(c, device_batches, context_written, last);
    add_power(c, &power, context_written, last);
    add_losses(c, seen, n, last, last);
    retire(c, seen, n);
    free(seen);
    if (c->flight.window_ns && !last) xpr_flight_turn(c);
}

static void add_open_events(struct xpr_capture *c) {
    pthread_mutex_lock(&c->lock);
    struct xpr_bytes open = c->open_events;
    memset(&c->open_events, 0, sizeof c->open_events);
    pthread_mutex_unlock(&c->lock);
    uint64_t written = 0, over = 0, failed = 0;
    for (size_t at = 0; at < open.used; at += sizeof(struct xpr_open_event)) {
        const struct xpr_open_event *event = (const void *)(open.data + at);
        struct xpr_part part = {event->slots, event->count * sizeof(struct xpr_event)};
        if (c->over_budget || part.length > xpr_writer_room(&c->writer))
            over++;
        else if (xpr_writer_add(&c->writer, XPR_CHUNK_EVENTS, event->thread, &part, 1, true))
            written++;
        else
            failed++;
    }
    pthread_mutex_lock(&c->lock);
    c->gone.accepted += open.used / sizeof(struct xpr_open_event);
    c->gone.written += written;
    c->gone.dropped_budget += over;
    c->gone.dropped_error += failed;
    pthread_mutex_unlock(&c->lock);
    xpr_bytes_free(&open);
}

static void add_sampler(struct xpr_capture *c) {
    struct xpr_sample_counts counts = xpr_samples_counts();
    if (!counts.added) return;
    struct xpr_sampler_record record = {
        .written = c->samples_written,
        .dropped = c->samples_dropped + counts.dropped,
        .more_frames = counts.more_frames,
        .more_stacks = counts.more_stacks,
    };
    struct xpr_part part = {&record, sizeof record};
    xpr_writer_add(&c->writer, XPR_CHUNK_SAMPLER, 0, &part, 1, true);
}

static void add_prober(struct xpr_capture *c) {
    struct xpr_prober_record record;
    if (!xpr_prober_totals(&record)) return;
    record.written = c->exchanges_written;
    record.dropped += c->exchanges_dropped;
    struct xpr_part part = {&record, sizeof record};
    xpr_writer_add(&c->writer, XPR_CHUNK_PROBER, 0, &part, 1, true);
}

static void add_collector(struct xpr_capture *c) {
    struct xpr_collector_record record;
    if (!xpr_collector_totals(&record)) return;
    record.written = c->device_written;
    record.dropped_budget += c->device_dropped_budget;
    record.dropped_error += c->device_dropped_error;
    struct xpr_part part = {&record, sizeof record};
    xpr_writer_add(&c->writer, XPR_CHUNK_COLLECTOR, 0, &part, 1, true);
}

static void add_power_totals(struct xpr_capture *c) {
    struct xpr_power_totals_record record;
    if (!xpr_power_totals(&record)) return;
    record.written = c->power_written;
    record.dropped += c->power_dropped;
    struct xpr_part part = {&record, sizeof record};
    xpr_writer_add(&c->writer, XPR_CHUNK_POWER_TOTALS, 0, &part, 1, true);
}

struct xpr_end_record xpr_end_of(const struct xpr_capture *c, const struct xpr_report *totals) {
    return (struct xpr_end_record){
        .written = totals->written,
        .dropped_ring = totals->dropped_ring,
        .dropped_budget = totals->dropped_budget,
        .dropped_error = totals->dropped_error,
        .threads = totals->threads,
        .strings = totals->strings.strings,
        .more_names = totals->strings.more_names,
        .more_texts = totals->strings.more_texts,
        .dropped_args = totals->strings.dropped_args,
        .reentered = c->reentered,
        .hook_errors = c->hook_errors,
        .write_errors = totals->write_errors,
        .last_errno = (uint64_t)totals->last_errno,
        .open_not_recorded = totals->open_not_recorded,
    };
}

static void add_end(struct xpr_capture *c) {
    struct xpr_report totals;
    pthread_mutex_lock(&c->lock);
    xpr_capture_totals(c, &totals);
    pthread_mutex_unlock(&c->lock);
    totals.written -= c->flight.forgotten;
    struct xpr_end_record end = xpr_end_of(c, &totals);
    struct xpr_part part = {&end, sizeof end};
    if (xpr_writer_add(&c->writer, XPR_CHUNK_END, 0, &part, 1, true) && c->flight.window_ns) xpr_flight_remove(c);
}

/* Waits for the next round: until its time, or a ring that fills up, or the stop. */
static void wait_for_round(struct xpr_capture *c) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ROUND_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&c->wake_lock);
    int error = 0;
    while (!atomic_exchange(&c->wake_wanted, false) && error == 0)
        error = pthread_cond_timedwait(&c->wake, &c->wake_lock, &until);
    pthread_mutex_unlock(&c->wake_lock);
}

/* The end of a capture: its totals are kept, its threads' logs set free for the next one. With the lock held. */
static void settle(struct xpr_capture *c) {
    struct xpr_log **place = &c->logs;
    while (*place) {
        struct xpr_log *log = *place;
        if (atomic_load(&log->generation) == c->generation) {
            add_gone(&c->gone, log);
            atomic_store(&log->generation, 0);
            if (atomic_load(&log->dead)) {
                *place = log->next;
                xpr_free_log(log, false);
                continue;
            }
            /* The ring keeps its address, since its thread may be storing there, and gives its memory back. */
            if (log->kept)
                xpr_rings_detach(log->kept, log->mapped_bytes);
            else if (log->mapping)
                madvise(log->mapping, log->mapped_bytes, MADV_DONTNEED);
            log->kept = NULL;
        }
        place = &log->next;
    }
    c->string_counts = xpr_strings_counts();
    xpr_strings_clear();
    xpr_rings_close();
    xpr_samples_clear();
    xpr_exchanges_clear();
    xpr_device_records_clear();
    xpr_power_rows_clear();
}

void *xpr_drain(void *capture) {
    struct xpr_capture *c = capture;
    pthread_setname_np(pthread_self(), "xprof_py.drain");
    /* A second clock sample soon: with one alone a process that is killed now would leave ticks of no known rate. */
    usleep(SECOND_SAMPLE_US);
    if (!atomic_load(&c->stop)) xpr_drain_clock(c, false);
    while (!atomic_load(&c->stop)) {
        wait_for_round(c);
        if (atomic_load(&c->stop)) break;
        drain_round(c, false);
        if (c->flight.window_ns) xpr_flight_answer(c);
    }
    drain_round(c, true);
    if (c->flight.window_ns) {
        xpr_flight_answer(c);
        xpr_flight_gather(c);
    }
    add_open_events(c);
    add_sampler(c);
    add_prober(c);
    add_collector(c);
    add_power_totals(c);
    add_end(c);
    bool removed = xpr_writer_close(&c->writer);

    pthread_mutex_lock(&c->lock);
    c->removed = removed;
    c->finished = true;
    settle(c);
    xpr_flight_free(&c->flight);
    c->state = XPR_IDLE;
    pthread_cond_broadcast(&c->done);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

void xpr_capture_totals(struct xpr_capture *c, struct xpr_report *r) {
    struct xpr_gone sum = c->gone;
    for (struct xpr_log *log = c->logs; log; log = log->next)
        if (c->generation && atomic_load(&log->generation) == c->generation) add_gone(&sum, log);
    int64_t open = atomic_load(&c->stop) ? sum.open_in_c - (int64_t)c->noted_at_stop : 0;
    *r = (struct xpr_report){
        .recording = c->state == XPR_RECORDING && xpr_recording(),
        .finished = c->finished,
        .accepted = sum.accepted,
        .written = sum.written,
        .dropped_ring = sum.dropped_ring,
        .dropped_budget = sum.dropped_budget,
        .dropped_error = sum.dropped_error,
        .threads = c->threads,
        .bytes = atomic_load(&c->writer.offset),
        .forgotten = c->flight.forgotten,
        .open_not_recorded = open > 0 ? (uint64_t)open : 0,
        .write_errors = atomic_load(&c->writer.write_errors) + c->flight.write_errors,
        .last_errno = c->flight.last_errno ? c->flight.last_errno : atomic_load(&c->writer.last_errno),
        .rings_in_memory = c->rings_in_memory,
        .rings_errno = c->rings_errno,
        .removed = c->removed,
        .strings = c->finished ? c->string_counts : xpr_strings_counts(),
    };
}
