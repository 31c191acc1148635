#include "device/cupti_ranges.h"

#include <stdatomic.h>
#include <time.h>

#include "device/ranges.h"
#include "xprof_py/shard_format.h"

enum { MAX_DEPTH = 64, COUNTERS = 16, POLL_NS = 50000 };

/* Calls under way, spread over cache lines: launching threads must not wait for each other. */
static struct {
    _Alignas(64) atomic_uint calls;
} under_way[COUNTERS];
static atomic_uint next_counter;

static atomic_bool on;
static const struct xpr_cupti *cupti;
static ct_subscriber subscriber;
static uint32_t session;
static _Atomic uint64_t refused;

static _Thread_local struct {
    uint32_t session, depth; /* depth counts the ranges beyond MAX_DEPTH as well, which are not told */
    uint32_t counter;        /* + 1, 0: none yet */
    uint32_t ids[MAX_DEPTH];
    bool told[MAX_DEPTH];
} mine;

static bool begin(void) {
    if (!mine.counter) mine.counter = 1 + atomic_fetch_add(&next_counter, 1) % COUNTERS;
    atomic_fetch_add(&under_way[mine.counter - 1].calls, 1);
    if (atomic_load(&on)) return true;
    atomic_fetch_sub(&under_way[mine.counter - 1].calls, 1);
    return false;
}

static void end(void) { atomic_fetch_sub_explicit(&under_way[mine.counter - 1].calls, 1, memory_order_release); }

static void push(uint32_t string_id) {
    if (!begin()) return;
    if (mine.session != session) {
        mine.session = session;
        mine.depth = 0;
    }
    bool told = false;
    if (mine.depth < MAX_DEPTH) {
        uint64_t id = (uint64_t)session << 32 | string_id;
        int result = subscriber    ? cupti->push_v2(subscriber, CT_EXTERNAL_CUSTOM2, id)
                     : cupti->push ? cupti->push(CT_EXTERNAL_CUSTOM2, id)
                                   : CT_NOT_COMPATIBLE;
        told = result == CT_OK;
        mine.ids[mine.depth] = string_id;
        mine.told[mine.depth] = told;
    }
    if (!told) atomic_fetch_add_explicit(&refused, 1, memory_order_relaxed);
    mine.depth++;
    end();
}

static void pop(void) {
    if (!begin()) return;
    if (mine.session == session && mine.depth && --mine.depth < MAX_DEPTH && mine.told[mine.depth]) {
        uint64_t last;
        if (subscriber)
            cupti->pop_v2(subscriber, CT_EXTERNAL_CUSTOM2, &last);
        else if (cupti->pop)
            cupti->pop(CT_EXTERNAL_CUSTOM2, &last);
    }
    end();
}

void xpr_cupti_ranges_on(const struct xpr_cupti *library, ct_subscriber with, uint32_t number) {
    static const struct xpr_device_ranges ours = {push, pop};
    cupti = library;
    subscriber = with;
    session = number;
    atomic_store(&refused, 0);
    atomic_store(&on, true);
    atomic_store(&xpr_device_ranges, &ours);
}

void xpr_cupti_ranges_off(void) {
    atomic_store(&xpr_device_ranges, NULL);
    atomic_store(&on, false);
    for (int i = 0; i < COUNTERS; i++)
        while (atomic_load(&under_way[i].calls)) nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
}

uint32_t xpr_cupti_range_here(void) {
    if (!atomic_load_explicit(&on, memory_order_acquire) || mine.session != session || !mine.depth) return XPR_NO_STRING;
    return mine.ids[(mine.depth < MAX_DEPTH ? mine.depth : MAX_DEPTH) - 1];
}

uint64_t xpr_cupti_ranges_refused(void) { return atomic_load(&refused); }

void xpr_cupti_ranges_after_fork_child(void) {
    atomic_store(&xpr_device_ranges, NULL);
    atomic_store(&on, false);
    for (int i = 0; i < COUNTERS; i++) atomic_store(&under_way[i].calls, 0);
}
