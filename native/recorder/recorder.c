#define _GNU_SOURCE
#include "recorder/own_thread.h"
#include "recorder/recorder.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "recorder/drain.h"
#include "recorder/filter.h"

_Atomic uint32_t xpr_active;
_Thread_local struct xpr_log *xpr_this_log __attribute__((tls_model("initial-exec")));

enum { DRAINER_STACK_BYTES = 512 << 10 };

static struct xpr_capture capture = {.lock = PTHREAD_MUTEX_INITIALIZER};
static uint32_t last_generation;
static pthread_key_t thread_end;

void xpr_free_log(struct xpr_log *log, bool in_use) {
    if (log->kept && in_use)
        xpr_rings_give(log->kept);
    else if (log->mapping)
        munmap(log->mapping, log->mapped_bytes);
    free(log);
}

/* Runs as a thread ends. Its events stay until the drainer has taken them. */
static void on_thread_end(void *value) {
    struct xpr_log *log = value;
    xpr_this_log = NULL;
    pthread_mutex_lock(&capture.lock);
    bool drained_by_nobody =
        capture.state == XPR_IDLE || atomic_load(&log->generation) != capture.generation;
    if (drained_by_nobody) {
        struct xpr_log **place = &capture.logs;
        while (*place != log) place = &(*place)->next;
        *place = log->next;
    }
    atomic_store_explicit(&log->dead, true, memory_order_release);
    pthread_mutex_unlock(&capture.lock);
    if (drained_by_nobody) xpr_free_log(log, false);
}

static void init_locks(void) {
    capture.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    capture.wake_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    xpr_init_condition(&capture.done);
    xpr_init_condition(&capture.wake);
}

static void before_fork(void) {
    pthread_mutex_lock(&capture.lock);
    xpr_strings_lock();
    xpr_samples_lock();
    xpr_exchanges_lock();
    xpr_device_records_lock();
    xpr_power_rows_lock();
    xpr_filter_lock();
}

static void after_fork_parent(void) {
    xpr_filter_unlock();
    xpr_power_rows_unlock();
    xpr_device_records_unlock();
    xpr_exchanges_unlock();
    xpr_samples_unlock();
    xpr_strings_unlock();
    pthread_mutex_unlock(&capture.lock);
}

/* The child has one thread and no drainer: it forgets the capture, which goes on in the parent. */
static void after_fork_child(void) {
    atomic_store(&xpr_active, 0);
    xpr_strings_after_fork_child();
    xpr_samples_after_fork_child();
    xpr_exchanges_after_fork_child();
    xpr_device_records_after_fork_child();
    xpr_power_rows_after_fork_child();
    xpr_filter_after_fork_child();
    if (capture.state != XPR_IDLE) {
        xpr_writer_close(&capture.writer);
        xpr_flight_free(&capture.flight);
    }
    xpr_flight_signal_off();
    while (capture.logs) {
        struct xpr_log *next = capture.logs->next;
        xpr_free_log(capture.logs, false);
        capture.logs = next;
    }
    xpr_rings_after_fork_child();
    xpr_this_log = NULL;
    pthread_setspecific(thread_end, NULL);
    xpr_bytes_free(&capture.new_threads);
    xpr_bytes_free(&capture.open_events);
    memset(&capture, 0, sizeof capture);
    init_locks();
    capture.writer.fd = -1;
}

static int once_result;

static void install_once(void) {
    once_result = pthread_key_create(&thread_end, on_thread_end);
    if (!once_result) once_result = pthread_atfork(before_fork, after_fork_parent, after_fork_child);
    init_locks();
    capture.writer.fd = -1;
}

static uint64_t power_of_two(uint64_t at_least) {
    uint64_t p = 1024;
    while (p < at_least && p < (uint64_t)1 << 40) p *= 2;
    return p;
}

int xpr_recorder_start(const char *path, uint64_t budget_bytes, uint64_t ring_bytes) {
    return xpr_recorder_begin(path, &(struct xpr_recorder_options){.budget_bytes = budget_bytes, .ring_bytes = ring_bytes});
}

static int begin_flight(const char *path, int64_t window_ns) {
    memset(&capture.flight, 0, sizeof capture.flight);
    capture.flight.segment.fd = -1;
    if (window_ns <= 0) return 0;
    capture.flight.window_ns = window_ns;
    capture.flight.base = strdup(path);
    return capture.flight.base ? 0 : ENOMEM;
}

int xpr_recorder_begin(const char *path, const struct xpr_recorder_options *options) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_once);
    if (once_result) return once_result;
    xpr_clock_choose();

    pthread_mutex_lock(&capture.lock);
    bool busy = capture.state != XPR_IDLE;
    if (!busy) capture.state = XPR_STARTING;
    pthread_mutex_unlock(&capture.lock);
    if (busy) return EBUSY;

    capture.ring_bytes = power_of_two(options->ring_bytes);
    xpr_samples_reset();
    xpr_exchanges_reset();
    xpr_device_records_reset();
    xpr_power_rows_reset();
    int error = xpr_writer_open(&capture.writer, path, options->budget_bytes, capture.ring_bytes);
    capture.rings_in_memory = 0;
    capture.rings_errno = 0;
    if (!error && !options->rings_in_memory)
        capture.rings_errno = xpr_rings_open(path, capture.ring_bytes, capture.writer.shard_id);
    if (!error) error = xpr_strings_reset();
    if (!error) error = begin_flight(path, options->window_ns);
    if (!error) error = xpr_drain_prepare(&capture);

    pthread_mutex_lock(&capture.lock);
    if (!error) {
        capture.generation = ++last_generation ? last_generation : ++last_generation;
        capture.stop = false;
        capture.threads = 0;
        memset(&capture.gone, 0, sizeof capture.gone);
        capture.state = XPR_RECORDING;
        error = xpr_start_own_thread(xpr_drain, &capture, DRAINER_STACK_BYTES);
    }
    if (error) {
        capture.state = XPR_IDLE;
        xpr_writer_close(&capture.writer);
        xpr_rings_close();
        xpr_flight_free(&capture.flight);
    } else {
        atomic_store(&xpr_active, capture.generation);
    }
    pthread_mutex_unlock(&capture.lock);
    if (error) xpr_strings_clear();
    return error;
}

void xpr_recorder_wake(void) {
    /* Without the lock: a wake-up that is missed costs one round, a lock could cost the program a wait. */
    atomic_store(&capture.wake_wanted, true);
    pthread_cond_signal(&capture.wake);
}

static void take_out(struct xpr_open_spans *open, uint64_t start) {
    uint32_t count = atomic_load_explicit(&open->count, memory_order_relaxed);
    uint32_t i = count;
    while (i && open->spans[i - 1].start != start) i--;
    if (!i) {
        open->more -= open->more > 0;
        return;
    }
    for (; i < count; i++) xpr_copy_slot(&open->spans[i - 1], &open->spans[i]);
    atomic_store_explicit(&open->count, count - 1, memory_order_release);
}

/* Takes out what other threads left. */
static void catch_up(struct xpr_open_spans *open) {
    uint32_t put = atomic_load_explicit(&open->left_count, memory_order_acquire);
    uint32_t taken = atomic_load_explicit(&open->left_taken, memory_order_relaxed);
    if (put - taken > XPR_MAX_LEFT) {
        open->more = 0;
        atomic_store_explicit(&open->count, 0, memory_order_release);
    } else {
        for (; taken != put; taken++)
            take_out(open, atomic_load_explicit(&open->left[taken % XPR_MAX_LEFT], memory_order_relaxed));
    }
    atomic_store_explicit(&open->left_taken, put, memory_order_release);
}

bool xpr_log_make_room(struct xpr_log *log, uint64_t head, unsigned n) {
    uint64_t tail = atomic_load_explicit(&log->tail, memory_order_acquire), after = head + n;
    if (after - tail > log->capacity) {
        uint64_t dropped = atomic_load_explicit(&log->dropped_ring, memory_order_relaxed);
        atomic_store_explicit(&log->dropped_ring, dropped + 1, memory_order_relaxed);
        struct xpr_ring_header *kept = atomic_load_explicit(&log->kept, memory_order_relaxed);
        if (kept) atomic_store_explicit(&kept->dropped_ring, dropped + 1, memory_order_relaxed);
        return false;
    }
    uint64_t half = log->capacity / 2, full = tail + log->capacity, next_half = after / half * half + half;
    if (head / half != after / half) xpr_recorder_wake();
    log->limit = next_half - 1 < full ? next_half - 1 : full;
    return true;
}

void xpr_log_take_out(struct xpr_open_spans *open, uint64_t start) {
    catch_up(open);
    take_out(open, start);
}

bool xpr_log_place_open(struct xpr_open_spans *open) {
    catch_up(open);
    if (atomic_load_explicit(&open->count, memory_order_relaxed) < XPR_MAX_OPEN_SPANS) return true;
    open->more++;
    return false;
}

/* Gives the log an empty ring for this capture: in the rings' file, else in memory. Without memory it counts its events as
 * dropped. */
static void map_ring(struct xpr_log *log) {
    int error = 0;
    struct xpr_ring_header *kept = xpr_rings_take(&error);
    uint64_t wanted = kept ? xpr_ring_stride(capture.ring_bytes) : capture.ring_bytes;
    if (log->mapping && (kept || log->mapped_bytes != wanted)) {
        munmap(log->mapping, log->mapped_bytes);
        log->mapping = NULL;
    }
    if (kept) {
        log->mapping = kept;
    } else {
        capture.rings_in_memory++;
        if (error) capture.rings_errno = error;
        if (!log->mapping) {
            int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
            void *place = mmap(NULL, wanted, PROT_READ | PROT_WRITE, flags, -1, 0);
            log->mapping = place == MAP_FAILED ? NULL : place;
        }
    }
    log->mapped_bytes = wanted;
    log->kept = kept;
    log->ring = kept ? (void *)((uint8_t *)kept + XPR_RING_HEADER_BYTES) : log->mapping;
    log->capacity = log->ring ? capture.ring_bytes / sizeof(struct xpr_event) : 0;
    log->mask = log->capacity - 1;
    log->head = kept ? &kept->head : &log->own_head;
    log->open = kept ? &kept->open : &log->own_open;
    log->limit = 0;
    log->touched = 0;
    atomic_store(&log->tail, 0);
    atomic_store(&log->own_head, 0);
    /* A ring of the file was cleared when it was given back. */
    memset(&log->own_open, 0, sizeof log->own_open);
    for (int i = 0; i < XPR_MAX_OPEN_SPANS; i++) log->open->spans[i].duration = XPR_DURATION_OPEN;
    atomic_store(&log->begun_in_c, 0);
    atomic_store(&log->ended_in_c, 0);
}

struct xpr_log *xpr_log_begin(uint32_t generation, const char *thread_name) {
    struct xpr_log *log = xpr_this_log;
    char system_name[32] = "";
    if (!thread_name) {
        pthread_getname_np(pthread_self(), system_name, sizeof system_name);
        thread_name = system_name;
    }
    size_t bytes = strnlen(thread_name, XPR_MAX_STRING_BYTES);
    while (bytes == XPR_MAX_STRING_BYTES && bytes && (thread_name[bytes - 1] & 0xC0) == 0x80) bytes--;

    pthread_mutex_lock(&capture.lock);
    bool ours = capture.state == XPR_RECORDING && capture.generation == generation;
    bool is_new = !log;
    if (ours && is_new) {
        log = aligned_alloc(_Alignof(struct xpr_log), sizeof *log);
        if (log) {
            memset(log, 0, sizeof *log);
            if (pthread_setspecific(thread_end, log) != 0) {
                free(log);
                log = NULL;
            }
        }
    }
    struct xpr_thread_record *record = NULL;
    if (ours && log) record = xpr_bytes_add(&capture.new_threads, sizeof *record + ((bytes + 7) & ~(size_t)7));
    if (record) {
        if (is_new) {
            log->next = capture.logs;
            capture.logs = log;
            xpr_this_log = log;
        }
        map_ring(log);
        log->index = capture.threads++;
        log->sampled = false;
        log->cpu_tick = 0;
        log->reported_drops = 0;
        atomic_store(&log->more_slots, 0);
        atomic_store(&log->dropped_ring, 0);
        atomic_store(&log->written, 0);
        atomic_store(&log->dropped_budget, 0);
        atomic_store(&log->dropped_error, 0);
        record->index = log->index;
        record->bytes = (uint32_t)bytes;
        record->os_tid = (uint64_t)syscall(SYS_gettid);
        memcpy(record + 1, thread_name, bytes);
        if (log->kept) {
            log->kept->os_tid = record->os_tid;
            snprintf(log->kept->name, sizeof log->kept->name, "%.*s", (int)bytes, thread_name);
            atomic_store(&log->kept->thread, log->index + 1);
        }
        atomic_store(&log->generation, generation);
    } else if (is_new && log) {
        pthread_setspecific(thread_end, NULL);
        free(log);
    }
    if (ours && !record) {
        /* Without memory for its log the thread's event is lost, and counted like one that could not be written. */
        capture.gone.accepted++;
        capture.gone.dropped_error++;
    }
    pthread_mutex_unlock(&capture.lock);
    return record ? log : NULL;
}

void xpr_log_left_elsewhere(uint32_t thread, uint32_t generation, uint64_t start) {
    pthread_mutex_lock(&capture.lock);
    struct xpr_log *log = generation == capture.generation ? capture.logs : NULL;
    while (log && (log->index != thread || atomic_load(&log->generation) != generation)) log = log->next;
    if (log) {
        uint32_t put = atomic_load(&log->open->left_count);
        atomic_store(&log->open->left[put % XPR_MAX_LEFT], start);
        atomic_store(&log->open->left_count, put + 1);
    }
    pthread_mutex_unlock(&capture.lock);
}

uint32_t xpr_recorder_off(void) { return atomic_exchange(&xpr_active, 0); }

void xpr_recorder_add_open(uint32_t thread, const struct xpr_event *slots, unsigned n) {
    pthread_mutex_lock(&capture.lock);
    struct xpr_open_event *open = xpr_bytes_add(&capture.open_events, sizeof *open);
    if (open) {
        open->thread = thread;
        open->count = n;
        memcpy(open->slots, slots, n * sizeof *slots);
    } else {
        capture.gone.dropped_error++;
    }
    pthread_mutex_unlock(&capture.lock);
}

static void deadline(int64_t timeout_ns, struct timespec *until) {
    clock_gettime(CLOCK_MONOTONIC, until);
    int64_t until_ns = (int64_t)until->tv_nsec + timeout_ns % 1000000000;
    until->tv_sec += (time_t)(timeout_ns / 1000000000 + until_ns / 1000000000);
    until->tv_nsec = (long)(until_ns % 1000000000);
}

void xpr_recorder_finish(int64_t timeout_ns, uint64_t reentered, uint64_t hook_errors, struct xpr_report *report) {
    struct timespec until;
    deadline(timeout_ns, &until);
    pthread_mutex_lock(&capture.lock);
    if (capture.state == XPR_RECORDING) {
        capture.state = XPR_FINISHING;
        capture.reentered = reentered;
        capture.hook_errors = hook_errors;
        atomic_store(&capture.stop, true);
        pthread_mutex_lock(&capture.wake_lock);
        xpr_recorder_wake();
        pthread_mutex_unlock(&capture.wake_lock);
    }
    while (capture.state == XPR_FINISHING)
        if (pthread_cond_timedwait(&capture.done, &capture.lock, &until) == ETIMEDOUT) break;
    pthread_mutex_unlock(&capture.lock);
    xpr_recorder_report(report);
}

void xpr_recorder_report(struct xpr_report *report) {
    pthread_mutex_lock(&capture.lock);
    xpr_capture_totals(&capture, report);
    pthread_mutex_unlock(&capture.lock);
}

/* --- the flight recorder's side that any thread may use; what it does is in flight.c --------------------------------- */

static int replace(char **text, const char *with) {
    char *copy = strdup(with);
    if (!copy) return ENOMEM;
    free(*text);
    *text = copy;
    return 0;
}

int xpr_flight_describe(const char *folder, const char *shard_name, const char *run_file_name, const char *head,
                        unsigned limit) {
    struct xpr_flight *f = &capture.flight;
    pthread_mutex_lock(&capture.lock);
    int error = capture.state == XPR_RECORDING && f->window_ns ? 0 : ENOTCONN;
    if (!error) error = replace(&f->shard_name, shard_name);
    if (!error) error = replace(&f->run_file_name, run_file_name);
    if (!error) error = replace(&f->head, head);
    if (!error) error = replace(&f->folder, folder); /* the last one: with it snapshots can be taken */
    f->limit = limit < XPR_MAX_SNAPSHOTS ? limit : XPR_MAX_SNAPSHOTS;
    pthread_mutex_unlock(&capture.lock);
    return error;
}

int xpr_flight_ask(const char *name, const char *about, uint64_t *ticket) {
    struct xpr_flight *f = &capture.flight;
    pthread_mutex_lock(&capture.lock);
    int error = 0;
    *ticket = f->asked;
    if (capture.state != XPR_RECORDING || !f->folder)
        error = ENOTCONN;
    else if (f->wanted)
        error = EBUSY;
    else if (f->taken >= f->limit)
        error = EDQUOT;
    if (error == EDQUOT) f->refused++;
    if (!error) {
        snprintf(f->request.name, sizeof f->request.name, "%s", name);
        snprintf(f->request.about, sizeof f->request.about, "%s", about);
        f->wanted = true;
        *ticket = ++f->asked;
        xpr_recorder_wake();
    }
    pthread_mutex_unlock(&capture.lock);
    return error;
}

int xpr_flight_wait(uint64_t ticket, int64_t timeout_ns) {
    struct xpr_flight *f = &capture.flight;
    struct timespec until;
    deadline(timeout_ns, &until);
    pthread_mutex_lock(&capture.lock);
    int error = 0;
    while (f->answered < ticket && capture.state != XPR_IDLE && !error)
        error = pthread_cond_timedwait(&capture.done, &capture.lock, &until);
    /* One snapshot is written at a time, so the answers are the list of snapshots. */
    error = f->answered < ticket ? ETIMEDOUT : ticket ? f->snapshots[ticket - 1].error : ENOTCONN;
    pthread_mutex_unlock(&capture.lock);
    return error;
}

unsigned xpr_flight_report(struct xpr_snapshot *snapshots, uint64_t *refused) {
    pthread_mutex_lock(&capture.lock);
    unsigned count = capture.flight.taken;
    memcpy(snapshots, capture.flight.snapshots, count * sizeof *snapshots);
    *refused = capture.flight.refused;
    pthread_mutex_unlock(&capture.lock);
    return count;
}
