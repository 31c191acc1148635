/* The flight recorder: a capture that keeps its last seconds, and writes them out when asked.
 *
 * The shard itself then holds only what gives events their meaning (strings, schemas, threads, frames, stacks). Events,
 * clock samples and sampled stacks go to segments beside it, `<shard>.<n>.segment`, each a shard by its form; a segment
 * that lies wholly before the window is removed, as is the oldest one while all together exceed the budget. So a process
 * that is killed leaves its last seconds too. In the end the segments are appended to the shard.
 *
 * A snapshot is a folder with a run file and a shard of everything that is kept. It is written by the drainer: that needs
 * no interpreter, so a program that hangs can be asked as well (SIGUSR2). Functions here are the drainer's, unless
 * said otherwise. */
#ifndef XPROF_PY_RECORDER_FLIGHT_H
#define XPROF_PY_RECORDER_FLIGHT_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "recorder/shard_writer.h"

enum {
    XPR_MAX_SEGMENTS = 32,
    XPR_SEGMENTS_PER_WINDOW = 8,
    XPR_MAX_SNAPSHOTS = 64,
    XPR_SNAPSHOT_NAME_BYTES = 96,
    XPR_SNAPSHOT_ABOUT_BYTES = 1024,
};

struct xpr_capture;

struct xpr_segment {
    uint64_t number, events;
    uint64_t dropped_ring, dropped_budget, dropped_error; /* of the capture when the segment began */
    uint64_t bytes;
    int64_t began_ns; /* MONOTONIC */
};

struct xpr_snapshot {
    char name[XPR_SNAPSHOT_NAME_BYTES];   /* of its folder */
    char about[XPR_SNAPSHOT_ABOUT_BYTES]; /* a JSON object: why it was taken */
    int error;                            /* errno, 0: it was written */
    uint64_t events, bytes;
};

struct xpr_flight {
    int64_t window_ns; /* 0: not a flight recorder, nothing below is used */
    char *base;        /* the shard's path */
    struct xpr_writer segment;
    struct xpr_segment segments[XPR_MAX_SEGMENTS]; /* the oldest first, the last one is being written */
    unsigned count;
    uint64_t next_number, forgotten; /* events that left the window */
    uint64_t write_errors;           /* of closed segments */
    int last_errno;

    /* Under the capture's lock. */
    char *folder, *shard_name, *run_file_name, *head; /* see xpr_flight_describe */
    bool wanted;             /* a snapshot was asked for, and is not written yet */
    uint64_t asked, answered; /* tickets: snapshot i of the list answers ticket i + 1 */
    struct xpr_snapshot request;
    struct xpr_snapshot snapshots[XPR_MAX_SNAPSHOTS];
    unsigned taken, limit;
    uint64_t refused; /* past the limit */
    unsigned signals;
};

/* By any thread while the capture runs: where snapshots go and what their run files say. folder: of all snapshots, exists.
 * shard_name, run_file_name: below a snapshot's folder, each in one folder of its own. head: the run file as JSON, without
 * its last brace. limit: most snapshots of the capture, at most XPR_MAX_SNAPSHOTS. 0 or ENOMEM. */
int xpr_flight_describe(const char *folder, const char *shard_name, const char *run_file_name, const char *head,
                        unsigned limit);

/* By any thread, without waiting: asks for a snapshot. name: of its folder; about: a JSON object that says why. 0; EBUSY:
 * another one is being written, and *ticket is its; EDQUOT: the limit is reached, which is counted; ENOTCONN: no flight
 * recorder runs, or it is not described yet. */
int xpr_flight_ask(const char *name, const char *about, uint64_t *ticket);
/* By any thread: waits for that snapshot. 0; ETIMEDOUT: it may still come; else why it could not be written. */
int xpr_flight_wait(uint64_t ticket, int64_t timeout_ns);

/* By any thread: the snapshots of this capture, or of the last one, room for XPR_MAX_SNAPSHOTS. Returns how many. */
unsigned xpr_flight_report(struct xpr_snapshot *snapshots, uint64_t *refused);

/* Makes the signal ask for a snapshot, in a handler that only sets a flag and then calls the handler that was there. 0 or
 * errno. Restoring leaves a handler alone that the program set meanwhile. */
int xpr_flight_signal_on(int number);
void xpr_flight_signal_off(void);

/* Before the first round: begins the first segment. 0 or errno. */
int xpr_flight_prepare(struct xpr_capture *c);
/* After each round: begins a new segment where one is due, and removes what left the window. Its first clock sample then
 * stands before the first event that it holds. */
void xpr_flight_turn(struct xpr_capture *c);
/* After that: writes the snapshot that was asked for. */
void xpr_flight_answer(struct xpr_capture *c);
/* After the last round: appends the segments to the shard. Removed are they by xpr_flight_remove, once the shard is ended. */
void xpr_flight_gather(struct xpr_capture *c);
void xpr_flight_remove(struct xpr_capture *c);
/* Gives memory and descriptors back; in the child of a fork as well. */
void xpr_flight_free(struct xpr_flight *flight);

#endif
