/* Growing columns, string columns, string dictionaries and id maps: what the decoders fill.
 *
 * Ownership: every structure owns its memory; `_free` releases it and leaves the structure empty. A column's data may
 * be taken over by the caller, who sets `data` to NULL and calls xpr_column_free() later.
 * Failure: functions that allocate return false when memory is out; the structure stays valid and must be freed.
 * Cost: capacity doubles, so memory stays within twice the rows that were really found in the input; nothing is ever
 * allocated for a length that the input merely claims.
 * Threading: one thread at a time.
 */
#ifndef XPROF_PY_COLUMNS_COLUMNS_H
#define XPROF_PY_COLUMNS_COLUMNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { XPR_MAX_COLUMNS = 10 };

/* `type`: 'q' int64, 'i' int32, 'B' uint8, as in Python's struct and buffer protocol. */
typedef struct {
    const char *name;
    char type;
} xpr_column_spec;

typedef struct {
    const xpr_column_spec *spec;
    int width;
    size_t count;
    size_t capacity; /* rows that may be written; less than there is room for where the columns lie in files */
    size_t room;
    void *data[XPR_MAX_COLUMNS];
} xpr_table;

void xpr_table_init(xpr_table *table, const xpr_column_spec *spec, int width);
bool xpr_table_grow(xpr_table *table);
/* Room for exactly so many rows, if there is not for more. */
bool xpr_table_reserve(xpr_table *table, size_t rows);
/* All rows of a table of the same columns. */
bool xpr_table_append(xpr_table *table, const xpr_table *rows);
/* Rows [from, to) are not needed soon (column_memory.h). */
void xpr_table_passed(const xpr_table *table, size_t from, size_t to);
void xpr_table_free(xpr_table *table);
size_t xpr_column_size(char type);

/* Room for one more row, at index `count`, which the caller fills and then counts. */
static inline bool xpr_table_room(xpr_table *table) {
    return table->count < table->capacity || xpr_table_grow(table);
}

static inline int64_t *xpr_i64(const xpr_table *table, int column) { return table->data[column]; }
static inline int32_t *xpr_i32(const xpr_table *table, int column) { return table->data[column]; }
static inline uint8_t *xpr_u8(const xpr_table *table, int column) { return table->data[column]; }

/* Strings one after the other; string i is bytes offsets[i] up to offsets[i + 1] of `bytes`. Always valid UTF-8. */
typedef struct {
    int64_t *offsets; /* NULL while there are none; else count + 1 */
    char *bytes;
    size_t count;
    size_t offset_capacity;
    size_t byte_capacity;
    uint64_t repaired; /* how many appended strings were not UTF-8 and had U+FFFD put in */
} xpr_strings;

bool xpr_strings_append(xpr_strings *strings, const uint8_t *bytes, size_t length);
void xpr_strings_free(xpr_strings *strings);

/* A dictionary: each distinct string once, numbered in order of appearance. */
typedef struct {
    xpr_strings strings;
    int32_t *slots; /* row + 1, 0 = free */
    uint32_t *hashes;
    size_t slot_count;
} xpr_dictionary;

/* The number of the string, or -1 when memory is out or there are 2^31 strings. */
int32_t xpr_dictionary_number(xpr_dictionary *dictionary, const uint8_t *bytes, size_t length);
/* No strings any more; the memory is kept for others. */
void xpr_dictionary_clear(xpr_dictionary *dictionary);
void xpr_dictionary_free(xpr_dictionary *dictionary);

/* 64-bit ids -> row numbers. Small ids, the usual ones, are looked up in an array. */
typedef struct {
    int32_t *dense; /* row, -1 = none */
    size_t dense_count;
    uint64_t *keys;
    int32_t *rows; /* -1 = free */
    size_t slot_count;
    size_t used;
} xpr_id_map;

/* An empty map expecting `expected` ids. */
bool xpr_id_map_init(xpr_id_map *map, size_t expected);
/* Set the id's row; `*before` is the row it had, or -1. */
bool xpr_id_map_set(xpr_id_map *map, uint64_t id, int32_t row, int32_t *before);
int32_t xpr_id_map_sparse(const xpr_id_map *map, uint64_t id);
void xpr_id_map_free(xpr_id_map *map);

/* The id's row, or -1. */
static inline int32_t xpr_id_map_row(const xpr_id_map *map, uint64_t id) {
    return id < map->dense_count ? map->dense[id] : xpr_id_map_sparse(map, id);
}

#endif
