#include "recorder/power_rows.h"

#include <pthread.h>
#include <string.h>

static struct {
    pthread_mutex_t lock;
    bool open, has_totals;
    struct xpr_bytes rows;
    uint64_t dropped, capture;
    struct xpr_power_totals_record totals;
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void release(void) {
    xpr_bytes_free(&table.rows);
    table.open = table.has_totals = false;
    table.dropped = 0;
}

void xpr_power_rows_reset(void) {
    pthread_mutex_lock(&table.lock);
    release();
    table.open = true;
    table.capture++;
    pthread_mutex_unlock(&table.lock);
}

void xpr_power_rows_clear(void) {
    pthread_mutex_lock(&table.lock);
    release();
    pthread_mutex_unlock(&table.lock);
}

uint64_t xpr_power_rows_capture(void) {
    pthread_mutex_lock(&table.lock);
    uint64_t capture = table.capture;
    pthread_mutex_unlock(&table.lock);
    return capture;
}

void xpr_add_power_row(uint64_t capture, const struct xpr_power_record *row) {
    pthread_mutex_lock(&table.lock);
    if (table.open && table.capture == capture) {
        bool has_room = table.rows.used < XPR_MAX_WAITING_POWER_ROWS * sizeof *row;
        void *place = has_room ? xpr_bytes_add(&table.rows, sizeof *row) : NULL;
        if (place)
            memcpy(place, row, sizeof *row);
        else
            table.dropped++;
    }
    pthread_mutex_unlock(&table.lock);
}

void xpr_set_power_totals(uint64_t capture, const struct xpr_power_totals_record *totals) {
    pthread_mutex_lock(&table.lock);
    if (table.open && table.capture == capture) {
        table.totals = *totals;
        table.has_totals = true;
    }
    pthread_mutex_unlock(&table.lock);
}

bool xpr_power_totals(struct xpr_power_totals_record *totals) {
    pthread_mutex_lock(&table.lock);
    bool found = table.has_totals;
    *totals = table.totals;
    totals->dropped = table.dropped;
    pthread_mutex_unlock(&table.lock);
    return found;
}

void xpr_power_rows_take(struct xpr_bytes *rows) {
    pthread_mutex_lock(&table.lock);
    *rows = table.rows;
    memset(&table.rows, 0, sizeof table.rows);
    pthread_mutex_unlock(&table.lock);
}

void xpr_power_rows_lock(void) { pthread_mutex_lock(&table.lock); }
void xpr_power_rows_unlock(void) { pthread_mutex_unlock(&table.lock); }

void xpr_power_rows_after_fork_child(void) {
    table.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    release();
}
