#include "recorder/strings.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "recorder/rings.h"

struct entry { /* one string or schema; open addressing, `length` 0 and `id` 0 in an unused one */
    uint64_t hash;
    const uint8_t *key;
    uint32_t length;
    uint32_t id;
    bool used;
};

struct table {
    struct entry *entries;
    size_t room, used; /* room: a power of two */
};

/* Keys live in blocks that never move, so that entries can point into them. */
struct block {
    struct block *next;
    size_t used, room;
    uint8_t bytes[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    struct table strings, schemas;
    struct block *blocks;
    uint32_t next_string, next_schema;
    uint64_t names, texts, key_bytes;
    struct xpr_string_counts counts;
    struct xpr_bytes new_strings, new_schemas;
} all;

void *xpr_bytes_add(struct xpr_bytes *b, size_t bytes) {
    if (b->room - b->used < bytes) {
        size_t room = b->room ? b->room * 2 : 1024;
        while (room - b->used < bytes) room *= 2;
        uint8_t *data = realloc(b->data, room);
        if (!data) {
            b->failed = true;
            return NULL;
        }
        b->data = data;
        b->room = room;
    }
    void *place = b->data + b->used;
    memset(place, 0, bytes);
    b->used += bytes;
    return place;
}

void xpr_bytes_free(struct xpr_bytes *b) {
    free(b->data);
    memset(b, 0, sizeof *b);
}

static uint64_t hash_of(const uint8_t *p, size_t n) {
    uint64_t h = 0x9E3779B97F4A7C15u ^ n;
    while (n >= 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        h = (h ^ w) * 0xFF51AFD7ED558CCDu;
        h ^= h >> 32;
        p += 8;
        n -= 8;
    }
    uint64_t w = 0;
    memcpy(&w, p, n);
    h = (h ^ w) * 0xC4CEB9FE1A85EC53u;
    return h ^ (h >> 29);
}

/* The entry of the key, or the unused one where it belongs. */
static struct entry *find(struct table *t, uint64_t hash, const uint8_t *key, size_t length) {
    for (size_t i = hash & (t->room - 1);; i = (i + 1) & (t->room - 1)) {
        struct entry *e = &t->entries[i];
        if (!e->used) return e;
        if (e->hash == hash && e->length == length && memcmp(e->key, key, length) == 0) return e;
    }
}

static bool grow(struct table *t) {
    if (t->room && t->used * 4 < t->room * 3) return true;
    struct table wider = {.room = t->room ? t->room * 2 : 256, .used = t->used};
    wider.entries = calloc(wider.room, sizeof *wider.entries);
    if (!wider.entries) return t->used + 1 < t->room; /* a fuller table still works while one place stays unused */
    for (size_t i = 0; i < t->room; i++) {
        struct entry *e = &t->entries[i];
        if (e->used) *find(&wider, e->hash, e->key, e->length) = *e;
    }
    free(t->entries);
    *t = wider;
    return true;
}

static const uint8_t *keep_key(const uint8_t *key, size_t length) {
    if (!all.blocks || all.blocks->room - all.blocks->used < length) {
        size_t room = length > 65536 ? length : 65536;
        struct block *b = malloc(sizeof *b + room);
        if (!b) return NULL;
        b->next = all.blocks;
        b->used = 0;
        b->room = room;
        all.blocks = b;
    }
    uint8_t *place = all.blocks->bytes + all.blocks->used;
    memcpy(place, key, length);
    all.blocks->used += length;
    return place;
}

static size_t padded(size_t bytes) { return (bytes + 7) & ~(size_t)7; }

/* Adds the key to a table whose lookup ended at nothing. False: out of memory, the table unchanged. */
static bool add(struct table *t, uint64_t hash, const uint8_t *key, size_t length, uint32_t id) {
    if (!grow(t)) return false;
    const uint8_t *kept = keep_key(key, length);
    if (!kept) return false;
    *find(t, hash, key, length) =
        (struct entry){.hash = hash, .key = kept, .length = (uint32_t)length, .id = id, .used = true};
    t->used++;
    all.key_bytes += length;
    return true;
}

static bool add_string(uint64_t hash, const uint8_t *text, size_t length) {
    struct xpr_string_record *record = xpr_bytes_add(&all.new_strings, sizeof *record + padded(length));
    if (!record) return false;
    if (!add(&all.strings, hash, text, length, all.next_string)) {
        all.new_strings.used -= sizeof *record + padded(length);
        return false;
    }
    record->id = all.next_string++;
    record->bytes = (uint32_t)length;
    memcpy(record + 1, text, length);
    xpr_journal_add(XPR_CHUNK_STRINGS, record, sizeof *record + padded(length));
    all.counts.strings++;
    return true;
}

static void clear(void) {
    free(all.strings.entries);
    free(all.schemas.entries);
    while (all.blocks) {
        struct block *next = all.blocks->next;
        free(all.blocks);
        all.blocks = next;
    }
    xpr_bytes_free(&all.new_strings);
    xpr_bytes_free(&all.new_schemas);
    memset(&all, 0, sizeof all);
}

int xpr_strings_reset(void) {
    static const char *const always[] = {"(more names)", "(more texts)"};
    pthread_mutex_lock(&lock);
    clear();
    all.next_schema = 1;
    bool ok = grow(&all.strings) && grow(&all.schemas);
    for (int i = 0; ok && i < 2; i++) {
        const uint8_t *text = (const uint8_t *)always[i];
        ok = add_string(hash_of(text, strlen(always[i])), text, strlen(always[i]));
    }
    pthread_mutex_unlock(&lock);
    return ok ? 0 : ENOMEM;
}

void xpr_strings_clear(void) {
    pthread_mutex_lock(&lock);
    clear();
    pthread_mutex_unlock(&lock);
}

uint32_t xpr_intern(const char *text, size_t bytes, enum xpr_string_use use, bool *is_new) {
    const uint8_t *key = (const uint8_t *)text;
    if (is_new) *is_new = false;
    if (bytes > XPR_MAX_STRING_BYTES) {
        bytes = XPR_MAX_STRING_BYTES;
        while (bytes && (key[bytes] & 0xC0) == 0x80) bytes--;
    }
    uint64_t hash = hash_of(key, bytes);
    pthread_mutex_lock(&lock);
    uint32_t id = use == XPR_USE_NAME ? XPR_MORE_NAMES : XPR_MORE_TEXTS;
    struct entry *e = all.strings.room ? find(&all.strings, hash, key, bytes) : NULL;
    if (e && e->used) {
        id = e->id;
    } else {
        uint64_t *uses = use == XPR_USE_NAME ? &all.names : &all.texts;
        uint64_t limit = use == XPR_USE_NAME ? XPR_MAX_NAMES : XPR_MAX_TEXTS;
        if (e && *uses < limit && all.key_bytes + bytes <= XPR_MAX_ALL_STRING_BYTES && add_string(hash, key, bytes)) {
            id = all.next_string - 1;
            ++*uses;
            if (is_new) *is_new = true;
        } else if (use == XPR_USE_NAME) {
            all.counts.more_names++;
        } else {
            all.counts.more_texts++;
        }
    }
    pthread_mutex_unlock(&lock);
    return id;
}

uint32_t xpr_intern_schema(const uint32_t *keys, uint32_t count, uint64_t kinds) {
    struct {
        uint64_t kinds;
        uint32_t keys[XPR_MAX_ARGS];
    } key = {.kinds = kinds};
    memcpy(key.keys, keys, count * sizeof *keys);
    size_t length = sizeof key.kinds + count * sizeof *keys;
    uint64_t hash = hash_of((const uint8_t *)&key, length);
    pthread_mutex_lock(&lock);
    uint32_t id = 0;
    struct entry *e = all.schemas.room ? find(&all.schemas, hash, (const uint8_t *)&key, length) : NULL;
    if (e && e->used) {
        id = e->id;
    } else if (e && all.next_schema <= XPR_MAX_SCHEMAS) {
        size_t bytes = sizeof(struct xpr_schema_record) + padded(count * sizeof *keys);
        struct xpr_schema_record *record = xpr_bytes_add(&all.new_schemas, bytes);
        if (record && !add(&all.schemas, hash, (const uint8_t *)&key, length, all.next_schema)) {
            all.new_schemas.used -= bytes;
        } else if (record) {
            record->id = id = all.next_schema++;
            record->count = count;
            record->kinds = kinds;
            memcpy(record + 1, keys, count * sizeof *keys);
            xpr_journal_add(XPR_CHUNK_SCHEMAS, record, bytes);
        }
    }
    if (!id) all.counts.dropped_args += count;
    pthread_mutex_unlock(&lock);
    return id;
}

void xpr_count_dropped_args(uint64_t count) {
    pthread_mutex_lock(&lock);
    all.counts.dropped_args += count;
    pthread_mutex_unlock(&lock);
}

struct xpr_string_counts xpr_strings_counts(void) {
    pthread_mutex_lock(&lock);
    struct xpr_string_counts counts = all.counts;
    pthread_mutex_unlock(&lock);
    return counts;
}

void xpr_strings_take(struct xpr_bytes *strings, struct xpr_bytes *schemas) {
    pthread_mutex_lock(&lock);
    *strings = all.new_strings;
    *schemas = all.new_schemas;
    xpr_journal_taken();
    memset(&all.new_strings, 0, sizeof all.new_strings);
    memset(&all.new_schemas, 0, sizeof all.new_schemas);
    pthread_mutex_unlock(&lock);
}

void xpr_strings_lock(void) { pthread_mutex_lock(&lock); }
void xpr_strings_unlock(void) { pthread_mutex_unlock(&lock); }
void xpr_strings_after_fork_child(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    clear();
}
