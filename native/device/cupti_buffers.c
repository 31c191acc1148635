#include "device/cupti_buffers.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD_BYTES = 64 }; /* before the records, so that these are aligned as CUPTI wants them */

struct buffer {
    struct buffer *next;
    size_t bytes, valid;
    uint32_t session;
};
_Static_assert(sizeof(struct buffer) <= HEAD_BYTES, "head");

static struct {
    pthread_mutex_t lock;
    bool open;
    uint32_t session, bytes, most;
    uint32_t out; /* given, or full, or being parsed */
    struct buffer *free, *full, **last_full;
    uint64_t refused;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .last_full = &pool.full};

static uint8_t *records_of(struct buffer *b) { return (uint8_t *)b + HEAD_BYTES; }
static struct buffer *buffer_of(uint8_t *records) { return (void *)(records - HEAD_BYTES); }

static void free_all(struct buffer *b) {
    while (b) {
        struct buffer *next = b->next;
        free(b);
        b = next;
    }
}

void xpr_cupti_buffers_open(uint32_t bytes, uint32_t most) {
    pthread_mutex_lock(&pool.lock);
    pool.bytes = (bytes + 63) & ~63u;
    pool.most = most;
    pool.session++; /* what an earlier one never got back counts no more */
    pool.out = 0;
    pool.refused = 0;
    pool.open = true;
    pthread_mutex_unlock(&pool.lock);
}

void xpr_cupti_buffers_close(void) {
    pthread_mutex_lock(&pool.lock);
    pool.open = false;
    free_all(pool.free);
    free_all(pool.full);
    pool.free = pool.full = NULL;
    pool.last_full = &pool.full;
    pthread_mutex_unlock(&pool.lock);
}

uint8_t *xpr_cupti_buffer_give(size_t *bytes) {
    pthread_mutex_lock(&pool.lock);
    struct buffer *b = NULL;
    if (pool.open && pool.out < pool.most) {
        b = pool.free;
        if (b)
            pool.free = b->next;
        else
            b = aligned_alloc(64, HEAD_BYTES + (size_t)pool.bytes);
    }
    if (b) {
        b->next = NULL;
        b->bytes = pool.bytes;
        b->valid = 0;
        b->session = pool.session;
        pool.out++;
    } else {
        pool.refused++;
    }
    *bytes = b ? b->bytes : 0;
    pthread_mutex_unlock(&pool.lock);
    return b ? records_of(b) : NULL;
}

/* With the lock held. */
static void put_away(struct buffer *b) {
    bool ours = b->session == pool.session;
    if (ours) pool.out--;
    if (ours && pool.open) {
        b->next = pool.free;
        pool.free = b;
    } else {
        free(b);
    }
}

bool xpr_cupti_buffer_back(uint8_t *records, size_t valid) {
    struct buffer *b = buffer_of(records);
    pthread_mutex_lock(&pool.lock);
    bool to_parse = pool.open && valid && b->session == pool.session;
    if (to_parse) {
        b->valid = valid;
        b->next = NULL;
        *pool.last_full = b;
        pool.last_full = &b->next;
    } else {
        put_away(b);
    }
    pthread_mutex_unlock(&pool.lock);
    return to_parse;
}

uint8_t *xpr_cupti_buffer_full(size_t *valid) {
    pthread_mutex_lock(&pool.lock);
    struct buffer *b = pool.full;
    if (b) {
        pool.full = b->next;
        if (!pool.full) pool.last_full = &pool.full;
        *valid = b->valid;
    }
    pthread_mutex_unlock(&pool.lock);
    return b ? records_of(b) : NULL;
}

void xpr_cupti_buffer_free(uint8_t *records) {
    pthread_mutex_lock(&pool.lock);
    put_away(buffer_of(records));
    pthread_mutex_unlock(&pool.lock);
}

bool xpr_cupti_buffers_waiting(void) {
    pthread_mutex_lock(&pool.lock);
    bool waiting = pool.full != NULL;
    pthread_mutex_unlock(&pool.lock);
    return waiting;
}

uint64_t xpr_cupti_buffers_refused(void) {
    pthread_mutex_lock(&pool.lock);
    uint64_t refused = pool.refused;
    pthread_mutex_unlock(&pool.lock);
    return refused;
}

void xpr_cupti_buffers_lock(void) { pthread_mutex_lock(&pool.lock); }
void xpr_cupti_buffers_unlock(void) { pthread_mutex_unlock(&pool.lock); }

void xpr_cupti_buffers_after_fork_child(void) {
    memset(&pool, 0, sizeof pool);
    pool.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pool.last_full = &pool.full;
}
