#include "device/nvtx_arguments.h"

#include <stdio.h>

/* Numbers of schema.ArgKind. */
enum kind { INT = 1, UINT = 2, DOUBLE = 3, TEXT = 4 };
enum { MOST_TEXT_BYTES = 1024, MOST_NESTED = 4, KEY_BYTES = 128, MOST_PAYLOADS = 64 };

static struct xpr_nvtx_label domain_key = {"domain", 6, 0}, category_key = {"category", 8, 0}, payload_key = {"payload", 7, 0};

uint32_t xpr_nvtx_text_id(struct xpr_nvtx_texts *texts, uint32_t capture, const char *text, size_t bytes, int is_argument) {
    if (bytes >= XPR_NVTX_TEXT_BYTES) return xprof_py_trace_v1.table->intern(text, bytes, is_argument);
    uint64_t hash = bytes, word;
    size_t at = 0;
    for (; at + 8 <= bytes; at += 8) {
        memcpy(&word, text + at, 8);
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
    }
    word = 0;
    for (unsigned shift = 0; at < bytes; at++, shift += 8) word |= (uint64_t)(uint8_t)text[at] << shift;
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    size_t place = hash >> 56;
    if (texts->known[place].capture == capture && texts->known[place].bytes == bytes &&
        memcmp(texts->known[place].text, text, bytes) == 0)
        return texts->known[place].id;
    uint32_t id = xprof_py_trace_v1.table->intern(text, bytes, is_argument);
    if (id > 1) {
        texts->known[place].capture = capture;
        texts->known[place].id = id;
        texts->known[place].bytes = (uint8_t)bytes;
        memcpy(texts->known[place].text, text, bytes);
    }
    return id;
}

static void put(struct xpr_nvtx_arguments *a, uint32_t key, enum kind kind, uint64_t value) {
    if (a->count == XPROF_PY_MAX_ARGUMENTS) {
        a->left_out++;
        return;
    }
    a->keys[a->count] = key;
    a->values[a->count] = value;
    a->kinds |= (uint64_t)kind << 4 * a->count++;
}

static uint64_t bits(double value) {
    uint64_t as_bits;
    memcpy(&as_bits, &value, sizeof as_bits);
    return as_bits;
}

struct reading {
    struct xpr_nvtx_arguments *a;
    struct xpr_nvtx_texts *texts;
    struct xpr_nvtx_domain *domain;
};

static uint32_t key_of(struct reading *r, const char *key, size_t bytes) {
    return xpr_nvtx_text_id(r->texts, r->a->capture, key, bytes, 0);
}

static void put_text(struct reading *r, const char *key, size_t key_bytes, bool is_message, const char *text, size_t bytes) {
    if (is_message && !r->a->has_message) {
        r->a->message = xpr_nvtx_text_id(r->texts, r->a->capture, text, bytes, 0);
        r->a->has_message = true;
        return;
    }
    put(r->a, key_of(r, key, key_bytes), TEXT, xpr_nvtx_text_id(r->texts, r->a->capture, text, bytes, 1));
}

/* One value of a predefined type at `from`, which lies in the payload whole. False: a type that is not read. */
static bool put_value(struct reading *r, const char *key, size_t key_bytes, uint64_t type, bool is_message, const void *from) {
    union {
        int8_t i8; uint8_t u8; int16_t i16; uint16_t u16; int32_t i32; uint32_t u32; int64_t i64; uint64_t u64;
        float f32; double f64; const char *text; struct xpr_nvtx_label *label;
    } v;
    size_t bytes = xpr_nvtx_bytes_of_type(type);
    if (!bytes || bytes > sizeof v) return false;
    memcpy(&v, from, bytes);
    enum kind kind = UINT;
    uint64_t value = bytes == 1 ? v.u8 : bytes == 2 ? v.u16 : bytes == 4 ? v.u32 : v.u64;
    switch (type) {
    case XPR_NVTX_CHAR: case XPR_NVTX_SHORT: case XPR_NVTX_INT: case XPR_NVTX_LONG: case XPR_NVTX_LONGLONG:
    case XPR_NVTX_I8: case XPR_NVTX_I16: case XPR_NVTX_I32: case XPR_NVTX_I64:
        kind = INT;
        value = (uint64_t)(int64_t)(bytes == 1 ? v.i8 : bytes == 2 ? v.i16 : bytes == 4 ? v.i32 : v.i64);
        break;
    case XPR_NVTX_FLOAT: case XPR_NVTX_FLOAT32:
        kind = DOUBLE;
        value = bits((double)v.f32);
        break;
    case XPR_NVTX_DOUBLE: case XPR_NVTX_FLOAT64:
        kind = DOUBLE;
        value = bits(v.f64);
        break;
    case XPR_NVTX_CSTRING: case XPR_NVTX_CSTRING_UTF8:
        if (v.text) put_text(r, key, key_bytes, is_message, v.text, strnlen(v.text, MOST_TEXT_BYTES));
        return true;
    case XPR_NVTX_REGISTERED:
        if (!v.label) return true;
        if (is_message && !r->a->has_message) {
            r->a->message = xpr_nvtx_id_of(v.label, r->a->capture, 0);
            r->a->has_message = true;
        } else {
            put(r->a, key_of(r, key, key_bytes), TEXT, xpr_nvtx_id_of(v.label, r->a->capture, 1));
        }
        return true;
    case XPR_NVTX_CATEGORY: {
        struct xpr_nvtx_label *label = xpr_nvtx_category(r->domain, v.u32);
        if (label) {
            put(r->a, key_of(r, key, key_bytes), TEXT, xpr_nvtx_id_of(label, r->a->capture, 1));
            return true;
        }
        break;
    }
    case XPR_NVTX_COLOR:
        return true;
    default:
        break;
    }
    put(r->a, key_of(r, key, key_bytes), kind, value);
    return true;
}

static bool is_character(uint64_t type) { return type == XPR_NVTX_CHAR || type == XPR_NVTX_UCHAR || type == XPR_NVTX_CHAR8; }

static bool put_layout(struct reading *r, char *key, size_t key_bytes, const struct xpr_nvtx_layout *layout, const char *base,
                       size_t bytes, unsigned depth);

/* One value of any type. False: it is counted as left out. */
static bool put_any(struct reading *r, char *key, size_t key_bytes, uint64_t type, bool is_message, const char *from, size_t room,
                    unsigned depth) {
    if (type < XPR_NVTX_FIRST_SCHEMA)
        return xpr_nvtx_bytes_of_type(type) <= room && put_value(r, key, key_bytes, type, is_message, from);
    const struct xpr_nvtx_layout *layout = xpr_nvtx_layout_of(r->domain, type);
    return layout && layout->bytes && layout->bytes <= room && put_layout(r, key, key_bytes, layout, from, layout->bytes, depth + 1);
}

/* An array: a text where it is of characters, else each value that finds a place. One of one value is that value. */
static bool put_array(struct reading *r, char *key, size_t key_bytes, uint64_t type, bool is_message, const char *from,
                      size_t room, size_t count, unsigned depth) {
    if (is_character(type)) {
        size_t most = room < MOST_TEXT_BYTES ? room : MOST_TEXT_BYTES;
        put_text(r, key, key_bytes, is_message, from, strnlen(from, count < most ? count : most));
        return count <= room;
    }
    const struct xpr_nvtx_layout *layout = type < XPR_NVTX_FIRST_SCHEMA ? NULL : xpr_nvtx_layout_of(r->domain, type);
    size_t one = layout ? layout->bytes : xpr_nvtx_bytes_of_type(type);
    if (!one || count > room / one) return false;
    for (size_t i = 0; i < count; i++) {
        if (r->a->count == XPROF_PY_MAX_ARGUMENTS) {
            r->a->left_out += count - i;
            break;
        }
        int more = count > 1 ? snprintf(key + key_bytes, KEY_BYTES - key_bytes, ".%zu", i) : 0;
        bool fits = more >= 0 && (size_t)more < KEY_BYTES - key_bytes;
        if (!fits || !put_any(r, key, key_bytes + (size_t)more, type, false, from + i * one, one, depth)) r->a->left_out++;
    }
    return true;
}

/* The length of an array that another entry of its payload holds; SIZE_MAX: it does not. */
static size_t length_in(const struct xpr_nvtx_layout *layout, size_t index, const char *base, size_t bytes) {
    uint64_t length = 0;
    if (index >= layout->count) return SIZE_MAX;
    const struct xpr_nvtx_entry *entry = &layout->entries[index];
    size_t one = xpr_nvtx_bytes_of_type(entry->type);
    bool is_number = entry->type <= XPR_NVTX_U64 || entry->type == XPR_NVTX_SIZE;
    if (entry->flags || !is_number || !one || entry->offset > bytes || bytes - entry->offset < one) return SIZE_MAX;
    memcpy(&length, base + entry->offset, one); /* little-endian */
    return length;
}

/* One field of a payload of `bytes` at `base`. False: it is counted as left out. */
static bool put_field(struct reading *r, char *key, size_t key_bytes, const struct xpr_nvtx_layout *layout,
                      const struct xpr_nvtx_entry *entry, const char *base, size_t bytes, unsigned depth) {
    uint64_t flags = entry->flags, array = flags & XPR_NVTX_ENTRY_ARRAY;
    bool is_message = flags & XPR_NVTX_ENTRY_MESSAGE;
    if (flags & (XPR_NVTX_ENTRY_FROM_BASE | XPR_NVTX_ENTRY_FROM_HERE) || entry->offset > bytes) return false;
    const char *from = base + entry->offset;
    size_t room = bytes - entry->offset;
    if (flags & XPR_NVTX_ENTRY_POINTER) {
        /* What it points to is as long as its type and length say. */
        if (room < sizeof from) return false;
        memcpy(&from, from, sizeof from);
        if (!from) return true;
        room = SIZE_MAX;
    }
    switch (array) {
    case 0:
        return put_any(r, key, key_bytes, entry->type, is_message, from, room, depth);
    case XPR_NVTX_ENTRY_ARRAY_FIXED:
        return put_array(r, key, key_bytes, entry->type, is_message, from, room, entry->length, depth);
    case XPR_NVTX_ENTRY_ARRAY_ZERO_ENDED:
        return is_character(entry->type) && put_array(r, key, key_bytes, entry->type, is_message, from, room, room, depth);
    case XPR_NVTX_ENTRY_ARRAY_LENGTH_IN:
        return put_array(r, key, key_bytes, entry->type, is_message, from, room, length_in(layout, entry->length, base, bytes),
                         depth);
    default:
        return false;
    }
}

static bool is_shown(const struct xpr_nvtx_entry *entry) { return !entry->is_length && !(entry->flags & XPR_NVTX_ENTRY_HIDE); }

static bool put_layout(struct reading *r, char *key, size_t key_bytes, const struct xpr_nvtx_layout *layout, const char *base,
                       size_t bytes, unsigned depth) {
    if (!layout->is_read || depth > MOST_NESTED) return false;
    size_t shown = 0;
    for (size_t i = 0; i < layout->count; i++) shown += is_shown(&layout->entries[i]);
    for (size_t i = 0; i < layout->count; i++) {
        const struct xpr_nvtx_entry *entry = &layout->entries[i];
        if (!is_shown(entry)) continue;
        /* What holds one thing only to wrap it has a name that says nothing: a value within a field, an array of its own. */
        bool is_wrapper = shown == 1 && (depth || entry->flags & XPR_NVTX_ENTRY_ARRAY);
        int more = is_wrapper ? 0
                   : entry->name ? snprintf(key + key_bytes, KEY_BYTES - key_bytes, ".%s", entry->name)
                                 : snprintf(key + key_bytes, KEY_BYTES - key_bytes, ".%zu", i);
        bool fits = more >= 0 && (size_t)more < KEY_BYTES - key_bytes;
        if (!fits || !put_field(r, key, key_bytes + (size_t)more, layout, entry, base, bytes, depth)) r->a->left_out++;
    }
    return true;
}

static void put_payload(struct reading *r, const struct xpr_nvtx_payload *payload) {
    char key[KEY_BYTES] = "payload";
    const size_t key_bytes = strlen("payload");
    size_t bytes = payload->bytes;
    if (!payload->payload) return;
    if (payload->schema >= XPR_NVTX_FIRST_SCHEMA) {
        const struct xpr_nvtx_layout *layout = xpr_nvtx_layout_of(r->domain, payload->schema);
        size_t room = layout && bytes == SIZE_MAX ? layout->bytes : bytes;
        if (!layout || !put_layout(r, key, key_bytes, layout, payload->payload, room, 0)) r->a->left_out++;
        return;
    }
    size_t one = xpr_nvtx_bytes_of_type(payload->schema);
    bool is_text = payload->schema == XPR_NVTX_CSTRING || payload->schema == XPR_NVTX_CSTRING_UTF8;
    if (is_text) {
        /* The payload is the text itself, which ends with it or with 0. */
        const char *text = payload->payload;
        put_text(r, key, key_bytes, false, text, strnlen(text, bytes < MOST_TEXT_BYTES ? bytes : MOST_TEXT_BYTES));
    } else if (!one || (bytes == SIZE_MAX && !is_character(payload->schema))) {
        r->a->left_out++;
    } else if (bytes == one) {
        put_value(r, key, key_bytes, payload->schema, false, payload->payload);
    } else {
        put_array(r, key, key_bytes, payload->schema, false, payload->payload, bytes, bytes / one, 0);
    }
}

static void put_payloads(struct reading *r, const struct xpr_nvtx_payload *payloads, size_t count) {
    size_t most = count < MOST_PAYLOADS ? count : MOST_PAYLOADS;
    for (size_t i = 0; i < most; i++) put_payload(r, &payloads[i]);
    r->a->left_out += count - most;
}

/* Returns the number's kind, 0: of a type that is not known. */
static unsigned put_number(struct reading *r, const struct xpr_nvtx_attributes *attributes) {
    enum kind kind = UINT;
    uint64_t value = attributes->payload.uint64;
    switch (attributes->payload_type) {
    case XPR_NVTX_PAYLOAD_UINT64: break;
    case XPR_NVTX_PAYLOAD_INT64: kind = INT; break;
    case XPR_NVTX_PAYLOAD_DOUBLE: kind = DOUBLE; break;
    case XPR_NVTX_PAYLOAD_UINT32: value = attributes->payload.uint32; break;
    case XPR_NVTX_PAYLOAD_INT32: kind = INT; value = (uint64_t)(int64_t)attributes->payload.int32; break;
    case XPR_NVTX_PAYLOAD_FLOAT: kind = DOUBLE; value = bits((double)attributes->payload.float32); break;
    default: r->a->left_out++; return 0;
    }
    put(r->a, xpr_nvtx_id_of(&payload_key, r->a->capture, 0), kind, value);
    return kind;
}

static void put_message(struct reading *r, const struct xpr_nvtx_attributes *attributes) {
    struct xpr_nvtx_arguments *a = r->a;
    char narrow[MOST_TEXT_BYTES];
    if (!attributes->message.ascii) return;
    switch (attributes->message_type) {
    case XPR_NVTX_MESSAGE_ASCII:
        a->message = xpr_nvtx_text_id(r->texts, a->capture, attributes->message.ascii, strlen(attributes->message.ascii), 0);
        break;
    case XPR_NVTX_MESSAGE_WIDE: {
        size_t bytes = xpr_nvtx_narrow(narrow, sizeof narrow, attributes->message.wide);
        a->message = xpr_nvtx_text_id(r->texts, a->capture, narrow, bytes, 0);
        break;
    }
    case XPR_NVTX_MESSAGE_REGISTERED:
        a->message = xpr_nvtx_id_of((struct xpr_nvtx_label *)attributes->message.registered, a->capture, 0);
        break;
    default: return;
    }
    a->has_message = true;
}

uint64_t xpr_nvtx_plain_schemas[2][4];

static void settle_schema(struct xpr_nvtx_arguments *a, uint64_t *state) {
    uint64_t known = state ? __atomic_load_n(state, __ATOMIC_RELAXED) : 0;
    if (known >> 32 == a->capture) {
        a->schema = (uint16_t)known;
        return;
    }
    uint32_t schema = xprof_py_trace_v1.table->schema(a->keys, a->count, a->kinds);
    if (state && schema) __atomic_store_n(state, (uint64_t)a->capture << 32 | schema, __ATOMIC_RELAXED);
    a->schema = (uint16_t)schema;
}

static void begin(struct reading *r, uint32_t capture, struct xpr_nvtx_domain *domain) {
    struct xpr_nvtx_arguments *a = r->a;
    a->capture = capture;
    a->message = 0;
    a->has_message = false;
    a->schema = 0;
    a->count = 0;
    a->left_out = a->kinds = 0;
    put(a, xpr_nvtx_id_of(&domain_key, capture, 0), TEXT, xpr_nvtx_id_of(&domain->name, capture, 1));
}

static void end(struct reading *r, uint64_t *state) {
    struct xpr_nvtx_arguments *a = r->a;
    if (!a->has_message) a->message = xpr_nvtx_text_id(r->texts, a->capture, "(unnamed)", strlen("(unnamed)"), 0);
    settle_schema(a, state);
    if (a->left_out) xprof_py_trace_v1.table->leave_out(a->left_out);
}

void xpr_nvtx_read_event(struct xpr_nvtx_arguments *a, struct xpr_nvtx_texts *texts, uint32_t capture,
                         struct xpr_nvtx_domain *domain, const struct xpr_nvtx_attributes *attributes,
                         const struct xpr_nvtx_payload *payloads, size_t payload_count) {
    struct reading r = {a, texts, domain};
    begin(&r, capture, domain);
    bool is_plain = !payload_count;
    unsigned with_category = 0, number = 0;
    if (attributes && attributes->bytes >= sizeof *attributes) {
        put_message(&r, attributes);
        if (attributes->category) {
            struct xpr_nvtx_label *label = xpr_nvtx_category(domain, attributes->category);
            char digits[16];
            int written = label ? 0 : snprintf(digits, sizeof digits, "%u", attributes->category);
            uint32_t id = label ? xpr_nvtx_id_of(label, capture, 1)
                                : xpr_nvtx_text_id(texts, capture, digits, (size_t)written, 1);
            put(a, xpr_nvtx_id_of(&category_key, capture, 0), TEXT, id);
            with_category = 1;
        }
        if (attributes->payload_type == XPR_NVTX_PAYLOAD_EXTENDED) {
            const struct xpr_nvtx_payload *first = (const struct xpr_nvtx_payload *)(uintptr_t)attributes->payload.uint64;
            is_plain = false;
            if (first && attributes->payload_count > 0) put_payloads(&r, first, (size_t)attributes->payload_count);
        } else if (attributes->payload_type != XPR_NVTX_PAYLOAD_NONE) {
            number = put_number(&r, attributes);
        }
    }
    if (payloads) put_payloads(&r, payloads, payload_count);
    end(&r, is_plain ? &xpr_nvtx_plain_schemas[with_category][number] : NULL);
}

void xpr_nvtx_read_message(struct xpr_nvtx_arguments *a, struct xpr_nvtx_texts *texts, uint32_t capture, const char *message) {
    struct reading r = {a, texts, &xpr_nvtx_default_domain};
    begin(&r, capture, &xpr_nvtx_default_domain);
    if (message) {
        a->message = xpr_nvtx_text_id(texts, capture, message, strlen(message), 0);
        a->has_message = true;
    }
    end(&r, &xpr_nvtx_plain_schemas[0][0]);
}
