#include "recorder/device_records.h"

#include <pthread.h>
#include <stdlib.h>

#include "recorder/log.h"

static struct {
    pthread_mutex_t lock;
    bool open, has_totals;
    uint32_t capture;
    struct xpr_device_batch *first, **last;
    struct xpr_device_batch *spare; /* with the memory that they had: pages of new memory cost more than what goes into them */
    unsigned spares;
    uint64_t waiting_bytes, dropped;
    struct xpr_collector_record totals, earlier; /* of the session that runs or ran last, and of those before it */
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER, .last = &queue.first};

enum { MAX_SPARES = 32, MAX_SPARE_BYTES = 4 << 20, WAKE_BYTES = 8 << 20 };

struct xpr_device_batch *xpr_device_batch_new(void) {
    pthread_mutex_lock(&queue.lock);
    struct xpr_device_batch *batch = queue.spare;
    if (batch) {
        queue.spare = batch->next;
        queue.spares--;
        batch->next = NULL;
    }
    pthread_mutex_unlock(&queue.lock);
    return batch ? batch : calloc(1, sizeof *batch);
}

static void release_batch(struct xpr_device_batch *batch) {
    xpr_bytes_free(&batch->devices);
    xpr_bytes_free(&batch->activities);
    xpr_bytes_free(&batch->calls);
    xpr_bytes_free(&batch->graph_nodes);
    free(batch);
}

void xpr_device_batch_free(struct xpr_device_batch *batch) {
    size_t room = batch->devices.room + batch->activities.room + batch->calls.room + batch->graph_nodes.room;
    batch->devices.used = batch->activities.used = batch->calls.used = batch->graph_nodes.used = 0;
    pthread_mutex_lock(&queue.lock);
    bool kept = queue.open && queue.spares < MAX_SPARES && room <= MAX_SPARE_BYTES;
    if (kept) {
        batch->next = queue.spare;
        queue.spare = batch;
        queue.spares++;
    }
    pthread_mutex_unlock(&queue.lock);
    if (!kept) release_batch(batch);
}

uint64_t xpr_device_batch_records(const struct xpr_device_batch *batch) {
    return batch->activities.used / sizeof(struct xpr_activity_record) + batch->calls.used / sizeof(struct xpr_call_record) +
           batch->graph_nodes.used / sizeof(struct xpr_graph_node_record);
}

static uint64_t bytes_of(const struct xpr_device_batch *batch) {
    return batch->devices.used + batch->activities.used + batch->calls.used + batch->graph_nodes.used;
}

static void free_all(struct xpr_device_batch *batch) {
    while (batch) {
        struct xpr_device_batch *next = batch->next;
        release_batch(batch);
        batch = next;
    }
}

static void release(void) {
    free_all(queue.first);
    free_all(queue.spare);
    queue.first = queue.spare = NULL;
    queue.spares = 0;
    queue.last = &queue.first;
    queue.waiting_bytes = queue.dropped = 0;
    queue.open = queue.has_totals = false;
    queue.earlier = (struct xpr_collector_record){0};
}

static void add_counts(struct xpr_collector_record *to, const struct xpr_collector_record *more) {
    to->dropped_source += more->dropped_source;
    to->dropped_buffers += more->dropped_buffers;
    to->dropped_error += more->dropped_error;
    to->unknown_kinds += more->unknown_kinds;
    to->clamped += more->clamped;
    to->buffers += more->buffers;
    to->cpu_ns += more->cpu_ns;
}

void xpr_device_records_reset(void) {
    pthread_mutex_lock(&queue.lock);
    release();
    if (!++queue.capture) queue.capture = 1;
    queue.open = true;
    pthread_mutex_unlock(&queue.lock);
}

void xpr_device_records_clear(void) {
    pthread_mutex_lock(&queue.lock);
    release();
    pthread_mutex_unlock(&queue.lock);
}

uint32_t xpr_device_records_capture(void) {
    pthread_mutex_lock(&queue.lock);
    uint32_t capture = queue.open ? queue.capture : 0;
    pthread_mutex_unlock(&queue.lock);
    return capture;
}

void xpr_add_device_batch(uint32_t capture, struct xpr_device_batch *batch) {
    uint64_t bytes = bytes_of(batch);
    pthread_mutex_lock(&queue.lock);
    bool ours = queue.open && queue.capture == capture;
    bool fits = queue.waiting_bytes + bytes <= XPR_MAX_WAITING_DEVICE_BYTES;
    bool filling = ours && fits && queue.waiting_bytes + bytes > WAKE_BYTES;
    if (ours && fits) {
        batch->next = NULL;
        *queue.last = batch;
        queue.last = &batch->next;
        queue.waiting_bytes += bytes;
        batch = NULL;
    } else if (ours) {
        queue.dropped += xpr_device_batch_records(batch);
    }
    pthread_mutex_unlock(&queue.lock);
    if (batch) xpr_device_batch_free(batch);
    if (filling) xpr_recorder_wake();
}

void xpr_collector_begins(uint32_t capture) {
    pthread_mutex_lock(&queue.lock);
    if (queue.open && queue.capture == capture && queue.has_totals) {
        add_counts(&queue.earlier, &queue.totals);
        queue.totals = (struct xpr_collector_record){.version = queue.totals.version, .shared = queue.totals.shared};
    }
    pthread_mutex_unlock(&queue.lock);
}

void xpr_set_collector_totals(uint32_t capture, const struct xpr_collector_record *totals) {
    pthread_mutex_lock(&queue.lock);
    if (queue.open && queue.capture == capture) {
        queue.totals = *totals;
        queue.has_totals = true;
    }
    pthread_mutex_unlock(&queue.lock);
}

bool xpr_collector_totals(struct xpr_collector_record *totals) {
    pthread_mutex_lock(&queue.lock);
    bool found = queue.has_totals;
    *totals = queue.totals;
    add_counts(totals, &queue.earlier);
    totals->dropped_error += queue.dropped;
    pthread_mutex_unlock(&queue.lock);
    return found;
}

struct xpr_device_batch *xpr_device_records_take(void) {
    pthread_mutex_lock(&queue.lock);
    struct xpr_device_batch *first = queue.first;
    queue.first = NULL;
    queue.last = &queue.first;
    queue.waiting_bytes = 0;
    pthread_mutex_unlock(&queue.lock);
    return first;
}

void xpr_device_records_lock(void) { pthread_mutex_lock(&queue.lock); }
void xpr_device_records_unlock(void) { pthread_mutex_unlock(&queue.lock); }

void xpr_device_records_after_fork_child(void) {
    queue.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    release();
}
