/* Chrome trace JSON, as Kineto (the PyTorch profiler) and others write it, to columns; fed in pieces of any size.
 *
 * Ownership: the caller's bytes are not kept. After xpr_chrome_init the scanner is freed with xpr_chrome_free, whatever
 * failed in between. Threading: no shared state; one thread at a time for each scanner. No Python.
 * Cost: one pass; an event that a piece cuts is read again when it is whole. Memory: the columns, at most one event or
 * value of the top level (XPR_CHROME_LONGEST) and the last piece.
 *
 * Times are decimal numbers of microseconds and become whole microseconds and picoseconds, without a double in between.
 * What breaks the grammar costs the events that it touches: reading goes on with the next one, and `damages` says which
 * bytes of the (decompressed) text were lost. Arguments that are not in xpr_chrome_keys are only skipped; `at` says where
 * an event's text begins.
 */
#ifndef XPROF_PY_DECODE_CHROME_JSON_H
#define XPROF_PY_DECODE_CHROME_JSON_H

#include "columns/columns.h"
#include "decode/json_leads.h"
#include "decode/place.h"

/* What is longer is damage: an event, a value beside the list. */
enum { XPR_CHROME_LONGEST = 64 << 20 };

/* category, name, process, thread: numbers in the dictionaries of these; a pid or tid is its text. `phase`: the letter.
 * `us`, `ps`: the time, ps from 0 to 999999, -1 without a time. `duration_ps`: -1 without, or beyond 64 bits. `id`: of
 * a flow, -1 without a number. */
enum { XPR_CHROME_CATEGORY, XPR_CHROME_NAME, XPR_CHROME_PHASE, XPR_CHROME_PROCESS, XPR_CHROME_THREAD, XPR_CHROME_US,
       XPR_CHROME_PS, XPR_CHROME_DURATION, XPR_CHROME_ID, XPR_CHROME_AT, XPR_CHROME_EVENTS_WIDTH };
/* `key`: of xpr_chrome_keys. `kind`, `value`: as of the stats of an XSpace (xspace.h), and 6 for a bool; a list is the
 * text of it. Rows in order of event. */
enum { XPR_CHROME_ARGS_EVENT, XPR_CHROME_ARGS_KEY, XPR_CHROME_ARGS_KIND, XPR_CHROME_ARGS_VALUE, XPR_CHROME_ARGS_WIDTH };
/* Bytes [at, end) that could not be read. */
enum { XPR_CHROME_DAMAGE_AT, XPR_CHROME_DAMAGE_END, XPR_CHROME_DAMAGES_WIDTH };

enum { XPR_CHROME_KEYS = 25 };
extern const char *const xpr_chrome_keys[XPR_CHROME_KEYS];

typedef struct {
    xpr_table events, args, damages;
    xpr_dictionary categories, names, labels, texts; /* labels: of processes and threads */
    xpr_strings top_keys, top_values;                /* what stands beside the events: key, JSON text */
    uint64_t odd_strings, odd_at;       /* strings with raw control bytes or lone backslashes; where the first is */
    uint64_t large_numbers;             /* arguments beyond 64 bits, kept as doubles */
    uint64_t repaired_in_vain;          /* strings repaired in what was read once more, or lost */
    uint64_t nameless;                  /* objects among the events that have no phase */
    bool truncated;                     /* the text ended within an event, a value, or the list */
    uint64_t truncated_at;              /* behind the last whole event or value */
    xpr_leads event_leads, argument_leads;
    /* The bytes not yet read, and the state. */
    uint8_t *buffer, *scratch;
    size_t used, capacity, at, scratch_capacity;
    uint64_t base, length, lost_at;
    size_t wanted;
    int state;
    bool in_array, begun;
    bool stretch; /* of a list whose beginning another scanner reads: stops before the bracket that ends it */
} xpr_chrome;

void xpr_chrome_init(xpr_chrome *chrome);
/* Return 0; or -1 with *error filled, reason XPR_OUT_OF_MEMORY when memory ran out. After -1 only free. */
int xpr_chrome_feed(xpr_chrome *chrome, const uint8_t *bytes, size_t length, xpr_decode_error *error);
int xpr_chrome_finish(xpr_chrome *chrome, xpr_decode_error *error);
void xpr_chrome_free(xpr_chrome *chrome);
/* How many strings were not UTF-8. */
uint64_t xpr_chrome_repaired(const xpr_chrome *chrome);

/* For chrome_slices.c. A scanner that read nothing, as one is before an event at byte `at` of the text. */
void xpr_chrome_assume(xpr_chrome *chrome, uint64_t at);
/* Whether all that was fed has been read, and the list of events goes on. */
bool xpr_chrome_between_events(const xpr_chrome *chrome);
/* Keep bytes, to be read later; false where memory is out. */
bool xpr_chrome_hold(xpr_chrome *chrome, const uint8_t *bytes, size_t length);
/* Read what is held; returns as xpr_chrome_feed. */
int xpr_chrome_read(xpr_chrome *chrome, xpr_decode_error *error);
/* A row of `damages`, or more of the last one; false where memory is out. */
bool xpr_chrome_damaged(xpr_chrome *chrome, uint64_t at, uint64_t end);

#endif
