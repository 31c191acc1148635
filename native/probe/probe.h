/* The clock prober: one thread of a process that asks other hosts' probers what time they have, and answers theirs.
 *
 * An exchange is a request and its reply with four stamps, t1 to t4 (shard_format.h): the host clocks' difference lies
 * between t3 - t4 and t2 - t1, whatever else happened. Exchanges come in bursts of XPR_BURST, one after the other, at
 * random distances: about 33 a second for each peer in the first 5 s and 10 a second later, but never so many that the
 * thread uses more than 0.08 % of a core, plus 5 ms for the start: then bursts are put off, and counted. A server tells
 * its clients how often they may ask for it to stay within that; the first exchange with a peer comes alone for this.
 *
 * Packets without the job's token, malformed ones and those seen before are counted and otherwise ignored. The server
 * reads at most 200 packets in 10 ms, at about 1 us each; what the kernel must drop beyond that is counted as well.
 *
 * Nothing here touches the program: no signal reaches the thread, no lock is held while it waits, errors are recorded in
 * the report. The child of a fork has no prober. The report is the thread's last act, so it costs the program nothing. */
#ifndef XPROF_PY_PROBE_PROBE_H
#define XPROF_PY_PROBE_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "xprof_py/shard_format.h"

enum { XPR_BURST = 4, XPR_MAX_PEERS = 64, XPR_HOST_BYTES = 256 };

struct xpr_probe_address {
    char host[XPR_HOST_BYTES]; /* a name, or an IPv4 or IPv6 address as text */
    char text[XPR_HOST_BYTES]; /* as it was configured: what records and reports call it */
    uint16_t port;
    bool mesh; /* if it is an address of this host, and its port free, answer there instead of asking */
};

struct xpr_probe_options {
    uint8_t key[16];
    uint16_t serve_port; /* 0: only where an address of the mesh is ours */
    uint32_t count;      /* at most XPR_MAX_PEERS */
    struct xpr_probe_address addresses[XPR_MAX_PEERS];
};

struct xpr_peer_report {
    char text[XPR_HOST_BYTES];
    char error[96]; /* why it was not asked, or why asking ended; empty: it was asked to the end */
    uint64_t sent, answered;
};

struct xpr_probe_report {
    uint64_t session;
    uint16_t served_port; /* 0: it did not answer others */
    char serve_error[96]; /* why it could not, though it was to */
    uint32_t count;
    struct xpr_peer_report peers[XPR_MAX_PEERS];
    struct xpr_prober_record totals; /* written and dropped: 0, the shard has them */
    int64_t wall_ns;
};

/* Starts the thread. Names are looked up and sockets made on it. 0; EBUSY while one runs; else why there is no thread. */
int xpr_probe_start(const struct xpr_probe_options *options);

/* Tells the thread to end and waits for it, at most timeout_ns; usually less than 1 ms, longer where a name is being looked
 * up. False: it has not ended, and there is no report; a later call may find that it has. */
bool xpr_probe_stop(int64_t timeout_ns, struct xpr_probe_report *report);

/* Whether there is a thread, one that was told to end included. */
bool xpr_probe_running(void);

#endif
