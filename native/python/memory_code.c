/* What a place in a code object says, read from memory: file, function and line.
 *
 * A code object that a frame runs lives as long as the frame; but frame and code may be gone by the time they are read. So
 * nothing is believed of what does not look like a code object, and a place that was read before is known again only if the
 * object has the same names, line table and first line at the same addresses, and the names the same length, hash and
 * characters. (An address alone says nothing: code that was freed leaves its place to the next.) */
#include "stack_frames.h"

#include <stddef.h>

enum {
    KNOWN_PLACES = 4096,
    COMPARED_CHARACTERS = 256, /* bytes of a name that are compared, beside its length and hash */
    CODE_BYTES = offsetof(PyCodeObject, co_code_adaptive),
    MAX_CODE_UNITS = 1 << 26,
    CODE_UNIT_BYTES = 2,
};

static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 29;
}

static bool is_plausible(uintptr_t address) { return address >= 4096 && address % sizeof(void *) == 0 && address >> 47 == 0; }

/* --- texts -------------------------------------------------------------------------------------------------------- */

/* Where the characters of a compact string begin; 0 for what is none. */
static size_t characters_at(const PyASCIIObject *head) {
    unsigned kind = head->state.kind;
    if ((void *)head->ob_base.ob_type != (void *)&PyUnicode_Type || !head->state.compact || head->length < 0) return 0;
    if (kind != 1 && kind != 2 && kind != 4) return 0;
    return head->state.ascii ? sizeof(PyASCIIObject) : sizeof(PyCompactUnicodeObject);
}

static char *put_utf8(char *to, uint32_t c) {
    if (c < 0x80) {
        *to++ = (char)c;
    } else if (c < 0x800) {
        *to++ = (char)(0xC0 | c >> 6);
        *to++ = (char)(0x80 | (c & 0x3F));
    } else if (c >= 0xD800 && c < 0xE000) {
        /* A lone surrogate, as in the name of a file that is not UTF-8: as Python's "backslashreplace" has it. */
        to += snprintf(to, 7, "\\u%04x", c);
    } else if (c < 0x10000) {
        *to++ = (char)(0xE0 | c >> 12);
        *to++ = (char)(0x80 | (c >> 6 & 0x3F));
        *to++ = (char)(0x80 | (c & 0x3F));
    } else {
        *to++ = (char)(0xF0 | (c >> 18 & 7));
        *to++ = (char)(0x80 | (c >> 12 & 0x3F));
        *to++ = (char)(0x80 | (c >> 6 & 0x3F));
        *to++ = (char)(0x80 | (c & 0x3F));
    }
    return to;
}

/* What tells one string from another at the same address: its head, then the first characters. */
static uint64_t text_hash(const uint8_t *bytes, size_t count) {
    PyASCIIObject head; /* places lie one behind the other, however that is aligned */
    memcpy(&head, bytes, sizeof head);
    uint64_t hash = mix(mix(mix(0, (uint64_t)head.length), (uint64_t)head.hash), (uint64_t)(uintptr_t)head.ob_base.ob_type);
    for (size_t at = sizeof head; at < count; at += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, bytes + at, count - at < sizeof word ? count - at : sizeof word);
        hash = mix(hash, word);
    }
    return hash;
}

/* The string at `address` as UTF-8; `compared` bytes of it, from its head on, have the hash. */
static bool read_text(struct xpr_memory *memory, uintptr_t address, char *text, size_t *bytes, uint32_t *compared, uint64_t *hash) {
    if (!is_plausible(address) ||
        !xpr_memory_read(memory, &(struct xpr_place_in_memory){address, sizeof(PyASCIIObject)}, 1))
        return false;
    PyASCIIObject head;
    memcpy(&head, memory->bytes, sizeof head);
    size_t first = characters_at(&head), width = head.state.kind;
    if (!first) return false;
    size_t count = head.length < XPR_FRAME_TEXT_CHARACTERS ? (size_t)head.length : XPR_FRAME_TEXT_CHARACTERS;
    if (!xpr_memory_read(memory, &(struct xpr_place_in_memory){address, first + count * width}, 1)) return false;
    if (memcmp(memory->bytes, &head, sizeof head) != 0) return false;
    char *end = text;
    for (size_t i = 0; i < count; i++) {
        const uint8_t *at = memory->bytes + first + i * width;
        uint32_t c = width == 1 ? *at : width == 2 ? *(const uint16_t *)at : *(const uint32_t *)at;
        if (c > 0x10FFFF) return false;
        end = put_utf8(end, c);
    }
    *bytes = (size_t)(end - text);
    *compared = (uint32_t)(first + (count * width < COMPARED_CHARACTERS ? count * width : COMPARED_CHARACTERS));
    *hash = text_hash(memory->bytes, *compared);
    return true;
}

/* --- lines -------------------------------------------------------------------------------------------------------- */

struct cursor {
    const uint8_t *at, *end;
};

static unsigned next_byte(struct cursor *c) { return c->at < c->end ? *c->at++ : 0; }

static unsigned next_number(struct cursor *c) {
    unsigned byte = next_byte(c), value = byte & 63;
    for (unsigned shift = 6; byte & 64 && shift < 30; shift += 6) value |= ((byte = next_byte(c)) & 63) << shift;
    return value;
}

static int next_signed(struct cursor *c) {
    unsigned value = next_number(c);
    return value & 1 ? -(int)(value >> 1) : (int)(value >> 1);
}

/* The line of code unit `unit` in a location table (Objects/locations.md of CPython, 3.11 on); 0: it has none. */
static uint32_t line_of(const uint8_t *table, size_t bytes, int first_line, size_t unit) {
    struct cursor c = {table, table + bytes};
    int line = first_line;
    size_t reached = 0;
    while (c.at < c.end) {
        unsigned head = next_byte(&c), code = head >> 3 & 15;
        bool has_line = code != 15;
        if (!(head & 128)) return 0;
        if (code == 14) {
            line += next_signed(&c);
            next_number(&c), next_number(&c), next_number(&c);
        } else if (code == 13) {
            line += next_signed(&c);
        } else if (code >= 10 && code <= 12) {
            line += (int)code - 10;
            next_byte(&c), next_byte(&c);
        } else if (code < 10) {
            next_byte(&c);
        }
        reached += (head & 7) + 1;
        if (unit < reached) return has_line && line > 0 ? (uint32_t)line : 0;
    }
    return 0;
}

/* --- places that are known ---------------------------------------------------------------------------------------- */

struct place {
    struct xpr_code_place at;
    uintptr_t file, function, line_table;
    uint64_t file_hash, function_hash;
    uint32_t file_compared, function_compared;
    int first_line;
    uint32_t id;
};

static struct place known[KNOWN_PLACES];
static struct place *slot_of(struct xpr_code_place at) {
    uint64_t hash = mix(mix(0, at.code), at.instruction);
    return &known[hash % KNOWN_PLACES];
}

void xpr_forget_code_places(void) { memset(known, 0, sizeof known); }

/* Whether `bytes` are the begin of a code object in which the place lies. An instruction before the first: a frame that has
 * not begun. */
static bool is_code(const PyCodeObject *code, struct xpr_code_place at) {
    if ((void *)code->ob_base.ob_base.ob_type != (void *)&PyCode_Type) return false;
    Py_ssize_t units = code->ob_base.ob_size;
    intptr_t offset = (intptr_t)(at.instruction - at.code - CODE_BYTES) / CODE_UNIT_BYTES;
    return units > 0 && units < MAX_CODE_UNITS && offset >= -1 && offset < units && code->co_firstlineno >= 0 &&
           is_plausible((uintptr_t)code->co_filename) && is_plausible((uintptr_t)code->co_qualname) &&
           is_plausible((uintptr_t)code->co_linetable);
}

static bool is_complete(const PyCodeObject *code, struct xpr_code_place at) {
    return (intptr_t)(at.instruction - at.code - CODE_BYTES) >= CODE_UNIT_BYTES * (intptr_t)code->_co_firsttraceable;
}

static bool is_same(const struct place *place, const PyCodeObject *code, const uint8_t *file, const uint8_t *function) {
    return place->first_line == code->co_firstlineno && place->file == (uintptr_t)code->co_filename &&
           place->function == (uintptr_t)code->co_qualname && place->line_table == (uintptr_t)code->co_linetable &&
           place->file_hash == text_hash(file, place->file_compared) &&
           place->function_hash == text_hash(function, place->function_compared);
}

bool xpr_find_code_places(struct xpr_memory *memory, const struct xpr_code_place *places, uint32_t count,
                          enum xpr_frame_kind *kinds, uint32_t *ids) {
    if (!count) return true;
    struct xpr_place_in_memory wanted[3 * XPR_MAX_LINKS];
    const struct place *known_as[XPR_MAX_LINKS], *before = NULL;
    size_t code_at[XPR_MAX_LINKS], file_at[XPR_MAX_LINKS], function_at[XPR_MAX_LINKS];
    size_t n = 0, end = 0, before_at = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct place *place = slot_of(places[i]);
        bool has_place = place->id && place->at.code == places[i].code && place->at.instruction == places[i].instruction;
        known_as[i] = has_place ? place : NULL;
        if (!is_plausible(places[i].code)) return false;
        wanted[n++] = (struct xpr_place_in_memory){places[i].code, CODE_BYTES};
        code_at[i] = end;
        end += CODE_BYTES;
        if (!has_place) continue;
        /* Neighbours are often of one file. */
        if (!before || before->file != place->file || before->file_compared != place->file_compared) {
            wanted[n++] = (struct xpr_place_in_memory){place->file, place->file_compared};
            before = place;
            before_at = end;
            end += place->file_compared;
        }
        file_at[i] = before_at;
        wanted[n++] = (struct xpr_place_in_memory){place->function, place->function_compared};
        function_at[i] = end;
        end += place->function_compared;
    }
    if (!xpr_memory_read(memory, wanted, n)) return false;
    for (uint32_t i = 0; i < count; i++) {
        PyCodeObject code;
        memcpy(&code, memory->bytes + code_at[i], CODE_BYTES);
        kinds[i] = XPR_FRAME_NEW;
        if (!is_code(&code, places[i])) {
            kinds[i] = XPR_FRAME_TORN;
        } else if (!places[i].has_begun && !is_complete(&code, places[i])) {
            kinds[i] = XPR_FRAME_INCOMPLETE;
        } else if (known_as[i] && is_same(known_as[i], &code, memory->bytes + file_at[i], memory->bytes + function_at[i])) {
            kinds[i] = XPR_FRAME_KNOWN;
            ids[i] = known_as[i]->id;
        }
    }
    return true;
}

/* What xpr_read_code_place found last, until it is kept. */
static struct place found;

bool xpr_read_code_place(struct xpr_memory *memory, struct xpr_code_place at, struct xpr_frame_text *text) {
    PyCodeObject code;
    PyBytesObject table;
    struct place place = {.at = at};
    const size_t table_head = offsetof(PyBytesObject, ob_sval);
    found.id = 0;
    if (!xpr_memory_read(memory, &(struct xpr_place_in_memory){at.code, CODE_BYTES}, 1)) return false;
    memcpy(&code, memory->bytes, CODE_BYTES);
    if (!is_code(&code, at)) return false;
    place.file = (uintptr_t)code.co_filename;
    place.function = (uintptr_t)code.co_qualname;
    place.line_table = (uintptr_t)code.co_linetable;
    place.first_line = code.co_firstlineno;
    if (!read_text(memory, place.file, text->file, &text->file_bytes, &place.file_compared, &place.file_hash) ||
        !read_text(memory, place.function, text->function, &text->function_bytes, &place.function_compared, &place.function_hash))
        return false;
    if (!xpr_memory_read(memory, &(struct xpr_place_in_memory){place.line_table, table_head}, 1)) return false;
    memcpy(&table, memory->bytes, table_head);
    if ((void *)table.ob_base.ob_base.ob_type != (void *)&PyBytes_Type || table.ob_base.ob_size < 0) return false;
    size_t bytes = (size_t)table.ob_base.ob_size;
    if (bytes > XPR_MAX_LINE_TABLE_BYTES) bytes = XPR_MAX_LINE_TABLE_BYTES;
    if (!xpr_memory_read(memory, &(struct xpr_place_in_memory){place.line_table, table_head + bytes}, 1)) return false;
    intptr_t unit = (intptr_t)(at.instruction - at.code - CODE_BYTES) / CODE_UNIT_BYTES;
    text->line = unit < 0 ? (uint32_t)code.co_firstlineno
                          : line_of(memory->bytes + table_head, bytes, code.co_firstlineno, (size_t)unit);
    found = place;
    return true;
}

uint32_t xpr_keep_code_place(const struct xpr_frame_text *text) {
    bool is_new;
    found.id = xpr_intern_frame(xpr_intern(text->file, text->file_bytes, XPR_USE_TEXT, &is_new),
                                xpr_intern(text->function, text->function_bytes, XPR_USE_TEXT, &is_new), text->line);
    *slot_of(found.at) = found;
    return found.id;
}
