/* The prober's packet, and which of them to believe. Pure: no clock, no socket, no state but what is passed in.
 *
 * Requests and replies have one length, so that a forged source address gains nothing by being answered. Everything is
 * little-endian. The last word is SipHash-2-4 of all before it under the job's key: without the token no packet passes,
 * and none can be altered. A packet that is sent again passes once: each side remembers what it has seen (xpr_seen). */
#ifndef XPROF_PY_PROBE_PACKET_H
#define XPROF_PY_PROBE_PACKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define XPR_PACKET_MAGIC 0x50525058u /* "XPRP" */
#define XPR_PACKET_VERSION 1u

enum { XPR_REQUEST = 1, XPR_REPLY = 2 };

struct xpr_packet {
    uint32_t magic;
    uint16_t version;
    uint16_t type;           /* XPR_REQUEST, XPR_REPLY */
    uint64_t client_session; /* random, of the asking prober; a reply repeats it */
    uint64_t sequence;       /* 1, 2, ... per client and server; a reply repeats it */
    uint64_t server_session; /* replies only, like all below; 0 in requests */
    int64_t t2_ns, t3_ns;    /* CLOCK_REALTIME */
    int64_t m2_ns, m3_ns;    /* CLOCK_MONOTONIC */
    uint32_t wait2_ns;       /* before t2 in the server's kernel */
    uint32_t interval_us;    /* the server asks for bursts no more frequent than this on average, 0: as you like */
    uint64_t mac;
};
_Static_assert(sizeof(struct xpr_packet) == 80, "packet");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "packets are written as they lie in memory");

/* Sets magic, version and mac. */
void xpr_packet_seal(struct xpr_packet *packet, const uint8_t key[16]);

enum xpr_verdict { XPR_GENUINE, XPR_MALFORMED, XPR_BAD_TOKEN };

/* Whether `bytes` bytes at `content` are a packet of this type sealed with this key; then *packet is filled in. */
enum xpr_verdict xpr_packet_open(struct xpr_packet *packet, const void *content, size_t bytes, uint16_t type,
                                 const uint8_t key[16]);

/* The sequence numbers seen: all up to `highest` that are 64 or more behind it, and of the others those in `bits`. */
struct xpr_seen {
    uint64_t highest, bits;
};
/* Marks a number as seen. False: it was before, or is too far behind to tell. */
bool xpr_seen_first(struct xpr_seen *seen, uint64_t sequence);

/* What a server remembers of its clients: the least recently heard of a full row makes room. */
enum { XPR_CLIENT_ROWS = 256, XPR_CLIENTS_PER_ROW = 8 };
struct xpr_client {
    uint64_t session; /* 0: empty */
    struct xpr_seen seen;
    int64_t heard_ns; /* CLOCK_MONOTONIC */
};
struct xpr_clients {
    struct xpr_client rows[XPR_CLIENT_ROWS][XPR_CLIENTS_PER_ROW];
};
/* Whether a genuine request is new. */
bool xpr_clients_first(struct xpr_clients *clients, uint64_t session, uint64_t sequence, int64_t now_ns);
/* How many were heard at or after since_ns. */
uint32_t xpr_clients_heard(const struct xpr_clients *clients, int64_t since_ns);

#endif
