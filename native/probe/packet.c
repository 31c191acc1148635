#include "probe/packet.h"

#include <string.h>

#include "probe/siphash.h"

void xpr_packet_seal(struct xpr_packet *packet, const uint8_t key[16]) {
    packet->magic = XPR_PACKET_MAGIC;
    packet->version = XPR_PACKET_VERSION;
    packet->mac = xpr_siphash(key, packet, offsetof(struct xpr_packet, mac));
}

enum xpr_verdict xpr_packet_open(struct xpr_packet *packet, const void *content, size_t bytes, uint16_t type,
                                 const uint8_t key[16]) {
    if (bytes != sizeof *packet) return XPR_MALFORMED;
    memcpy(packet, content, sizeof *packet);
    if (packet->magic != XPR_PACKET_MAGIC || packet->version != XPR_PACKET_VERSION || packet->type != type)
        return XPR_MALFORMED;
    /* Not in constant time: what is protected is a clock measurement, and a guess must be right in 64 bits at once. */
    if (packet->mac != xpr_siphash(key, packet, offsetof(struct xpr_packet, mac))) return XPR_BAD_TOKEN;
    return packet->client_session && packet->sequence ? XPR_GENUINE : XPR_MALFORMED;
}

bool xpr_seen_first(struct xpr_seen *seen, uint64_t sequence) {
    if (sequence > seen->highest) {
        uint64_t ahead = sequence - seen->highest;
        seen->bits = (ahead < 64 ? seen->bits << ahead : 0) | 1;
        seen->highest = sequence;
        return true;
    }
    uint64_t behind = seen->highest - sequence;
    if (behind >= 64 || seen->bits >> behind & 1) return false;
    seen->bits |= (uint64_t)1 << behind;
    return true;
}

bool xpr_clients_first(struct xpr_clients *clients, uint64_t session, uint64_t sequence, int64_t now_ns) {
    /* Sessions are random numbers: any bits of them spread the clients. */
    struct xpr_client *row = clients->rows[session % XPR_CLIENT_ROWS], *oldest = row;
    for (int i = 0; i < XPR_CLIENTS_PER_ROW; i++) {
        if (row[i].session == session) {
            row[i].heard_ns = now_ns;
            return xpr_seen_first(&row[i].seen, sequence);
        }
        if (!row[i].session || (oldest->session && row[i].heard_ns < oldest->heard_ns)) oldest = &row[i];
    }
    *oldest = (struct xpr_client){.session = session, .heard_ns = now_ns};
    return xpr_seen_first(&oldest->seen, sequence);
}

uint32_t xpr_clients_heard(const struct xpr_clients *clients, int64_t since_ns) {
    uint32_t heard = 0;
    for (int r = 0; r < XPR_CLIENT_ROWS; r++)
        for (int i = 0; i < XPR_CLIENTS_PER_ROW; i++)
            heard += clients->rows[r][i].session && clients->rows[r][i].heard_ns >= since_ns;
    return heard;
}
