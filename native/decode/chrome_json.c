#include "decode/chrome_json.h"

#include <stdlib.h>
#include <string.h>

#include "decode/json_text.h"

enum { NO_VALUE = 0, INT = 1, UINT = 2, DOUBLE = 3, TEXT = 4, BOOL = 6 };
/* Before the first bracket; between keys of the top level; in the list of events; after damage; behind the end. */
enum { START, KEYS, EVENTS, LOST, END };

/* Shortest first, so that a key is looked for among those of its length. */
const char *const xpr_chrome_keys[XPR_CHROME_KEYS] = {
    "Seq",
    "name",
    "kind",
    "dtype",
    "bytes",
    "labels",
    "device",
    "stream",
    "graph id",
    "Src Rank",
    "Dst Rank",
    "Comms Id",
    "Group size",
    "sort_index",
    "correlation",
    "External id",
    "external id",
    "graph node id",
    "In msg nelems",
    "Fwd thread id",
    "Out msg nelems",
    "Collective name",
    "Sequence number",
    "Process Group Name",
    "Process Group Ranks",
};

static const xpr_column_spec event_columns[] = {{"category", 'i'}, {"name", 'i'}, {"phase", 'B'}, {"process", 'i'},
                                                {"thread", 'i'},   {"us", 'q'},   {"ps", 'i'},    {"duration_ps", 'q'},
                                                {"id", 'q'},       {"at", 'q'}};
static const xpr_column_spec arg_columns[] = {{"event", 'q'}, {"key", 'B'}, {"kind", 'B'}, {"value", 'q'}};
static const xpr_column_spec damage_columns[] = {{"at", 'q'}, {"end", 'q'}};

void xpr_chrome_init(xpr_chrome *chrome) {
    memset(chrome, 0, sizeof *chrome);
    xpr_table_init(&chrome->events, event_columns, XPR_CHROME_EVENTS_WIDTH);
    xpr_table_init(&chrome->args, arg_columns, XPR_CHROME_ARGS_WIDTH);
    xpr_table_init(&chrome->damages, damage_columns, XPR_CHROME_DAMAGES_WIDTH);
}

void xpr_chrome_assume(xpr_chrome *chrome, uint64_t at) {
    chrome->base = chrome->length = at;
    chrome->state = EVENTS;
    chrome->begun = chrome->stretch = true;
}

bool xpr_chrome_between_events(const xpr_chrome *chrome) {
    return chrome->state == EVENTS && chrome->at == chrome->used;
}

void xpr_chrome_free(xpr_chrome *chrome) {
    xpr_table_free(&chrome->events);
    xpr_table_free(&chrome->args);
    xpr_table_free(&chrome->damages);
    xpr_dictionary_free(&chrome->categories);
    xpr_dictionary_free(&chrome->names);
    xpr_dictionary_free(&chrome->labels);
    xpr_dictionary_free(&chrome->texts);
    xpr_strings_free(&chrome->top_keys);
    xpr_strings_free(&chrome->top_values);
    free(chrome->buffer);
    free(chrome->scratch);
    memset(chrome, 0, sizeof *chrome);
}

/* What reading a piece came to; NO_MEMORY beside the states of the grammar. */
typedef enum { OK = XPR_JSON_OK, MORE = XPR_JSON_MORE, BROKEN = XPR_JSON_BROKEN, NO_MEMORY } outcome;

#define TRY(expression)                          \
    do {                                         \
        outcome tried = (outcome)(expression);   \
        if (tried != OK) return tried;           \
    } while (0)

/* A string's text without escapes: the text itself, or in the scratch room. */
static bool plain(xpr_chrome *chrome, xpr_json_value *value) {
    if (!value->escaped) return true;
    if (chrome->scratch_capacity < value->length) {
        uint8_t *room = realloc(chrome->scratch, value->length * 2);
        if (room == NULL) return false;
        chrome->scratch = room;
        chrome->scratch_capacity = value->length * 2;
    }
    value->length = xpr_json_unescape(value->text, value->length, chrome->scratch);
    value->text = chrome->scratch;
    value->escaped = false;
    return true;
}

/* The value's number in a dictionary; `guess` is the number of the event before, mostly right. */
static outcome number_of(xpr_chrome *chrome, xpr_dictionary *dictionary, xpr_json_value *value, int32_t guess,
                         int32_t *number) {
    if (value->kind == XPR_JSON_STRING && !plain(chrome, value)) return NO_MEMORY;
    const xpr_strings *strings = &dictionary->strings;
    if (guess >= 0 && (size_t)guess < strings->count) {
        int64_t start = strings->offsets[guess];
        if ((size_t)(strings->offsets[guess + 1] - start) == value->length &&
            (value->length == 0 || memcmp(strings->bytes + start, value->text, value->length) == 0)) {
            *number = guess;
            return OK;
        }
    }
    *number = xpr_dictionary_number(dictionary, value->text, value->length);
    return *number >= 0 ? OK : NO_MEMORY;
}

typedef struct {
    int32_t category, name, process, thread, ps;
    uint8_t phase;
    int64_t us, duration_ps, id;
} row;

/* A time in microseconds, as text or number, in ps; false where it is none. */
static bool time_ps(const xpr_json_value *value, __int128 *ps) {
    bool has_digits = value->kind == XPR_JSON_NUMBER || value->kind == XPR_JSON_STRING;
    return has_digits && xpr_json_decimal(value->text, value->length, 6, ps);
}

/* Whole microseconds and the picoseconds beyond them, of the numbers that Kineto writes. */
static bool simple_time(const xpr_json_value *value, uint64_t *us, uint32_t *ps) {
    static const uint32_t scale[] = {1000000, 100000, 10000, 1000, 100, 10, 1};
    if (value->kind != XPR_JSON_NUMBER || !value->simple || value->behind > 6) return false;
    *us = value->whole;
    *ps = value->fraction * scale[value->behind];
    return true;
}

static void set_start(row *out, const xpr_json_value *value) {
    uint64_t simple_us;
    uint32_t simple_ps;
    __int128 whole;
    if (simple_time(value, &simple_us, &simple_ps)) {
        out->us = (int64_t)simple_us;
        out->ps = (int32_t)simple_ps;
    } else if (time_ps(value, &whole)) {
        __int128 us = whole / 1000000;
        if (whole < us * 1000000) us--;
        bool fits = us >= INT64_MIN && us <= INT64_MAX;
        out->us = fits ? (int64_t)us : 0;
        out->ps = fits ? (int32_t)(whole - us * 1000000) : -1;
    }
}

static void set_duration(row *out, const xpr_json_value *value) {
    uint64_t us;
    uint32_t ps;
    __int128 whole;
    if (simple_time(value, &us, &ps) && us < INT64_MAX / 1000000)
        out->duration_ps = (int64_t)(us * 1000000 + ps);
    else if (time_ps(value, &whole) && whole >= INT64_MIN && whole <= INT64_MAX)
        out->duration_ps = (int64_t)whole;
}

static bool is(const xpr_json_value *key, const char *name) {
    return key->length == strlen(name) && memcmp(key->text, name, key->length) == 0;
}

static int key_row(const xpr_json_value *key) {
    static const uint8_t first_of_length[] = {0, 0, 0, 0, 1, 3, 5, 8, 8, 12, 12, 14, 17, 17, 20, 21, 23, 23, 23, 24, 25};
    if (key->length < 3 || key->length > 19) return -1;
    for (int at = first_of_length[key->length]; at < first_of_length[key->length + 1]; at++)
        if (memcmp(xpr_chrome_keys[at], key->text, key->length) == 0) return at;
    return -1;
}

static outcome add_argument(xpr_chrome *chrome, int key, xpr_json_value *value) {
    __int128 whole;
    int kind = NO_VALUE;
    int64_t bits = 0;
    if (value->kind == XPR_JSON_TRUE || value->kind == XPR_JSON_FALSE) {
        kind = BOOL;
        bits = value->kind == XPR_JSON_TRUE;
    } else if (value->kind == XPR_JSON_NUMBER && value->simple && value->behind == 0) {
        kind = INT;
        bits = (int64_t)value->whole;
    } else if (value->kind == XPR_JSON_NUMBER) {
        bool is_whole = memchr(value->text, '.', value->length) == NULL && memchr(value->text, 'e', value->length) == NULL &&
                        memchr(value->text, 'E', value->length) == NULL;
        if (is_whole && xpr_json_decimal(value->text, value->length, 0, &whole) && whole >= INT64_MIN &&
            whole <= UINT64_MAX) {
            kind = whole <= INT64_MAX ? INT : UINT;
            bits = kind == INT ? (int64_t)whole : (int64_t)(uint64_t)whole;
        } else {
            char digits[64];
            size_t length = value->length < sizeof digits - 1 ? value->length : sizeof digits - 1;
            memcpy(digits, value->text, length);
            digits[length] = '\0';
            double approximate = strtod(digits, NULL);
            memcpy(&bits, &approximate, sizeof bits);
            kind = DOUBLE;
            chrome->large_numbers += is_whole;
        }
    } else if (value->kind != XPR_JSON_NULL) {
        int32_t number;
        TRY(number_of(chrome, &chrome->texts, value, -1, &number));
        kind = TEXT;
        bits = number;
    }
    if (kind == NO_VALUE) return OK;
    xpr_table *args = &chrome->args;
    if (!xpr_table_room(args)) return NO_MEMORY;
    xpr_i64(args, XPR_CHROME_ARGS_EVENT)[args->count] = (int64_t)chrome->events.count;
    xpr_u8(args, XPR_CHROME_ARGS_KEY)[args->count] = (uint8_t)key;
    xpr_u8(args, XPR_CHROME_ARGS_KIND)[args->count] = (uint8_t)kind;
    xpr_i64(args, XPR_CHROME_ARGS_VALUE)[args->count] = bits;
    args->count++;
    return OK;
}

/* Moves behind a comma, or says that the object ended (`*ended`, behind its brace). */
static outcome next_member(xpr_json *json, bool first, bool *ended) {
    TRY(xpr_json_space(json));
    *ended = *json->at == '}';
    if (*ended || (!first && *json->at == ',')) json->at++;
    else if (!first) return BROKEN;
    return OK;
}

/* Moves to the value of the object's next member and says what its key means; `*ended`: there is none. */
static outcome next_value(xpr_json *json, xpr_leads *leads, int (*meaning_of)(const xpr_json_value *), int *meaning,
                          bool *ended) {
    *ended = false;
    if (!xpr_leads_match(leads, json, meaning)) {
        const uint8_t *from = json->at;
        uint64_t odd = json->odd;
        xpr_json_value key;
        TRY(next_member(json, leads->current == 0, ended));
        if (*ended) return OK;
        TRY(xpr_json_key(json, &key));
        *meaning = meaning_of(&key);
        /* What is said of odd strings is said of each. */
        xpr_leads_learn(leads, from, json->odd == odd ? json->at : from + XPR_LEAD_BYTES + 1, *meaning);
    }
    return (outcome)xpr_json_space(json);
}

static outcome read_arguments(xpr_chrome *chrome, xpr_json *json) {
    xpr_json_value value;
    int key;
    bool ended;
    json->at++;
    xpr_leads_begin(&chrome->argument_leads);
    for (;;) {
        TRY(next_value(json, &chrome->argument_leads, key_row, &key, &ended));
        if (ended) return OK;
        TRY(xpr_json_read(json, &value));
        if (key >= 0) TRY(add_argument(chrome, key, &value));
    }
}

enum { OTHER, PHASE, CATEGORY, NAME, PROCESS, THREAD, START_TIME, DURATION, ID, ARGUMENTS };

static int member_of(const xpr_json_value *key) {
    static const struct {
        const char *name;
        int meaning;
    } members[] = {{"ph", PHASE},   {"ts", START_TIME}, {"id", ID},     {"cat", CATEGORY},  {"pid", PROCESS},
                   {"tid", THREAD}, {"dur", DURATION},  {"name", NAME}, {"args", ARGUMENTS}};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (is(key, members[i].name)) return members[i].meaning;
    return OTHER;
}

static outcome read_member(xpr_chrome *chrome, xpr_json *json, int member, row *out, const row *before) {
    xpr_json_value value;
    __int128 whole;
    if (member == ARGUMENTS && *json->at == '{') return read_arguments(chrome, json);
    TRY(xpr_json_read(json, &value));
    switch (member) {
    case PHASE:
        if (value.kind == XPR_JSON_STRING && value.length == 1) out->phase = *value.text;
        break;
    case CATEGORY:
        return number_of(chrome, &chrome->categories, &value, before->category, &out->category);
    case NAME:
        return number_of(chrome, &chrome->names, &value, before->name, &out->name);
    case PROCESS:
        return number_of(chrome, &chrome->labels, &value, before->process, &out->process);
    case THREAD:
        return number_of(chrome, &chrome->labels, &value, before->thread, &out->thread);
    case START_TIME:
        set_start(out, &value);
        break;
    case DURATION:
        set_duration(out, &value);
        break;
    case ID:
        if (value.kind == XPR_JSON_NUMBER && xpr_json_decimal(value.text, value.length, 0, &whole) && whole >= 0 &&
            whole <= INT64_MAX)
            out->id = (int64_t)whole;
        break;
    default:
        break;
    }
    return OK;
}

static outcome read_event(xpr_chrome *chrome, xpr_json *json, uint64_t at) {
    xpr_table *events = &chrome->events;
    size_t last = events->count - 1;
    row before = {-1, -1, -1, -1, -1, 0, 0, 0, 0};
    if (events->count > 0) {
        before.category = xpr_i32(events, XPR_CHROME_CATEGORY)[last];
        before.name = xpr_i32(events, XPR_CHROME_NAME)[last];
        before.process = xpr_i32(events, XPR_CHROME_PROCESS)[last];
        before.thread = xpr_i32(events, XPR_CHROME_THREAD)[last];
    }
    row out = {-1, -1, -1, -1, -1, 0, 0, -1, -1};
    int member;
    bool ended;
    json->at++;
    xpr_leads_begin(&chrome->event_leads);
    for (;;) {
        TRY(next_value(json, &chrome->event_leads, member_of, &member, &ended));
        if (ended) break;
        TRY(read_member(chrome, json, member, &out, &before));
    }
    if (out.phase == 0) {
        chrome->nameless++;
        while (chrome->args.count &&
               xpr_i64(&chrome->args, XPR_CHROME_ARGS_EVENT)[chrome->args.count - 1] == (int64_t)events->count)
            chrome->args.count--;
        return OK;
    }
    xpr_json_value none = {.kind = XPR_JSON_STRING, .text = (const uint8_t *)"", .length = 0};
    if (out.category < 0) TRY(number_of(chrome, &chrome->categories, &none, before.category, &out.category));
    if (out.name < 0) TRY(number_of(chrome, &chrome->names, &none, before.name, &out.name));
    if (out.process < 0) TRY(number_of(chrome, &chrome->labels, &none, before.process, &out.process));
    if (out.thread < 0) TRY(number_of(chrome, &chrome->labels, &none, before.thread, &out.thread));
    if (!xpr_table_room(events)) return NO_MEMORY;
    size_t i = events->count;
    xpr_i32(events, XPR_CHROME_CATEGORY)[i] = out.category;
    xpr_i32(events, XPR_CHROME_NAME)[i] = out.name;
    xpr_u8(events, XPR_CHROME_PHASE)[i] = out.phase;
    xpr_i32(events, XPR_CHROME_PROCESS)[i] = out.process;
    xpr_i32(events, XPR_CHROME_THREAD)[i] = out.thread;
    xpr_i64(events, XPR_CHROME_US)[i] = out.us;
    xpr_i32(events, XPR_CHROME_PS)[i] = out.ps;
    xpr_i64(events, XPR_CHROME_DURATION)[i] = out.duration_ps;
    xpr_i64(events, XPR_CHROME_ID)[i] = out.id;
    xpr_i64(events, XPR_CHROME_AT)[i] = (int64_t)at;
    events->count++;
    return OK;
}

static uint64_t offset_of(const xpr_chrome *chrome) { return chrome->base + chrome->at; }

static uint64_t repaired_in_events(const xpr_chrome *chrome) {
    return chrome->categories.strings.repaired + chrome->names.strings.repaired + chrome->labels.strings.repaired +
           chrome->texts.strings.repaired;
}

uint64_t xpr_chrome_repaired(const xpr_chrome *chrome) {
    return repaired_in_events(chrome) - chrome->repaired_in_vain + chrome->top_keys.repaired + chrome->top_values.repaired;
}

/* Read one thing at `at` with `read`; what breaks is tried once more with backslashes that end strings. */
static outcome attempt(xpr_chrome *chrome, bool final, outcome (*read)(xpr_chrome *, xpr_json *, uint64_t)) {
    size_t args = chrome->args.count;
    uint64_t large_numbers = chrome->large_numbers, repaired = repaired_in_events(chrome);
    outcome found = BROKEN;
    for (int ends = 0; ends < 2; ends++) {
        xpr_json json = {.at = chrome->buffer + chrome->at, .end = chrome->buffer + chrome->used, .final = final,
                         .backslash_ends = ends};
        bool all = json.end - json.at <= XPR_CHROME_LONGEST;
        if (!all) {
            json.end = json.at + XPR_CHROME_LONGEST;
            json.final = false;
        }
        found = read(chrome, &json, offset_of(chrome));
        if (found == OK) {
            if (json.odd) {
                if (chrome->odd_strings == 0) chrome->odd_at = chrome->base + (uint64_t)(json.first_odd - chrome->buffer);
                chrome->odd_strings += json.odd;
            }
            chrome->at = (size_t)(json.at - chrome->buffer);
            return OK;
        }
        chrome->args.count = args;
        chrome->large_numbers = large_numbers;
        chrome->repaired_in_vain += repaired_in_events(chrome) - repaired;
        repaired = repaired_in_events(chrome);
        if (found == MORE && !all) return BROKEN;
        if (found == NO_MEMORY || (found == MORE && !final)) return found;
    }
    return found;
}

static outcome read_top(xpr_chrome *chrome, xpr_json *json, uint64_t at) {
    (void)at;
    xpr_json_value key, value;
    TRY(xpr_json_key(json, &key));
    if (is(&key, "traceEvents") && *json->at == '[') {
        json->at++;
        chrome->state = EVENTS;
        return OK;
    }
    TRY(xpr_json_read(json, &value));
    if (value.kind == XPR_JSON_STRING) {
        value.text--;
        value.length += 2;
    }
    bool kept = xpr_strings_append(&chrome->top_keys, key.text, key.length) &&
                xpr_strings_append(&chrome->top_values, value.text, value.length);
    return kept ? OK : NO_MEMORY;
}

bool xpr_chrome_damaged(xpr_chrome *chrome, uint64_t at, uint64_t end) {
    xpr_table *damages = &chrome->damages;
    if (damages->count && xpr_i64(damages, XPR_CHROME_DAMAGE_END)[damages->count - 1] == (int64_t)at) {
        xpr_i64(damages, XPR_CHROME_DAMAGE_END)[damages->count - 1] = (int64_t)end;
        return true;
    }
    if (!xpr_table_room(damages)) return false;
    xpr_i64(damages, XPR_CHROME_DAMAGE_AT)[damages->count] = (int64_t)at;
    xpr_i64(damages, XPR_CHROME_DAMAGE_END)[damages->count] = (int64_t)end;
    damages->count++;
    return true;
}

static size_t behind_space(const xpr_chrome *chrome, size_t at) {
    while (at < chrome->used && memchr(" \n\r\t", chrome->buffer[at], 4)) at++;
    return at;
}

/* After damage: where reading goes on. In the list that is an object behind `},` or one that begins with its phase,
 * before the list its key. True where it was found; false where `at` is behind what was looked through. */
static bool find_next(xpr_chrome *chrome) {
    static const char list[] = "\"traceEvents\"";
    const uint8_t *bytes = chrome->buffer;
    size_t at = chrome->at;
    for (; at < chrome->used; at++) {
        if (!chrome->begun) {
            if (chrome->used - at < sizeof list - 1) break;
            if (bytes[at] != '"' || memcmp(bytes + at, list, sizeof list - 1) != 0) continue;
            chrome->at = at;
            return true;
        }
        if (bytes[at] != '{' && bytes[at] != '}') continue;
        size_t next = behind_space(chrome, at + 1);
        if (next == chrome->used) break;
        if (bytes[at] == '}' && bytes[next] == ',') next = behind_space(chrome, next + 1);
        if (chrome->used - next < 4) break;
        bool begins = bytes[at] == '}' ? bytes[next] == '{' : memcmp(bytes + next, "\"ph\"", 4) == 0;
        if (!begins) continue;
        chrome->at = bytes[at] == '}' ? next : at;
        return true;
    }
    chrome->at = at;
    return false;
}

/* `at` stands on damage: leave it behind. */
static void lose(xpr_chrome *chrome) {
    chrome->lost_at = offset_of(chrome);
    chrome->state = LOST;
    chrome->at++;
}

/* Read as much as there is. OK: no more can be read of these bytes. */
static outcome advance(xpr_chrome *chrome, bool final, xpr_decode_error *error) {
    for (;;) {
        if (chrome->state == LOST) {
            if (!find_next(chrome)) return OK;
            if (!xpr_chrome_damaged(chrome, chrome->lost_at, offset_of(chrome))) return NO_MEMORY;
            chrome->state = chrome->begun ? EVENTS : KEYS;
        }
        chrome->at = behind_space(chrome, chrome->at);
        if (chrome->state == END) chrome->at = chrome->used;
        if (chrome->at == chrome->used) return OK;
        uint8_t c = chrome->buffer[chrome->at];
        outcome found = OK;
        if (chrome->state == START) {
            if (c != '{' && c != '[') {
                error->offset = (size_t)offset_of(chrome);
                error->reason = "begins with neither { nor [";
                return BROKEN;
            }
            chrome->in_array = c == '[';
            chrome->state = chrome->in_array ? EVENTS : KEYS;
            chrome->begun = chrome->in_array;
            chrome->at++;
        } else if (c == ',') {
            chrome->at++;
        } else if (chrome->state == KEYS) {
            if (c == '}') {
                chrome->state = END;
                chrome->at++;
            } else {
                found = attempt(chrome, final, read_top);
                if (chrome->state == EVENTS) chrome->begun = true;
            }
        } else if (c == ']') {
            if (chrome->stretch) return OK;
            chrome->state = chrome->in_array ? END : KEYS;
            chrome->at++;
        } else {
            found = c == '{' ? attempt(chrome, final, read_event) : BROKEN;
        }
        if (found == NO_MEMORY || found == MORE) return found;
        /* Behind the list only what describes it can be lost. */
        if (found == BROKEN && chrome->state == KEYS && chrome->begun) {
            if (!xpr_chrome_damaged(chrome, offset_of(chrome), offset_of(chrome) + 1)) return NO_MEMORY;
            chrome->state = END;
        } else if (found == BROKEN) {
            lose(chrome);
        } else {
            chrome->truncated_at = offset_of(chrome);
        }
    }
}

static int failed(xpr_chrome *chrome, outcome why, xpr_decode_error *error) {
    error->place[0] = '\0';
    if (why == NO_MEMORY) {
        error->offset = (size_t)offset_of(chrome);
        error->reason = XPR_OUT_OF_MEMORY;
    }
    return -1;
}

bool xpr_chrome_hold(xpr_chrome *chrome, const uint8_t *bytes, size_t length) {
    size_t used = chrome->used + length;
    if (used > chrome->capacity) {
        uint8_t *buffer = realloc(chrome->buffer, used + used / 2);
        if (buffer == NULL) return false;
        chrome->buffer = buffer;
        chrome->capacity = used + used / 2;
    }
    if (length) memcpy(chrome->buffer + chrome->used, bytes, length);
    chrome->used = used;
    chrome->length += length;
    return true;
}

int xpr_chrome_read(xpr_chrome *chrome, xpr_decode_error *error) {
    static const uint8_t mark[] = {0xef, 0xbb, 0xbf};
    /* What was cut short is tried again when there is twice as much of it: so every byte is read a few times at most. */
    if (chrome->used - chrome->at < chrome->wanted) return 0;
    chrome->wanted = 0;
    if (chrome->state == START && chrome->base == 0) {
        if (chrome->used < 3) return 0;
        if (memcmp(chrome->buffer, mark, 3) == 0) chrome->at = 3;
    }
    outcome found = advance(chrome, false, error);
    if (found == MORE) {
        size_t cut = chrome->used - chrome->at;
        chrome->wanted = cut < XPR_CHROME_LONGEST / 2 ? 2 * cut : XPR_CHROME_LONGEST + 1;
    }
    return found == NO_MEMORY || found == BROKEN ? failed(chrome, found, error) : 0;
}

int xpr_chrome_feed(xpr_chrome *chrome, const uint8_t *bytes, size_t length, xpr_decode_error *error) {
    if (chrome->state == END) {
        chrome->length += length;
        return 0;
    }
    size_t kept = chrome->used - chrome->at;
    if (kept && chrome->at) memmove(chrome->buffer, chrome->buffer + chrome->at, kept);
    chrome->base += chrome->at;
    chrome->at = 0;
    chrome->used = kept;
    if (!xpr_chrome_hold(chrome, bytes, length)) return failed(chrome, NO_MEMORY, error);
    return xpr_chrome_read(chrome, error);
}

int xpr_chrome_finish(xpr_chrome *chrome, xpr_decode_error *error) {
    outcome found = advance(chrome, true, error);
    if (found == NO_MEMORY || found == BROKEN) return failed(chrome, found, error);
    if (chrome->state == START) {
        error->offset = 0;
        error->reason = "holds nothing but white space";
        return failed(chrome, BROKEN, error);
    }
    /* A list of events may do without its end. */
    bool cut = found == MORE || chrome->state == LOST;
    chrome->truncated = cut || (chrome->state != END && !chrome->in_array);
    if (chrome->state == LOST && !xpr_chrome_damaged(chrome, chrome->lost_at, chrome->length))
        return failed(chrome, NO_MEMORY, error);
    if (found == MORE && chrome->length > chrome->truncated_at &&
        !xpr_chrome_damaged(chrome, offset_of(chrome), chrome->length))
        return failed(chrome, NO_MEMORY, error);
    free(chrome->buffer);
    chrome->buffer = NULL;
    chrome->used = chrome->at = chrome->capacity = 0;
    return 0;
}
