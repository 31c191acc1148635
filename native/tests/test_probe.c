/* The clock prober: its hash, its packets, and the thread against peers that answer, lie, repeat, flood and die. */
#define _GNU_SOURCE
#include "probe/probe.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "probe/packet.h"
#include "probe/siphash.h"
#include "probe/sockets.h"
#include "recorder/clock.h"
#include "recorder/exchanges.h"
#include "recorder/recorder.h"
#include "tests/check.h"

static const uint8_t KEY[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static const uint8_t OTHER_KEY[16] = {1};

/* --- the hash and the packet --------------------------------------------------------------------------------------- */

/* From the reference implementation's vectors: key 00..0f, messages 00, 00 01, ... */
static void the_hash_is_siphash_2_4(void) {
    static const uint64_t expected[] = {0x726fdb47dd0e0e31, 0x74f839c593dc67fd, 0x0d6c8009d9a94f5a, 0x85676696d7fb7e2d,
                                        0xcf2794e0277187b7, 0x18765564cd99a68d, 0xcbc9466e58fee3ce, 0xab0200f58b01d137,
                                        0x93f5f5799a932462};
    uint8_t message[16];
    for (int i = 0; i < 16; i++) message[i] = (uint8_t)i;
    for (size_t n = 0; n < sizeof expected / sizeof *expected; n++) CHECK(xpr_siphash(KEY, message, n) == expected[n]);
    CHECK(xpr_siphash(KEY, message, 15) == 0xa129ca6149be45e5); /* the example of the paper's appendix */
}

static struct xpr_packet request(uint64_t session, uint64_t sequence, const uint8_t key[16]) {
    struct xpr_packet p = {.type = XPR_REQUEST, .client_session = session, .sequence = sequence};
    xpr_packet_seal(&p, key);
    return p;
}

static void every_bit_of_a_packet_is_protected(void) {
    struct xpr_packet p = request(7, 1, KEY), opened;
    CHECK(xpr_packet_open(&opened, &p, sizeof p, XPR_REQUEST, KEY) == XPR_GENUINE && opened.client_session == 7);
    CHECK(xpr_packet_open(&opened, &p, sizeof p, XPR_REPLY, KEY) == XPR_MALFORMED);
    CHECK(xpr_packet_open(&opened, &p, sizeof p - 1, XPR_REQUEST, KEY) == XPR_MALFORMED);
    CHECK(xpr_packet_open(&opened, &p, sizeof p, XPR_REQUEST, OTHER_KEY) == XPR_BAD_TOKEN);
    for (size_t bit = 0; bit < 8 * sizeof p; bit++) {
        uint8_t bytes[sizeof p];
        memcpy(bytes, &p, sizeof p);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK(xpr_packet_open(&opened, bytes, sizeof bytes, XPR_REQUEST, KEY) != XPR_GENUINE);
    }
    p = request(0, 1, KEY);
    CHECK(xpr_packet_open(&opened, &p, sizeof p, XPR_REQUEST, KEY) == XPR_MALFORMED);
}

static void a_number_is_seen_once(void) {
    struct xpr_seen seen = {0, 0};
    CHECK(xpr_seen_first(&seen, 1) && !xpr_seen_first(&seen, 1));
    CHECK(xpr_seen_first(&seen, 5) && xpr_seen_first(&seen, 3) && !xpr_seen_first(&seen, 3) && !xpr_seen_first(&seen, 5));
    CHECK(xpr_seen_first(&seen, 68) && !xpr_seen_first(&seen, 5) && xpr_seen_first(&seen, 6));
    CHECK(!xpr_seen_first(&seen, 4)); /* 64 behind: it cannot be told any more */
    CHECK(xpr_seen_first(&seen, UINT64_MAX) && !xpr_seen_first(&seen, 68) && !xpr_seen_first(&seen, UINT64_MAX));
}

/* Against a list of all that was let through. */
static void no_number_passes_twice_in_any_order(void) {
    static bool passed[4096];
    struct xpr_seen seen = {0, 0};
    uint64_t random = 88172645463325252u, at = 1;
    for (int i = 0; i < 20000; i++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        at += random % 3 == 0;
        uint64_t sequence = (at + random / 3 % 80) % 4095 + 1;
        bool first = xpr_seen_first(&seen, sequence);
        CHECK(!(first && passed[sequence]));
        CHECK(first || passed[sequence] || seen.highest - sequence >= 64);
        passed[sequence] |= first;
    }
}

static void clients_are_remembered_and_the_longest_silent_make_room(void) {
    static struct xpr_clients clients;
    for (uint64_t i = 0; i < XPR_CLIENTS_PER_ROW; i++) CHECK(xpr_clients_first(&clients, 1 + i * XPR_CLIENT_ROWS, 1, 100 + (int64_t)i));
    CHECK(!xpr_clients_first(&clients, 1, 1, 200));
    CHECK(xpr_clients_heard(&clients, 0) == XPR_CLIENTS_PER_ROW && xpr_clients_heard(&clients, 107) == 2);
    CHECK(xpr_clients_first(&clients, 1 + 100 * XPR_CLIENT_ROWS, 1, 300));
    CHECK(!xpr_clients_first(&clients, 1, 1, 301)); /* it was heard after the others: it stays */
    CHECK(xpr_clients_first(&clients, 1 + XPR_CLIENT_ROWS, 1, 302)); /* this one had gone */
}

/* --- the thread ----------------------------------------------------------------------------------------------------- */

static struct xpr_probe_report report;
static uint64_t replies; /* to `ask`, since `serve` */

static void pause_ms(int ms) { poll(NULL, 0, ms); }

static void stop(void) {
    int64_t began_ns = xpr_clock_read_ns(CLOCK_MONOTONIC);
    CHECK(xpr_probe_stop(2000000000, &report));
    CHECK(xpr_clock_read_ns(CLOCK_MONOTONIC) - began_ns < 1000000000);
    CHECK(!xpr_probe_running());
}

/* A socket of the test's own, and the port that it has; `family` AF_INET or AF_INET6, bound to the loopback. */
static int own_socket(int family, uint16_t *port) {
    struct sockaddr_in6 at6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct sockaddr_in at4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(family, SOCK_DGRAM, 0);
    struct sockaddr *at = family == AF_INET ? (struct sockaddr *)&at4 : (struct sockaddr *)&at6;
    socklen_t bytes = family == AF_INET ? sizeof at4 : sizeof at6;
    if (fd < 0 || bind(fd, at, bytes) != 0 || getsockname(fd, at, &bytes) != 0) return -1;
    *port = ntohs(family == AF_INET ? at4.sin_port : at6.sin6_port);
    return fd;
}

static uint16_t free_port(void) {
    uint16_t port;
    int fd = own_socket(AF_INET, &port);
    CHECK(fd >= 0);
    close(fd);
    return port;
}

static struct xpr_probe_options *options_for(const char *host, uint16_t port, bool mesh) {
    static struct xpr_probe_options options;
    memset(&options, 0, sizeof options);
    memcpy(options.key, KEY, sizeof KEY);
    if (host) {
        struct xpr_probe_address *a = &options.addresses[options.count++];
        snprintf(a->host, sizeof a->host, "%s", host);
        snprintf(a->text, sizeof a->text, "%s:%u", host, port);
        a->port = port;
        a->mesh = mesh;
    }
    return &options;
}

/* Starts a prober that answers at a free port and takes a socket that is connected to it. */
static int serve(uint16_t *port) {
    replies = 0;
    *port = free_port();
    struct xpr_probe_options *options = options_for(NULL, 0, false);
    options->serve_port = *port;
    xpr_exchanges_reset();
    CHECK(xpr_probe_start(options) == 0);
    CHECK(xpr_probe_start(options) == EBUSY);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(*port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    return fd;
}

static bool reply_comes(int fd, struct xpr_packet *reply, int timeout_ms) {
    struct xpr_packet raw;
    struct pollfd wait = {fd, POLLIN, 0};
    if (poll(&wait, 1, timeout_ms) != 1) return false;
    ssize_t bytes = recv(fd, &raw, sizeof raw, 0);
    return bytes > 0 && xpr_packet_open(reply, &raw, (size_t)bytes, XPR_REPLY, KEY) == XPR_GENUINE;
}

/* The server's socket may not be there yet: a connected socket then hears so, and asks again. */
static struct xpr_packet ask(int fd, uint64_t session, uint64_t *sequence) {
    struct xpr_packet reply;
    for (int i = 0; i < 100; i++) {
        struct xpr_packet p = request(session, ++*sequence, KEY);
        if (send(fd, &p, sizeof p, 0) == (ssize_t)sizeof p && reply_comes(fd, &reply, 3000)) {
            replies++;
            return reply;
        }
        pause_ms(10);
    }
    CHECK(!"an answer");
    return (struct xpr_packet){0};
}

static void a_request_is_answered_with_stamps_that_it_encloses(void) {
    uint16_t port;
    int fd = serve(&port);
    uint64_t sequence = 0;
    ask(fd, 99, &sequence);
    int64_t t1_ns = xpr_clock_read_ns(CLOCK_REALTIME), m1_ns = xpr_clock_read_ns(CLOCK_MONOTONIC);
    struct xpr_packet reply = ask(fd, 99, &sequence);
    int64_t t4_ns = xpr_clock_read_ns(CLOCK_REALTIME), m4_ns = xpr_clock_read_ns(CLOCK_MONOTONIC);
    CHECK(reply.client_session == 99 && reply.sequence == sequence);
    CHECK(t1_ns <= reply.t2_ns && reply.t2_ns <= reply.t3_ns && reply.t3_ns <= t4_ns);
    CHECK(m1_ns <= reply.m2_ns && reply.m2_ns <= reply.m3_ns && reply.m3_ns <= m4_ns);
    /* It cannot have lain in the kernel since before it was sent. */
    CHECK(reply.wait2_ns == XPR_WAIT_UNKNOWN || reply.t2_ns - reply.wait2_ns >= t1_ns);
    stop();
    CHECK(report.served_port == port && report.session == reply.server_session && report.totals.served == replies);
    close(fd);
}

static void strangers_and_repetitions_are_counted_and_not_answered(void) {
    uint16_t port;
    int fd = serve(&port);
    uint64_t sequence = 0, random = 1234567;
    struct xpr_packet reply, p;
    ask(fd, 5, &sequence);
    uint64_t answered = sequence;
    for (int i = 0; i < 50; i++) {
        p = request(5, 1000 + (uint64_t)i, OTHER_KEY);
        send(fd, &p, sizeof p, 0);
        uint8_t rubbish[200];
        for (size_t k = 0; k < sizeof rubbish; k++) random = random * 6364136223846793005u + 1, rubbish[k] = (uint8_t)(random >> 56);
        send(fd, rubbish, (size_t)i * 4, 0);
        p = request(5, answered, KEY);
        send(fd, &p, sizeof p, 0);
        CHECK(!reply_comes(fd, &reply, i ? 0 : 50));
        pause_ms(2);
    }
    p.type = XPR_REPLY;
    xpr_packet_seal(&p, KEY);
    send(fd, &p, sizeof p, 0);
    ask(fd, 5, &sequence);
    stop();
    CHECK(report.totals.bad_token == 50 && report.totals.malformed == 51 && report.totals.replayed == 50);
    CHECK(report.totals.served == replies && replies == 2 && report.totals.rate_limited == 0);
    close(fd);
}

/* Every packet of the flood is accounted for, and what reading them costs is bounded by time, not by their number. */
static void a_flood_is_bounded_and_the_server_lives_on(void) {
    enum { FLOOD = 100000 };
    uint16_t port;
    int fd = serve(&port);
    uint64_t sequence = 0;
    ask(fd, 6, &sequence);
    uint64_t first = sequence;
    int64_t began_ns = xpr_clock_read_ns(CLOCK_MONOTONIC);
    struct xpr_packet p = request(6, 1u << 20, OTHER_KEY);
    uint64_t sent = 0;
    for (int i = 0; i < FLOOD; i++) sent += send(fd, &p, sizeof p, 0) == (ssize_t)sizeof p;
    int64_t flood_ns = xpr_clock_read_ns(CLOCK_MONOTONIC) - began_ns;
    pause_ms(50);
    ask(fd, 6, &sequence);
    int64_t all_ns = xpr_clock_read_ns(CLOCK_MONOTONIC) - began_ns;
    stop();
    const struct xpr_prober_record *t = &report.totals;
    CHECK(sent == FLOOD && t->rate_limited != UINT64_MAX);
    CHECK(t->served == replies && replies == 2);
    uint64_t lost_requests = sequence - first - 1;
    CHECK(t->bad_token + t->rate_limited == FLOOD + lost_requests);
    /* 200 packets in 10 ms, and what the buffer held at the end. */
    CHECK(t->bad_token <= (uint64_t)(all_ns / 10000000 + 2) * 200);
    fprintf(stderr, "flood of %d in %.0f ms: read %llu, CPU %.1f ms\n", FLOOD, (double)flood_ns / 1e6, (unsigned long long)t->bad_token,
            (double)t->cpu_ns / 1e6);
    close(fd);
}

/* --- the client ------------------------------------------------------------------------------------------------------- */

struct collected {
    uint64_t count, of[4];
    struct xpr_exchange_record last_answered;
};

static struct collected collect(void) {
    struct collected c = {0};
    struct xpr_bytes probes, exchanges;
    xpr_exchanges_take(&probes, &exchanges);
    const struct xpr_exchange_record *e = (const void *)exchanges.data;
    c.count = exchanges.used / sizeof *e;
    for (uint64_t i = 0; i < c.count; i++) {
        CHECK(e[i].outcome < 4 && e[i].peer >= 1);
        c.of[e[i].outcome]++;
        if (e[i].outcome == XPR_EXCHANGE_ANSWERED) c.last_answered = e[i];
    }
    xpr_bytes_free(&probes);
    xpr_bytes_free(&exchanges);
    return c;
}

/* What a peer of the test does with a request: answers with its clock `ahead_ns` ahead, `copies` times; 0: it is silent. */
static void play_peer(int fd, int64_t ahead_ns, int copies, int for_ms) {
    int64_t until_ns = xpr_clock_read_ns(CLOCK_MONOTONIC) + for_ms * INT64_C(1000000);
    while (xpr_clock_read_ns(CLOCK_MONOTONIC) < until_ns) {
        struct xpr_packet raw, asked;
        struct xpr_way way;
        struct pollfd wait = {fd, POLLIN, 0};
        if (poll(&wait, 1, 20) != 1) continue;
        ssize_t bytes = xpr_socket_read(fd, &raw, sizeof raw, &way);
        if (bytes < 0 || xpr_packet_open(&asked, &raw, (size_t)bytes, XPR_REQUEST, KEY) != XPR_GENUINE) continue;
        int64_t now_ns = xpr_clock_read_ns(CLOCK_REALTIME) + ahead_ns, m_ns = xpr_clock_read_ns(CLOCK_MONOTONIC);
        struct xpr_packet reply = {.type = XPR_REPLY, .client_session = asked.client_session, .sequence = asked.sequence,
                                   .server_session = 77, .t2_ns = now_ns, .t3_ns = now_ns, .m2_ns = m_ns, .m3_ns = m_ns,
                                   .wait2_ns = XPR_WAIT_UNKNOWN};
        struct xpr_packet forged = reply;
        forged.t3_ns += 1000000000;
        xpr_packet_seal(&forged, OTHER_KEY);
        if (copies > 1) sendto(fd, &forged, sizeof forged, 0, (struct sockaddr *)&way.from, way.from_bytes);
        xpr_packet_seal(&reply, KEY);
        for (int i = 0; i < copies; i++) sendto(fd, &reply, sizeof reply, 0, (struct sockaddr *)&way.from, way.from_bytes);
    }
}

static void the_offset_of_a_peer_lies_between_its_bounds(int family) {
    const int64_t ahead_ns = 37500000;
    uint16_t port;
    int fd = own_socket(family, &port);
    if (fd < 0) {
        fprintf(stderr, "no IPv6 here: not looked at\n");
        CHECK(family == AF_INET6);
        return;
    }
    xpr_exchanges_reset();
    CHECK(xpr_probe_start(options_for(family == AF_INET ? "127.0.0.1" : "::1", port, false)) == 0);
    play_peer(fd, ahead_ns, 3, 600);
    stop();
    struct collected c = collect();
    CHECK(c.of[XPR_EXCHANGE_ANSWERED] >= 8 && report.peers[0].answered == c.of[XPR_EXCHANGE_ANSWERED]);
    const struct xpr_exchange_record *e = &c.last_answered;
    CHECK(e->t3_ns - e->t4_ns <= ahead_ns && ahead_ns <= e->t2_ns - e->t1_ns && e->peer_session == 77);
    /* The same with what the kernel says that the reply waited: a narrower bound, and still one. */
    CHECK(e->wait4_ns == XPR_WAIT_UNKNOWN || e->t3_ns - (e->t4_ns - e->wait4_ns) <= ahead_ns);
    /* One forged reply and two repetitions to each answer, the last perhaps unread. */
    CHECK(report.totals.bad_token + 1 >= c.of[0] && report.totals.replayed + 2 >= 2 * c.of[0]);
    CHECK(report.totals.bad_token <= c.of[0] + 1 && report.totals.replayed <= 2 * c.of[0] + 2);
    close(fd);
}

static void a_silent_peer_costs_a_lost_exchange_at_a_time(void) {
    uint16_t port;
    int fd = own_socket(AF_INET, &port);
    CHECK(fd >= 0);
    xpr_exchanges_reset();
    CHECK(xpr_probe_start(options_for("127.0.0.1", port, false)) == 0);
    pause_ms(1600);
    stop();
    struct collected c = collect();
    CHECK(c.of[XPR_EXCHANGE_LOST] >= 1 && c.of[XPR_EXCHANGE_LOST] <= 3 && c.count == c.of[XPR_EXCHANGE_LOST]);
    CHECK(report.peers[0].sent == c.count && report.peers[0].answered == 0);
    close(fd);
}

static void a_peer_that_dies_is_refused_and_one_that_comes_back_is_asked_again(void) {
    uint16_t port;
    int fd = own_socket(AF_INET, &port);
    xpr_exchanges_reset();
    CHECK(xpr_probe_start(options_for("127.0.0.1", port, false)) == 0);
    play_peer(fd, 0, 1, 600);
    close(fd);
    /* A request that lay unread in the socket as it was closed is lost, a second later; only the next one is refused. */
    pause_ms(2000);
    struct collected c = collect();
    CHECK(c.of[XPR_EXCHANGE_ANSWERED] >= 4 && c.of[XPR_EXCHANGE_REFUSED] >= 1 && c.of[XPR_EXCHANGE_REFUSED] <= 8);
    fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK(bind(fd, (struct sockaddr *)&at, sizeof at) == 0);
    play_peer(fd, 0, 1, 2300);
    stop();
    CHECK(collect().of[XPR_EXCHANGE_ANSWERED] >= 4);
    close(fd);
}

static void what_cannot_work_is_told(void) {
    uint16_t port;
    int fd = own_socket(AF_INET, &port);
    xpr_exchanges_reset();
    struct xpr_probe_options *options = options_for("no-such-host.invalid", 9, false);
    options->serve_port = port;
    CHECK(xpr_probe_start(options) == 0);
    pause_ms(300);
    /* Looking a name up takes as long as the system's name service does. */
    for (int i = 0; i < 300 && !xpr_probe_stop(100000000, &report); i++) CHECK(xpr_probe_running());
    CHECK(report.served_port == 0 && strstr(report.serve_error, "in use"));
    CHECK(report.count == 1 && report.peers[0].error[0] && report.peers[0].sent == 0);
    close(fd);
    CHECK(!xpr_probe_stop(0, &report));
}

static void an_address_of_the_mesh_that_is_ours_is_answered_at(void) {
    uint16_t port = free_port(), other;
    int fd = own_socket(AF_INET, &other);
    struct xpr_probe_options *options = options_for("127.0.0.1", port, true);
    options->addresses[options->count] = options->addresses[0];
    options->addresses[options->count++].port = other;
    xpr_exchanges_reset();
    CHECK(xpr_probe_start(options) == 0);
    play_peer(fd, 0, 1, 300);
    stop();
    CHECK(report.served_port == port && report.count == 1 && report.peers[0].answered >= 1);
    close(fd);
}

static void a_full_table_drops_and_counts(void) {
    xpr_exchanges_reset();
    struct xpr_exchange_record record = {.peer = 1};
    for (int i = 0; i < XPR_MAX_WAITING_EXCHANGES + 7; i++) xpr_add_exchange(&record);
    struct xpr_prober_record totals = {0};
    CHECK(!xpr_prober_totals(&totals));
    xpr_set_prober_totals(&totals);
    CHECK(xpr_prober_totals(&totals) && totals.dropped == 7);
    CHECK(collect().count == XPR_MAX_WAITING_EXCHANGES);
    xpr_exchanges_clear();
    xpr_add_exchange(&record);
    CHECK(collect().count == 0);
}

/* What a finished shard says of exchanges: those in it, and the totals. */
static uint64_t record_exchanges(uint64_t budget_bytes, int count, struct xpr_prober_record *totals) {
    char path[4096];
    const char *folder = getenv("TMPDIR");
    struct xpr_report recorded;
    snprintf(path, sizeof path, "%s/test_probe_%d.xpr", folder ? folder : "/tmp", (int)getpid());
    CHECK(xpr_recorder_start(path, budget_bytes, 4096) == 0);
    xpr_add_probe(0, 42, "9473");
    xpr_add_probe(1, 0, "node0:9473");
    struct xpr_exchange_record record = {.peer = 1, .t1_ns = 7};
    for (int i = 0; i < count; i++) {
        xpr_add_exchange(&record);
        if (i % 400 == 399) pause_ms(60);
    }
    struct xpr_prober_record at_end = {.served = 3};
    if (count) xpr_set_prober_totals(&at_end);
    CHECK(xpr_recorder_off() != 0);
    xpr_recorder_finish(30000000000, 0, 0, &recorded);
    CHECK(recorded.finished);

    FILE *file = fopen(path, "rb");
    CHECK(file && fseek(file, sizeof(struct xpr_shard_header), SEEK_SET) == 0);
    struct xpr_chunk_header chunk;
    uint64_t found = 0;
    memset(totals, 0, sizeof *totals);
    while (fread(&chunk, sizeof chunk, 1, file) == 1) {
        char *body = malloc(chunk.bytes + 1);
        CHECK(body && fread(body, 1, chunk.bytes, file) == chunk.bytes);
        if (chunk.type == XPR_CHUNK_PROBES) CHECK(memcmp(body + sizeof(struct xpr_probe_record), "9473", 4) == 0);
        if (chunk.type == XPR_CHUNK_EXCHANGES) {
            CHECK(((const struct xpr_exchange_record *)(const void *)body)->t1_ns == 7);
            found += chunk.bytes / sizeof record;
        }
        if (chunk.type == XPR_CHUNK_PROBER) memcpy(totals, body, sizeof *totals);
        free(body);
    }
    fclose(file);
    unlink(path);
    return found;
}

static void a_shard_holds_the_exchanges_and_past_its_budget_counts_them(void) {
    struct xpr_prober_record totals;
    CHECK(record_exchanges(1 << 20, 1200, &totals) == 1200);
    CHECK(totals.written == 1200 && totals.dropped == 0 && totals.served == 3);
    uint64_t found = record_exchanges(1 << 16, 1200, &totals);
    CHECK(found < 1200 && totals.written == found && totals.written + totals.dropped == 1200);
    CHECK(record_exchanges(1 << 20, 0, &totals) == 0 && totals.written == 0 && totals.served == 0);
}

/* The child has no thread and not the port; it may have a prober of its own, while the parent's goes on. */
static void a_forked_child_has_no_prober(void) {
    uint16_t port;
    int fd = serve(&port);
    uint64_t sequence = 0;
    ask(fd, 8, &sequence);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        uint16_t own;
        CHECK(!xpr_probe_running() && !xpr_probe_stop(0, &report));
        int to = serve(&own);
        uint64_t number = 0;
        ask(to, 8, &number);
        stop();
        close(to);
        close(fd);
        /* Not exit: what the recorder's drainer had in hand is lost memory in the child, on purpose. */
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    ask(fd, 8, &sequence);
    stop();
    struct xpr_probe_options *options = options_for(NULL, 0, false);
    options->serve_port = port;
    CHECK(xpr_probe_start(options) == 0);
    pause_ms(50);
    stop();
    CHECK(report.served_port == port);
    close(fd);
}

/* A program that closes all descriptors and opens its own: the prober sends to none of them. */
static void descriptors_that_are_no_longer_the_probers_are_left_alone(void) {
    uint16_t port;
    int fd = serve(&port);
    uint64_t sequence = 0;
    ask(fd, 9, &sequence);
    uint16_t own;
    for (int i = 3; i < 64; i++)
        if (i != fd) close(i);
    int taken[8];
    for (int i = 0; i < 8; i++) taken[i] = own_socket(AF_INET, &own);
    struct xpr_packet p = request(9, ++sequence, KEY), reply;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(own), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK(sendto(taken[0], &p, sizeof p, 0, (struct sockaddr *)&to, sizeof to) == (ssize_t)sizeof p);
    CHECK(!reply_comes(taken[0], &reply, 400));
    struct pollfd unread = {taken[7], POLLIN, 0};
    CHECK(poll(&unread, 1, 0) == 1);
    stop();
    for (int i = 0; i < 8; i++) CHECK(close(taken[i]) == 0);
    close(fd);
}

int main(void) {
    the_hash_is_siphash_2_4();
    every_bit_of_a_packet_is_protected();
    a_number_is_seen_once();
    no_number_passes_twice_in_any_order();
    clients_are_remembered_and_the_longest_silent_make_room();
    a_request_is_answered_with_stamps_that_it_encloses();
    strangers_and_repetitions_are_counted_and_not_answered();
    a_flood_is_bounded_and_the_server_lives_on();
    the_offset_of_a_peer_lies_between_its_bounds(AF_INET);
    the_offset_of_a_peer_lies_between_its_bounds(AF_INET6);
    a_silent_peer_costs_a_lost_exchange_at_a_time();
    a_peer_that_dies_is_refused_and_one_that_comes_back_is_asked_again();
    what_cannot_work_is_told();
    an_address_of_the_mesh_that_is_ours_is_answered_at();
    a_full_table_drops_and_counts();
    a_shard_holds_the_exchanges_and_past_its_budget_counts_them();
    a_forked_child_has_no_prober();
    descriptors_that_are_no_longer_the_probers_are_left_alone();
    return 0;
}
