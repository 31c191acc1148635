#include "columns/columns.h"

#include <stdlib.h>
#include <string.h>

#include "columns/memory.h"
#include "columns/utf8.h"

size_t xpr_column_size(char type) { return type == 'q' ? 8 : type == 'i' ? 4 : 1; }

void xpr_table_init(xpr_table *table, const xpr_column_spec *spec, int width) {
    memset(table, 0, sizeof *table);
    table->spec = spec;
    table->width = width;
}

bool xpr_table_reserve(xpr_table *table, size_t rows) {
    if (rows <= table->room) return true;
    for (int i = 0; i < table->width; i++) {
        void *data = xpr_column_resize(table->data[i], rows * xpr_column_size(table->spec[i].type));
        if (data == NULL) return false;
        table->data[i] = data;
    }
    table->capacity = table->room = rows;
    return true;
}

/* Of a large table the rows that were written are passed as it goes on: those in files need not stay in memory. */
bool xpr_table_grow(xpr_table *table) {
    if (table->count >= XPR_ROWS_AT_ONCE) xpr_table_passed(table, table->count - XPR_ROWS_AT_ONCE, table->count);
    if (table->count >= table->room && !xpr_table_reserve(table, table->room ? table->room * 2 : 16)) return false;
    size_t next = table->count + XPR_ROWS_AT_ONCE;
    table->capacity = next < table->room ? next : table->room;
    return true;
}

bool xpr_table_append(xpr_table *table, const xpr_table *rows) {
    size_t from = table->count, count = from + rows->count, room = table->room ? table->room : 16;
    while (room < count) room *= 2;
    if (rows->count == 0) return true;
    if (!xpr_table_reserve(table, room)) return false;
    for (int i = 0; i < table->width; i++) {
        size_t size = xpr_column_size(table->spec[i].type);
        memcpy((char *)table->data[i] + from * size, rows->data[i], rows->count * size);
    }
    table->count = count;
    table->capacity = room - count > XPR_ROWS_AT_ONCE ? count + XPR_ROWS_AT_ONCE : room;
    size_t passed = from / XPR_ROWS_AT_ONCE * XPR_ROWS_AT_ONCE;
    if (count - passed >= XPR_ROWS_AT_ONCE) xpr_table_passed(table, passed, count);
    return true;
}

void xpr_table_passed(const xpr_table *table, size_t from, size_t to) {
    for (int i = 0; i < table->width; i++) {
        size_t size = xpr_column_size(table->spec[i].type);
        xpr_column_passed(table->data[i], from * size, to * size);
    }
}

void xpr_table_free(xpr_table *table) {
    for (int i = 0; i < table->width; i++) {
        xpr_column_free(table->data[i]);
        table->data[i] = NULL;
    }
    table->count = table->capacity = table->room = 0;
}

static bool reserve_bytes(xpr_strings *strings, size_t more) {
    size_t used = strings->count ? (size_t)strings->offsets[strings->count] : 0;
    if (more > SIZE_MAX / 4 - used) return false;
    if (used + more <= strings->byte_capacity) return true;
    size_t capacity = strings->byte_capacity ? strings->byte_capacity : 64;
    while (capacity < used + more) capacity *= 2;
    char *bytes = xpr_column_resize(strings->bytes, capacity);
    if (bytes == NULL) return false;
    strings->bytes = bytes;
    strings->byte_capacity = capacity;
    return true;
}

bool xpr_strings_append(xpr_strings *strings, const uint8_t *bytes, size_t length) {
    if (strings->count + 2 > strings->offset_capacity) {
        size_t capacity = strings->offset_capacity ? strings->offset_capacity * 2 : 16;
        int64_t *offsets = xpr_column_resize(strings->offsets, capacity * sizeof *offsets);
        if (offsets == NULL) return false;
        offsets[strings->count] = strings->count ? offsets[strings->count] : 0;
        strings->offsets = offsets;
        strings->offset_capacity = capacity;
    }
    bool valid = xpr_utf8_valid(bytes, length);
    size_t stored = valid ? length : xpr_utf8_repaired_length(bytes, length);
    if (!reserve_bytes(strings, stored)) return false;
    char *to = strings->bytes ? strings->bytes + strings->offsets[strings->count] : NULL;
    if (valid && length) memcpy(to, bytes, length);
    if (!valid) {
        xpr_utf8_repair(bytes, length, to);
        strings->repaired++;
    }
    strings->offsets[strings->count + 1] = strings->offsets[strings->count] + (int64_t)stored;
    strings->count++;
    return true;
}

void xpr_strings_free(xpr_strings *strings) {
    xpr_column_free(strings->offsets);
    xpr_column_free(strings->bytes);
    memset(strings, 0, sizeof *strings);
}

static uint64_t mixed(uint64_t x) {
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    x ^= x >> 32;
    return x;
}

static uint32_t hash_of(const uint8_t *bytes, size_t length) {
    uint64_t hash = length * UINT64_C(0x9e3779b97f4a7c15);
    while (length >= 8) {
        uint64_t word;
        memcpy(&word, bytes, 8);
        hash = mixed(hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        bytes += 8;
        length -= 8;
    }
    uint64_t tail = 0;
    for (size_t i = 0; i < length; i++) tail |= (uint64_t)bytes[i] << (8 * i);
    return (uint32_t)mixed(hash ^ tail);
}

static bool grow_slots(xpr_dictionary *dictionary) {
    size_t count = dictionary->slot_count ? dictionary->slot_count * 2 : 64;
    int32_t *slots = calloc(count, sizeof *slots);
    uint32_t *hashes = malloc(count * sizeof *hashes);
    if (slots == NULL || hashes == NULL) {
        free(slots);
        free(hashes);
        return false;
    }
    for (size_t i = 0; i < dictionary->slot_count; i++) {
        if (!dictionary->slots[i]) continue;
        size_t slot = dictionary->hashes[i] & (count - 1);
        while (slots[slot]) slot = (slot + 1) & (count - 1);
        slots[slot] = dictionary->slots[i];
        hashes[slot] = dictionary->hashes[i];
    }
    free(dictionary->slots);
    free(dictionary->hashes);
    dictionary->slots = slots;
    dictionary->hashes = hashes;
    dictionary->slot_count = count;
    return true;
}

int32_t xpr_dictionary_number(xpr_dictionary *dictionary, const uint8_t *bytes, size_t length) {
    xpr_strings *strings = &dictionary->strings;
    if (strings->count >= INT32_MAX - 1) return -1;
    if ((strings->count + 1) * 2 > dictionary->slot_count && !grow_slots(dictionary)) return -1;
    uint32_t hash = hash_of(bytes, length);
    size_t mask = dictionary->slot_count - 1;
    size_t slot = hash & mask;
    for (; dictionary->slots[slot]; slot = (slot + 1) & mask) {
        if (dictionary->hashes[slot] != hash) continue;
        int32_t row = dictionary->slots[slot] - 1;
        int64_t start = strings->offsets[row];
        if ((size_t)(strings->offsets[row + 1] - start) == length &&
            (length == 0 || memcmp(strings->bytes + start, bytes, length) == 0))
            return row;
    }
    if (!xpr_utf8_valid(bytes, length)) {
        /* Stored are repaired strings only: two broken ones may be the same after repair. */
        size_t repaired_length = xpr_utf8_repaired_length(bytes, length);
        char *repaired = malloc(repaired_length + 1);
        if (repaired == NULL) return -1;
        xpr_utf8_repair(bytes, length, repaired);
        int32_t row = xpr_dictionary_number(dictionary, (const uint8_t *)repaired, repaired_length);
        free(repaired);
        if (row >= 0) strings->repaired++;
        return row;
    }
    if (!xpr_strings_append(strings, bytes, length)) return -1;
    dictionary->slots[slot] = (int32_t)strings->count;
    dictionary->hashes[slot] = hash;
    return (int32_t)strings->count - 1;
}

void xpr_dictionary_clear(xpr_dictionary *dictionary) {
    if (dictionary->slot_count) memset(dictionary->slots, 0, dictionary->slot_count * sizeof *dictionary->slots);
    if (dictionary->strings.count) dictionary->strings.offsets[0] = 0;
    dictionary->strings.count = 0;
    dictionary->strings.repaired = 0;
}

void xpr_dictionary_free(xpr_dictionary *dictionary) {
    xpr_strings_free(&dictionary->strings);
    free(dictionary->slots);
    free(dictionary->hashes);
    memset(dictionary, 0, sizeof *dictionary);
}

bool xpr_id_map_init(xpr_id_map *map, size_t expected) {
    memset(map, 0, sizeof *map);
    size_t dense_count = expected * 2 + 16;
    map->dense = malloc(dense_count * sizeof *map->dense);
    if (map->dense == NULL) return false;
    memset(map->dense, 0xff, dense_count * sizeof *map->dense);
    map->dense_count = dense_count;
    return true;
}

static size_t slot_for(const uint64_t *keys, const int32_t *rows, size_t slot_count, uint64_t id) {
    size_t slot = (size_t)mixed(id) & (slot_count - 1);
    while (rows[slot] >= 0 && keys[slot] != id) slot = (slot + 1) & (slot_count - 1);
    return slot;
}

static bool grow_ids(xpr_id_map *map) {
    size_t count = map->slot_count ? map->slot_count * 2 : 16;
    uint64_t *keys = malloc(count * sizeof *keys);
    int32_t *rows = malloc(count * sizeof *rows);
    if (keys == NULL || rows == NULL) {
        free(keys);
        free(rows);
        return false;
    }
    memset(rows, 0xff, count * sizeof *rows);
    for (size_t i = 0; i < map->slot_count; i++) {
        if (map->rows[i] < 0) continue;
        size_t slot = slot_for(keys, rows, count, map->keys[i]);
        keys[slot] = map->keys[i];
        rows[slot] = map->rows[i];
    }
    free(map->keys);
    free(map->rows);
    map->keys = keys;
    map->rows = rows;
    map->slot_count = count;
    return true;
}

bool xpr_id_map_set(xpr_id_map *map, uint64_t id, int32_t row, int32_t *before) {
    if (id < map->dense_count) {
        *before = map->dense[id];
        map->dense[id] = row;
        return true;
    }
    if ((map->used + 1) * 2 > map->slot_count && !grow_ids(map)) return false;
    size_t slot = slot_for(map->keys, map->rows, map->slot_count, id);
    *before = map->rows[slot];
    map->used += map->rows[slot] < 0;
    map->keys[slot] = id;
    map->rows[slot] = row;
    return true;
}

int32_t xpr_id_map_sparse(const xpr_id_map *map, uint64_t id) {
    return map->slot_count ? map->rows[slot_for(map->keys, map->rows, map->slot_count, id)] : -1;
}

void xpr_id_map_free(xpr_id_map *map) {
    free(map->dense);
    free(map->keys);
    free(map->rows);
    memset(map, 0, sizeof *map);
}
