#define _GNU_SOURCE
#include "probe/probe.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "probe/packet.h"
#include "probe/sockets.h"
#include "recorder/clock.h"
#include "recorder/exchanges.h"
#include "recorder/own_thread.h"

#define MS INT64_C(1000000)
#define SECOND INT64_C(1000000000)

enum {
    STACK_BYTES = 512 << 10,
    SLICE_READS = 200, /* packets that the server reads in SLICE_NS */
    SHARE_PER_MILLION = 800,
    FIRST_COST_NS = 15000, /* of one exchange, until it is known */
};
static const int64_t START_NS = 5 * SECOND, LOST_NS = SECOND, SLICE_NS = 10 * MS, CREDIT_NS = 5 * MS, LONGEST_POLL_NS = 250 * MS,
                     POSTPONE_NS = 100 * MS, HEARD_NS = 600 * SECOND;

struct peer {
    struct xpr_socket socket;
    uint32_t id; /* in the shard and, less one, in the report */
    uint64_t sequence;
    bool waiting;
    int64_t t1_ns, m1_ns;
    uint32_t burst_left, failures; /* failures: exchanges without an answer in a row */
    int64_t next_burst_ns, least_gap_ns;
    struct xpr_seen seen;
};

/* Of one run of the thread, and the thread's alone. */
struct run {
    struct xpr_probe_options options;
    struct xpr_probe_report report;
    struct xpr_prober_record *totals; /* in the report */
    struct xpr_socket server;
    struct peer peers[XPR_MAX_PEERS];
    uint32_t peer_count, first_peer;
    struct xpr_clients clients;
    uint32_t client_count;
    int64_t began_ns, clients_counted_ns, slice_ns;
    uint32_t slice_reads;
    uint64_t exchanges, random;
    uint64_t rejects_cpu_ns; /* CPU time of the rounds in which something was rejected */
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool running, stop, ended;
    struct xpr_socket wake;        /* any socket of the run, for the stop to shake; the thread's to close */
    struct run *run;               /* the thread's while it runs */
    struct xpr_probe_report report; /* once ended */
} prober = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = {.fd = -1}};

/* --- small parts -------------------------------------------------------------------------------------------------- */

static int64_t monotonic_ns(void) { return xpr_clock_read_ns(CLOCK_MONOTONIC); }

static bool is_stopped(void) {
    pthread_mutex_lock(&prober.lock);
    bool stop = prober.stop;
    pthread_mutex_unlock(&prober.lock);
    return stop;
}

static uint64_t random_bits(struct run *r) {
    r->random ^= r->random << 13;
    r->random ^= r->random >> 7;
    return r->random ^= r->random << 17;
}

/* Evenly from half to one and a half of the mean. */
static int64_t around(struct run *r, int64_t mean_ns) {
    return mean_ns / 2 + (int64_t)(random_bits(r) % (uint64_t)(mean_ns + 1));
}

/* What the exchanges have cost. Whoever sends rubbish must not stop them by using up their share, so it is left out. */
static uint64_t own_cpu_ns(const struct run *r) { return r->totals->cpu_ns - r->rejects_cpu_ns; }

static uint64_t cost_ns(const struct run *r) { return r->exchanges < 50 ? FIRST_COST_NS : own_cpu_ns(r) / r->exchanges; }

static uint64_t rejects(const struct run *r) { return r->totals->malformed + r->totals->bad_token + r->totals->replayed; }

static void tell(char *place, size_t room, const char *restrict text) {
    size_t bytes = strnlen(text, room - 1);
    memcpy(place, text, bytes);
    place[bytes] = 0;
}

static void tell_errno(char *place, size_t room, int error) {
    char text[96];
    tell(place, room, strerror_r(error, text, sizeof text));
}

/* What the exchanges may have cost until now. */
static uint64_t allowed_cpu_ns(const struct run *r, int64_t now_ns) {
    return (uint64_t)(CREDIT_NS + (now_ns - r->began_ns) / 1000000 * SHARE_PER_MILLION);
}

/* --- the server --------------------------------------------------------------------------------------------------- */

/* The mean distance between the bursts of one client at which all of them together stay within the share; where this
 * process asks others as well, within half of it. Twice that while more has been used than allowed. */
static uint32_t wanted_interval_us(const struct run *r, int64_t now_ns) {
    uint64_t share = r->peer_count ? SHARE_PER_MILLION / 2 : SHARE_PER_MILLION;
    uint64_t interval_us = r->client_count * XPR_BURST * cost_ns(r) * 1000 / share;
    if (own_cpu_ns(r) > allowed_cpu_ns(r, now_ns)) interval_us *= 2;
    return interval_us > UINT32_MAX ? UINT32_MAX : (uint32_t)interval_us;
}

static void answer(struct run *r, const struct xpr_packet *request, const struct xpr_way *way, uint32_t wait2_ns, int64_t t2_ns,
                   int64_t m2_ns) {
    struct xpr_packet reply = {
        .type = XPR_REPLY,
        .client_session = request->client_session,
        .sequence = request->sequence,
        .server_session = r->report.session,
        .t2_ns = t2_ns,
        .m2_ns = m2_ns,
        .wait2_ns = wait2_ns,
        .interval_us = wanted_interval_us(r, m2_ns),
    };
    reply.m3_ns = monotonic_ns();
    reply.t3_ns = xpr_clock_read_ns(CLOCK_REALTIME);
    xpr_packet_seal(&reply, r->options.key);
    if (xpr_socket_reply(r->server.fd, &reply, sizeof reply, way)) r->totals->served++;
    r->exchanges++;
}

static void reject(struct run *r, enum xpr_verdict verdict) {
    if (verdict == XPR_BAD_TOKEN)
        r->totals->bad_token++;
    else
        r->totals->malformed++;
}

/* Reads what has come for the server, as far as the slice of time allows. */
static void serve(struct run *r, int64_t now_ns) {
    if (now_ns - r->slice_ns >= SLICE_NS) {
        r->slice_ns = now_ns;
        r->slice_reads = 0;
    }
    if (now_ns - r->clients_counted_ns >= SECOND) {
        r->clients_counted_ns = now_ns;
        r->client_count = xpr_clients_heard(&r->clients, now_ns - HEARD_NS);
    }
    for (; r->slice_reads < SLICE_READS; r->slice_reads++) {
        struct xpr_packet raw, request;
        struct xpr_way way;
        ssize_t bytes = xpr_socket_read(r->server.fd, &raw, sizeof raw, &way);
        if (bytes < 0) return;
        enum xpr_verdict verdict = xpr_packet_open(&request, &raw, (size_t)bytes, XPR_REQUEST, r->options.key);
        if (verdict != XPR_GENUINE) {
            reject(r, verdict);
            continue;
        }
        /* The wait first: t2 less the wait then lies at or after the arrival, never before it. */
        uint32_t wait2_ns = xpr_wait_ns(&way);
        int64_t t2_ns = xpr_clock_read_ns(CLOCK_REALTIME), m2_ns = monotonic_ns();
        if (!xpr_clients_first(&r->clients, request.client_session, request.sequence, now_ns)) {
            r->totals->replayed++;
            continue;
        }
        /* A new client counts at once: a thousand that start together must hear so from their first reply on. */
        if (request.sequence == 1) r->client_count++;
        answer(r, &request, &way, wait2_ns, t2_ns, m2_ns);
    }
}

/* --- the client --------------------------------------------------------------------------------------------------- */

static void keep(struct run *r, struct peer *p, uint32_t outcome, const struct xpr_packet *reply, struct xpr_exchange_record more) {
    struct xpr_exchange_record record = more;
    record.t1_ns = p->t1_ns;
    record.m1_ns = p->m1_ns;
    record.peer = p->id;
    record.outcome = outcome;
    if (reply) {
        record.t2_ns = reply->t2_ns;
        record.t3_ns = reply->t3_ns;
        record.m2_ns = reply->m2_ns;
        record.m3_ns = reply->m3_ns;
        record.wait2_ns = reply->wait2_ns;
        record.peer_session = reply->server_session;
        r->report.peers[p->id - 1].answered++;
    }
    xpr_add_exchange(&record);
    p->waiting = false;
}

/* An exchange without an answer ends its burst. A peer that is gone is asked once in two seconds. */
static void fail(struct run *r, struct peer *p, uint32_t outcome, int64_t now_ns) {
    keep(r, p, outcome, NULL, (struct xpr_exchange_record){.wait2_ns = XPR_WAIT_UNKNOWN, .wait4_ns = XPR_WAIT_UNKNOWN});
    p->burst_left = 0;
    if (p->failures < 8) p->failures++;
    int64_t rest_ns = (int64_t)(100 * MS) << p->failures;
    if (rest_ns > 2 * SECOND) rest_ns = 2 * SECOND;
    if (p->next_burst_ns < now_ns + rest_ns) p->next_burst_ns = now_ns + rest_ns;
}

static void lose_socket(struct run *r, struct peer *p) {
    struct xpr_peer_report *said = &r->report.peers[p->id - 1];
    tell(said->error, sizeof said->error, "the program closed the prober's socket");
    p->socket.fd = -1;
    p->waiting = false;
    p->burst_left = 0;
}

static void ask(struct run *r, struct peer *p) {
    if (!xpr_socket_is_ours(&p->socket)) {
        lose_socket(r, p);
        return;
    }
    struct xpr_packet request = {.type = XPR_REQUEST, .client_session = r->report.session, .sequence = ++p->sequence};
    xpr_packet_seal(&request, r->options.key);
    p->burst_left--;
    p->waiting = true;
    r->exchanges++;
    r->report.peers[p->id - 1].sent++;
    p->m1_ns = monotonic_ns();
    p->t1_ns = xpr_clock_read_ns(CLOCK_REALTIME);
    if (send(p->socket.fd, &request, sizeof request, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof request) return;
    /* ECONNREFUSED is the answer of the peer's kernel to the request before. */
    fail(r, p, errno == ECONNREFUSED ? XPR_EXCHANGE_REFUSED : XPR_EXCHANGE_NOT_SENT, p->m1_ns);
}

static void listen_to(struct run *r, struct peer *p) {
    if (!xpr_socket_is_ours(&p->socket)) {
        lose_socket(r, p);
        return;
    }
    for (int i = 0; i < SLICE_READS; i++) {
        struct xpr_packet raw, reply;
        struct xpr_way way;
        ssize_t bytes = xpr_socket_read(p->socket.fd, &raw, sizeof raw, &way);
        if (bytes == -ECONNREFUSED && p->waiting) fail(r, p, XPR_EXCHANGE_REFUSED, monotonic_ns());
        if (bytes < 0) return;
        enum xpr_verdict verdict = xpr_packet_open(&reply, &raw, (size_t)bytes, XPR_REPLY, r->options.key);
        /* A sequence that was never sent, or another session's, was not asked for; its sender holds the token all the same. */
        if (verdict == XPR_GENUINE && (reply.client_session != r->report.session || reply.sequence > p->sequence))
            verdict = XPR_MALFORMED;
        if (verdict != XPR_GENUINE) {
            reject(r, verdict);
            continue;
        }
        struct xpr_exchange_record record = {.wait4_ns = xpr_wait_ns(&way)};
        record.t4_ns = xpr_clock_read_ns(CLOCK_REALTIME);
        record.m4_ns = monotonic_ns();
        if (!xpr_seen_first(&p->seen, reply.sequence)) {
            r->totals->replayed++;
        } else if (!p->waiting || reply.sequence != p->sequence) {
            r->totals->late++;
        } else {
            keep(r, p, XPR_EXCHANGE_ANSWERED, &reply, record);
            p->failures = 0;
            p->least_gap_ns = (int64_t)reply.interval_us * 1000;
            /* The server has become busier than it was when the next burst was planned. */
            if (p->next_burst_ns - record.m4_ns < p->least_gap_ns / 4) p->next_burst_ns = record.m4_ns + around(r, p->least_gap_ns);
        }
    }
}

/* Begins and goes on with bursts whose time has come, ends what has waited too long. Returns when to look again. */
static int64_t attend(struct run *r, int64_t now_ns) {
    int64_t next_ns = now_ns + LONGEST_POLL_NS;
    bool may_begin = own_cpu_ns(r) < allowed_cpu_ns(r, now_ns);
    r->first_peer++;
    for (uint32_t i = 0; i < r->peer_count; i++) {
        /* Not always the same first: the last would get what the others leave of the share. */
        struct peer *p = &r->peers[(r->first_peer + i) % r->peer_count];
        if (p->socket.fd < 0) continue;
        if (p->waiting && now_ns - p->m1_ns >= LOST_NS) fail(r, p, XPR_EXCHANGE_LOST, now_ns);
        if (!p->waiting && !p->burst_left && now_ns >= p->next_burst_ns) {
            if (!may_begin) {
                r->totals->postponed++;
                p->next_burst_ns = now_ns + around(r, POSTPONE_NS);
            } else {
                int64_t gap_ns = now_ns - r->began_ns < START_NS ? 120 * MS : 400 * MS;
                if (gap_ns < p->least_gap_ns) gap_ns = p->least_gap_ns;
                p->next_burst_ns = now_ns + around(r, gap_ns);
                /* At first one, to hear how often the server wants to be asked. */
                p->burst_left = p->sequence ? XPR_BURST : 1;
            }
        }
        if (!p->waiting && p->burst_left) ask(r, p);
        int64_t due_ns = p->waiting ? p->m1_ns + LOST_NS : p->next_burst_ns;
        if (due_ns < next_ns) next_ns = due_ns;
    }
    return next_ns;
}

/* --- the thread --------------------------------------------------------------------------------------------------- */

static void start_server(struct run *r, uint16_t port) {
    int error = xpr_socket_serve(&r->server, port);
    if (error) {
        tell_errno(r->report.serve_error, sizeof r->report.serve_error, error);
        return;
    }
    r->report.serve_error[0] = 0;
    r->report.served_port = port;
}

static void add_peer(struct run *r, const struct xpr_probe_address *a, const struct addrinfo *found, const char *why_not) {
    struct xpr_peer_report *said = &r->report.peers[r->report.count++];
    struct peer *p = &r->peers[r->peer_count];
    tell(said->text, sizeof said->text, a->text);
    xpr_add_probe(r->report.count, 0, a->text);
    if (why_not) {
        tell(said->error, sizeof said->error, why_not);
        return;
    }
    int error = xpr_socket_connect(&p->socket, found);
    if (error) {
        tell_errno(said->error, sizeof said->error, error);
        return;
    }
    p->id = r->report.count;
    p->next_burst_ns = monotonic_ns() + around(r, 50 * MS);
    r->peer_count++;
}

/* An address of the mesh: ours to answer at, somebody else's to ask, or the one at which this process answers already. */
static bool is_own(struct run *r, const struct xpr_probe_address *a, const struct addrinfo *found) {
    if (!a->mesh || !xpr_address_is_local(found)) return false;
    if (r->report.served_port) return r->report.served_port == a->port;
    start_server(r, a->port);
    return r->report.served_port != 0;
}

static void open_sockets(struct run *r) {
    if (r->options.serve_port) start_server(r, r->options.serve_port);
    for (uint32_t i = 0; i < r->options.count && !is_stopped(); i++) {
        const struct xpr_probe_address *a = &r->options.addresses[i];
        struct addrinfo *found = NULL;
        int error = xpr_resolve(a->host, a->port, &found);
        if (error || !is_own(r, a, found)) add_peer(r, a, found, error ? gai_strerror(error) : NULL);
        if (found) freeaddrinfo(found);
    }
    char port[8] = "";
    if (r->report.served_port) snprintf(port, sizeof port, "%u", r->report.served_port);
    xpr_add_probe(0, r->report.session, port);
    pthread_mutex_lock(&prober.lock);
    prober.wake = r->report.served_port ? r->server : r->peers[0].socket;
    pthread_mutex_unlock(&prober.lock);
}

static void look(struct run *r) {
    struct pollfd waits[1 + XPR_MAX_PEERS];
    int64_t now_ns = monotonic_ns();
    r->totals->cpu_ns = (uint64_t)xpr_clock_read_ns(CLOCK_THREAD_CPUTIME_ID);
    int64_t until_ns = attend(r, now_ns);
    bool resting = r->slice_reads >= SLICE_READS && now_ns - r->slice_ns < SLICE_NS;
    if (resting && r->slice_ns + SLICE_NS < until_ns) until_ns = r->slice_ns + SLICE_NS;
    /* poll passes over negative descriptors. */
    waits[0] = (struct pollfd){.fd = resting ? -1 : r->server.fd, .events = POLLIN};
    for (uint32_t i = 0; i < r->peer_count; i++) waits[1 + i] = (struct pollfd){.fd = r->peers[i].socket.fd, .events = POLLIN};
    int64_t wait_ns = until_ns - monotonic_ns();
    struct timespec timeout = {wait_ns > 0 ? wait_ns / SECOND : 0, wait_ns > 0 ? wait_ns % SECOND : 0};
    if (ppoll(waits, 1 + r->peer_count, &timeout, NULL) <= 0 || is_stopped()) return;
    uint64_t rejected = rejects(r);
    if (waits[0].revents) {
        if (xpr_socket_is_ours(&r->server)) {
            serve(r, monotonic_ns());
        } else {
            r->server.fd = -1;
            tell(r->report.serve_error, sizeof r->report.serve_error, "the program closed the prober's socket");
        }
    }
    for (uint32_t i = 0; i < r->peer_count; i++)
        if (waits[1 + i].revents) listen_to(r, &r->peers[i]);
    if (rejects(r) != rejected) r->rejects_cpu_ns += (uint64_t)xpr_clock_read_ns(CLOCK_THREAD_CPUTIME_ID) - r->totals->cpu_ns;
}

static void end_run(struct run *r) {
    r->totals->rate_limited = xpr_socket_is_ours(&r->server) ? xpr_socket_drops(r->server.fd) : 0;
    r->report.wall_ns = monotonic_ns() - r->began_ns;
    r->totals->cpu_ns = (uint64_t)xpr_clock_read_ns(CLOCK_THREAD_CPUTIME_ID);
    pthread_mutex_lock(&prober.lock);
    prober.wake.fd = -1;
    pthread_mutex_unlock(&prober.lock);
    xpr_socket_close(&r->server);
    for (uint32_t i = 0; i < r->peer_count; i++) {
        if (r->peers[i].waiting)
            keep(r, &r->peers[i], XPR_EXCHANGE_LOST, NULL,
                 (struct xpr_exchange_record){.wait2_ns = XPR_WAIT_UNKNOWN, .wait4_ns = XPR_WAIT_UNKNOWN});
        xpr_socket_close(&r->peers[i].socket);
    }
    xpr_set_prober_totals(r->totals);
}

static void *probe(void *argument) {
    struct run *r = argument;
    pthread_setname_np(pthread_self(), "xprof_py.probe");
    open_sockets(r);
    while (!is_stopped()) look(r);
    end_run(r);
    pthread_mutex_lock(&prober.lock);
    prober.report = r->report;
    prober.ended = true;
    prober.run = NULL;
    free(r);
    pthread_cond_broadcast(&prober.changed);
    pthread_mutex_unlock(&prober.lock);
    return NULL;
}

/* --- start, stop, fork -------------------------------------------------------------------------------------------- */

static void init_lock(void) {
    prober.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    xpr_init_condition(&prober.changed);
}

static void before_fork(void) { pthread_mutex_lock(&prober.lock); }
static void after_fork_parent(void) { pthread_mutex_unlock(&prober.lock); }

/* The child has no thread, but copies of its descriptors: a port held by them would be taken for the child's life. */
static void after_fork_child(void) {
    struct run *r = prober.run;
    if (r) {
        xpr_socket_close(&r->server);
        for (uint32_t i = 0; i < r->peer_count; i++) xpr_socket_close(&r->peers[i].socket);
        free(r);
    }
    prober.run = NULL;
    prober.wake.fd = -1;
    prober.running = prober.stop = prober.ended = false;
    init_lock();
}

static int once_result;

static void install_once(void) {
    init_lock();
    once_result = pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

int xpr_probe_start(const struct xpr_probe_options *options) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_once);
    if (once_result) return once_result;
    struct run *r = calloc(1, sizeof *r);
    if (!r) return ENOMEM;
    r->options = *options;
    r->totals = &r->report.totals;
    r->server.fd = -1;
    for (int i = 0; i < XPR_MAX_PEERS; i++) r->peers[i].socket.fd = -1;
    r->began_ns = monotonic_ns();
    /* Without the kernel's random numbers the clock's nanoseconds and the address of the memory still tell two apart. */
    if (getrandom(&r->random, sizeof r->random, GRND_NONBLOCK) != (ssize_t)sizeof r->random)
        r->random = (uint64_t)r->began_ns ^ (uint64_t)(uintptr_t)r << 20;
    if (!r->random) r->random = 1;
    r->report.session = r->random;
    random_bits(r);

    pthread_mutex_lock(&prober.lock);
    int error = prober.running && !prober.ended ? EBUSY : 0;
    if (!error) {
        prober.stop = prober.ended = false;
        error = xpr_start_own_thread(probe, r, STACK_BYTES);
        prober.running = !error;
        if (!error) prober.run = r;
    }
    pthread_mutex_unlock(&prober.lock);
    if (error) free(r);
    return error;
}

bool xpr_probe_stop(int64_t timeout_ns, struct xpr_probe_report *report) {
    int64_t until_ns = monotonic_ns() + timeout_ns;
    struct timespec until = {until_ns / SECOND, until_ns % SECOND};
    pthread_mutex_lock(&prober.lock);
    prober.stop = true;
    /* Shutting a UDP socket down wakes whoever polls it, though it says ENOTCONN; without that the thread looks every 250 ms. */
    if (xpr_socket_is_ours(&prober.wake)) shutdown(prober.wake.fd, SHUT_RDWR);
    while (prober.running && !prober.ended)
        if (pthread_cond_timedwait(&prober.changed, &prober.lock, &until) == ETIMEDOUT) break;
    bool ended = prober.running && prober.ended;
    if (ended) {
        *report = prober.report;
        prober.running = false;
    }
    pthread_mutex_unlock(&prober.lock);
    return ended;
}

bool xpr_probe_running(void) {
    pthread_mutex_lock(&prober.lock);
    bool running = prober.running && !prober.ended;
    pthread_mutex_unlock(&prober.lock);
    return running;
}
