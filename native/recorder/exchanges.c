#include "recorder/exchanges.h"

#include <pthread.h>
#include <string.h>

static struct {
    pthread_mutex_t lock;
    bool open, has_totals;
    struct xpr_bytes probes, exchanges;
    uint64_t dropped;
    struct xpr_prober_record totals;
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void release(void) {
    xpr_bytes_free(&table.probes);
    xpr_bytes_free(&table.exchanges);
    table.open = table.has_totals = false;
    table.dropped = 0;
}

void xpr_exchanges_reset(void) {
    pthread_mutex_lock(&table.lock);
    release();
    table.open = true;
    pthread_mutex_unlock(&table.lock);
}

void xpr_exchanges_clear(void) {
    pthread_mutex_lock(&table.lock);
    release();
    pthread_mutex_unlock(&table.lock);
}

void xpr_add_probe(uint32_t id, uint64_t session, const char *address) {
    size_t bytes = strnlen(address, XPR_MAX_PROBE_ADDRESS_BYTES);
    pthread_mutex_lock(&table.lock);
    struct xpr_probe_record *record =
        table.open ? xpr_bytes_add(&table.probes, sizeof *record + ((bytes + 7) & ~(size_t)7)) : NULL;
    if (record) {
        *record = (struct xpr_probe_record){.id = id, .bytes = (uint32_t)bytes, .session = session};
        memcpy(record + 1, address, bytes);
    }
    pthread_mutex_unlock(&table.lock);
}

void xpr_add_exchange(const struct xpr_exchange_record *exchange) {
    pthread_mutex_lock(&table.lock);
    if (table.open) {
        bool has_room = table.exchanges.used < XPR_MAX_WAITING_EXCHANGES * sizeof *exchange;
        void *place = has_room ? xpr_bytes_add(&table.exchanges, sizeof *exchange) : NULL;
        if (place)
            memcpy(place, exchange, sizeof *exchange);
        else
            table.dropped++;
    }
    pthread_mutex_unlock(&table.lock);
}

void xpr_set_prober_totals(const struct xpr_prober_record *totals) {
    pthread_mutex_lock(&table.lock);
    if (table.open) {
        table.totals = *totals;
        table.has_totals = true;
    }
    pthread_mutex_unlock(&table.lock);
}

bool xpr_prober_totals(struct xpr_prober_record *totals) {
    pthread_mutex_lock(&table.lock);
    bool found = table.has_totals;
    *totals = table.totals;
    totals->dropped = table.dropped;
    pthread_mutex_unlock(&table.lock);
    return found;
}

void xpr_exchanges_take(struct xpr_bytes *probes, struct xpr_bytes *exchanges) {
    pthread_mutex_lock(&table.lock);
    *probes = table.probes;
    *exchanges = table.exchanges;
    memset(&table.probes, 0, sizeof table.probes);
    memset(&table.exchanges, 0, sizeof table.exchanges);
    pthread_mutex_unlock(&table.lock);
}

void xpr_exchanges_lock(void) { pthread_mutex_lock(&table.lock); }
void xpr_exchanges_unlock(void) { pthread_mutex_unlock(&table.lock); }

void xpr_exchanges_after_fork_child(void) {
    table.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    release();
}
