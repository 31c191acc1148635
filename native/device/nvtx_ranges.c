#define _GNU_SOURCE
#include "device/nvtx_ranges.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "device/nvtx_arguments.h"

enum { FEW = 4, FIRST_DEPTH = 32, MOST_DEPTH = 1 << 16 };

/* A range that has begun: what it is recorded with when it ends. */
struct range {
    xprof_py_span span;
    struct xpr_nvtx_domain *domain;
    uint64_t *more; /* its arguments where it has many, else NULL */
    uint64_t few[FEW];
    uint32_t name;
    uint16_t schema, count;
    bool launches; /* device work is marked with it */
};

struct thread {
    uint32_t capture; /* of the ranges below */
    uint32_t depth, room;
    uint32_t beyond; /* pushes that found no room, of the innermost ranges */
    struct range *open;
    struct xpr_nvtx_texts texts;
};

static _Thread_local struct thread *this_thread __attribute__((tls_model("initial-exec")));
static pthread_key_t thread_end;
static int no_thread_end = -1;

static const struct xprof_py_trace_table *table(void) { return xprof_py_trace_v1.table; }

static void forget(struct thread *thread) {
    for (uint32_t i = 0; i < thread->depth; i++) free(thread->open[i].more);
    thread->depth = thread->beyond = 0;
}

static void on_thread_end(void *value) {
    struct thread *thread = value;
    this_thread = NULL;
    forget(thread);
    free(thread->open);
    free(thread);
}

__attribute__((constructor)) static void prepare(void) { no_thread_end = pthread_key_create(&thread_end, on_thread_end); }

static __attribute__((noinline)) struct thread *thread_in(uint32_t capture) {
    struct thread *thread = this_thread;
    if (!thread) {
        if (no_thread_end) return NULL;
        thread = calloc(1, sizeof *thread);
        if (!thread) return NULL;
        if (pthread_setspecific(thread_end, thread) != 0) {
            free(thread);
            return NULL;
        }
        this_thread = thread;
    }
    /* What an earlier capture left open ended without one, or is not of this one. */
    forget(thread);
    thread->capture = capture;
    const char *name = xpr_nvtx_thread_name((uint32_t)syscall(SYS_gettid));
    if (name) table()->name_thread(name);
    return thread;
}

/* The calling thread, NULL: no memory. */
static inline struct thread *here(uint32_t capture) {
    struct thread *thread = this_thread;
    return __builtin_expect(thread && thread->capture == capture, 1) ? thread : thread_in(capture);
}

static inline void read_said(struct xpr_nvtx_arguments *a, struct thread *thread, const struct xpr_nvtx_said *said) {
    if (said->message)
        xpr_nvtx_read_message(a, &thread->texts, thread->capture, said->message);
    else
        xpr_nvtx_read_event(a, &thread->texts, thread->capture, xpr_nvtx_domain_of(said->domain), said->attributes,
                            said->payloads, said->payload_count);
}

static inline struct xprof_py_event recorded(const struct range *range) {
    return (struct xprof_py_event){
        .name = range->name, .schema = range->schema, .count = range->count, .values = range->more ? range->more : range->few};
}

/* Begins a range into `range`. */
static inline void begin(struct range *range, struct thread *thread, const struct xpr_nvtx_said *said) {
    uint32_t capture = thread->capture;
    range->domain = said->domain;
    range->more = NULL;
    range->launches = false;
    bool may_be_simple = !said->payload_count && (said->attributes || said->message);
    uint32_t id = may_be_simple ? xpr_nvtx_read_simple(&thread->texts, capture, xpr_nvtx_domain_of(said->domain), said->attributes,
                                                       said->message, &range->name, &range->schema)
                                : 0;
    if (__builtin_expect(id != 0, 1)) {
        range->few[0] = id;
        range->count = 1;
    } else {
        struct xpr_nvtx_arguments a;
        read_said(&a, thread, said);
        range->name = a.message;
        range->schema = a.schema;
        range->count = a.count;
        if (a.count > FEW) range->more = malloc(a.count * sizeof *range->more);
        if (a.count > FEW && !range->more) {
            table()->leave_out(a.count);
            range->schema = range->count = 0;
        }
        for (unsigned i = 0; i < range->count; i++) (range->more ? range->more : range->few)[i] = a.values[i];
    }
    struct xprof_py_event event = recorded(range);
    range->span = table()->enter(capture, &event);
}

static inline void finish(struct range *range, size_t payload_count) {
    struct xprof_py_event event = recorded(range);
    table()->leave(range->span, &event);
    if (__builtin_expect(range->more != NULL, 0)) free(range->more);
    if (__builtin_expect(payload_count > 0, 0)) table()->leave_out(payload_count);
}

static bool has_room(struct thread *thread) {
    if (__builtin_expect(thread->depth < thread->room, 1)) return true;
    uint32_t room = thread->room ? thread->room * 2 : FIRST_DEPTH;
    struct range *wider = room <= MOST_DEPTH ? realloc(thread->open, room * sizeof *wider) : NULL;
    if (!wider) return false;
    thread->open = wider;
    thread->room = room;
    return true;
}

/* One that finds no room: begun and never ended for the recorder, which counts it so. */
static __attribute__((noinline)) void begin_beyond(struct thread *thread, const struct xpr_nvtx_said *said) {
    struct range range;
    begin(&range, thread, said);
    free(range.more);
}

void xpr_nvtx_push(uint32_t capture, const struct xpr_nvtx_said *said) {
    struct thread *thread = here(capture);
    if (!thread) return;
    if (__builtin_expect(thread->beyond || !has_room(thread), 0)) {
        begin_beyond(thread, said);
        thread->beyond++;
        return;
    }
    struct range *range = &thread->open[thread->depth];
    begin(range, thread, said);
    if (__builtin_expect(said->domain && said->domain->is_xla, 0)) range->launches = table()->begin_launches(range->name);
    thread->depth++;
}

static void pop_below(struct thread *thread, struct xpr_nvtx_domain *domain, size_t payload_count);

static inline void pop_at(struct thread *thread, uint32_t at, size_t payload_count) {
    struct range *range = &thread->open[at];
    if (__builtin_expect(range->launches, 0)) table()->end_launches();
    finish(range, payload_count);
    thread->depth--;
    if (__builtin_expect(at != thread->depth, 0)) memmove(range, range + 1, (thread->depth - at) * sizeof *range);
}

void xpr_nvtx_pop(uint32_t capture, struct xpr_nvtx_domain *domain, size_t payload_count) {
    struct thread *thread = this_thread;
    if (!thread || thread->capture != capture) return;
    uint32_t depth = thread->depth;
    if (__builtin_expect(!thread->beyond && depth && thread->open[depth - 1].domain == domain, 1))
        pop_at(thread, depth - 1, payload_count);
    else
        pop_below(thread, domain, payload_count);
}

/* Not the innermost range, or one that found no room, or one whose push was before the capture. */
static __attribute__((noinline)) void pop_below(struct thread *thread, struct xpr_nvtx_domain *domain, size_t payload_count) {
    if (thread->beyond) {
        thread->beyond--;
        return;
    }
    for (uint32_t at = thread->depth; at--;)
        if (thread->open[at].domain == domain) {
            pop_at(thread, at, payload_count);
            return;
        }
}

void xpr_nvtx_mark(uint32_t capture, const struct xpr_nvtx_said *said) {
    struct thread *thread = here(capture);
    if (!thread) return;
    struct xpr_nvtx_arguments a;
    read_said(&a, thread, said);
    struct xprof_py_event event = {.name = a.message, .schema = a.schema, .count = a.count, .values = a.values};
    table()->instant(capture, &event);
}

/* --- ranges that end on any thread -------------------------------------------------------------------------------------
 * A place in one of several blocks that are never freed; free ones in a list whose head carries a count against its being
 * taken for an earlier one of the same value. A range's id: the place in bits 0-31, how often it was taken before in 32-63. */

enum { BLOCK = 1024, BLOCKS = 1024 };

struct place {
    struct range range;
    uint32_t next_free; /* place + 1, 0: none */
    uint32_t turn;      /* odd: taken */
};

static struct place *blocks[BLOCKS];
static uint32_t places;    /* ever taken */
static uint64_t free_list; /* place + 1 in bits 0-31, a count in 32-63 */

static struct place *place_at(uint32_t index) {
    struct place *block = __atomic_load_n(&blocks[index / BLOCK], __ATOMIC_ACQUIRE);
    return block ? &block[index % BLOCK] : NULL;
}

static struct place *new_place(uint32_t *index) {
    *index = __atomic_load_n(&places, __ATOMIC_RELAXED);
    do {
        if (*index >= (uint32_t)BLOCK * BLOCKS) return NULL;
    } while (!__atomic_compare_exchange_n(&places, index, *index + 1, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    struct place **block = &blocks[*index / BLOCK], *none = NULL;
    if (!__atomic_load_n(block, __ATOMIC_ACQUIRE)) {
        struct place *mine = calloc(BLOCK, sizeof *mine);
        if (!mine) return NULL;
        if (!__atomic_compare_exchange_n(block, &none, mine, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) free(mine);
    }
    return place_at(*index);
}

static struct place *take(uint32_t *index) {
    uint64_t head = __atomic_load_n(&free_list, __ATOMIC_ACQUIRE), next;
    do {
        if (!(uint32_t)head) return new_place(index);
        *index = (uint32_t)head - 1;
        struct place *first = place_at(*index); /* what is in the list was taken once, so its block is there */
        if (!first) return NULL;
        next = ((head >> 32) + 1) << 32 | __atomic_load_n(&first->next_free, __ATOMIC_RELAXED);
    } while (!__atomic_compare_exchange_n(&free_list, &head, next, true, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    return place_at(*index);
}

static void give(struct place *place, uint32_t index) {
    uint64_t head = __atomic_load_n(&free_list, __ATOMIC_RELAXED);
    do {
        __atomic_store_n(&place->next_free, (uint32_t)head, __ATOMIC_RELAXED);
    } while (!__atomic_compare_exchange_n(&free_list, &head, ((head >> 32) + 1) << 32 | (index + 1), true, __ATOMIC_RELEASE,
                                          __ATOMIC_RELAXED));
}

uint64_t xpr_nvtx_start(uint32_t capture, const struct xpr_nvtx_said *said) {
    struct thread *thread = here(capture);
    if (!thread) return 0;
    uint32_t index;
    struct place *place = take(&index);
    if (!place) {
        begin_beyond(thread, said);
        return 0;
    }
    begin(&place->range, thread, said);
    uint32_t turn = __atomic_add_fetch(&place->turn, 1, __ATOMIC_RELEASE);
    return (uint64_t)turn << 32 | index;
}

void xpr_nvtx_end(uint32_t capture, uint64_t id, size_t payload_count) {
    uint32_t index = (uint32_t)id, turn = (uint32_t)(id >> 32);
    struct place *place = turn & 1 && index < (uint32_t)BLOCK * BLOCKS ? place_at(index) : NULL;
    /* One that has ended, or another one in its place: a client's mistake that must cost nothing else. */
    if (!place || !__atomic_compare_exchange_n(&place->turn, &turn, turn + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return;
    struct range range = place->range;
    give(place, index);
    if (range.span.capture == capture) {
        if (here(capture)) finish(&range, payload_count);
    } else {
        free(range.more);
    }
}
