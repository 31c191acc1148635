#include "device/nvtx_names.h"

#include <stdlib.h>

enum { BUCKETS = 4096 };
enum what { DOMAIN = 1, STRING, CATEGORY, SCHEMA, THREAD };

/* One thing that was registered, in a list that is only ever added to at its front. */
struct known {
    struct known *next;
    uint64_t id;
    const void *domain;
    enum what what;
    union {
        struct xpr_nvtx_domain domain;
        struct xpr_nvtx_label label;
        struct xpr_nvtx_layout *layout;
    } as;
};

static struct known *buckets[BUCKETS];

struct xpr_nvtx_domain xpr_nvtx_default_domain = {.name = {"default", 7, 0}};

static struct known **bucket_of(enum what what, const void *domain, uint64_t id) {
    uint64_t hash = (id ^ (uint64_t)(uintptr_t)domain << 7 ^ (uint64_t)what << 3) * 0x9E3779B97F4A7C15u;
    return &buckets[hash >> 52];
}

static uint64_t hash_of(const char *text, size_t bytes) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ (uint8_t)text[i]) * 0x100000001B3u;
    return hash;
}

/* `text`: what a label must hold, NULL: anything. */
static struct known *find(struct known *from, enum what what, const void *domain, uint64_t id, const char *text) {
    for (struct known *k = from; k; k = k->next)
        if (k->id == id && k->what == what && k->domain == domain && (!text || strcmp(k->as.label.text, text) == 0)) return k;
    return NULL;
}

static struct known *look_up(enum what what, const void *domain, uint64_t id, const char *text) {
    return find(__atomic_load_n(bucket_of(what, domain, id), __ATOMIC_ACQUIRE), what, domain, id, text);
}

/* Puts `mine` at the front. Of two threads that add one thing at once the second's comes first, and both stay usable. */
static void add(struct known *mine) {
    struct known **bucket = bucket_of(mine->what, mine->domain, mine->id);
    mine->next = __atomic_load_n(bucket, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(bucket, &mine->next, mine, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
    }
}

static struct known *new_labelled(enum what what, const void *domain, uint64_t id, const char *text) {
    size_t bytes = strlen(text);
    struct known *mine = calloc(1, sizeof *mine + bytes + 1);
    if (!mine) return NULL;
    char *copy = memcpy(mine + 1, text, bytes + 1);
    mine->what = what;
    mine->domain = domain;
    mine->id = id;
    mine->as.label = (struct xpr_nvtx_label){.text = copy, .bytes = bytes};
    return mine;
}

/* The label of a text, which is its own key. */
static struct known *labelled(enum what what, const void *domain, const char *text) {
    if (!text) text = "";
    uint64_t id = hash_of(text, strlen(text));
    struct known *found = look_up(what, domain, id, text);
    if (found) return found;
    found = new_labelled(what, domain, id, text);
    if (!found) return NULL;
    if (what == DOMAIN) found->as.domain.is_xla = strcmp(text, "TSL") == 0;
    add(found);
    return found;
}

struct xpr_nvtx_domain *xpr_nvtx_create_domain(const char *name) {
    /* With a domain of NVTX's XLA gives its own profiler no names of operations: whoever wants those from it says so. */
    const char *xla = getenv("XPROF_PY_NVTX_XLA");
    if (name && strcmp(name, "TSL") == 0 && xla && strcmp(xla, "0") == 0) return NULL;
    struct known *domain = labelled(DOMAIN, NULL, name);
    return domain ? &domain->as.domain : NULL;
}

struct xpr_nvtx_label *xpr_nvtx_register_string(struct xpr_nvtx_domain *domain, const char *text) {
    struct known *string = labelled(STRING, domain, text);
    return string ? &string->as.label : NULL;
}

/* A later name goes in front of an earlier one. */
static void name(enum what what, const void *domain, uint64_t id, const char *text) {
    struct known *found = text ? look_up(what, domain, id, NULL) : NULL;
    if (!text || (found && strcmp(found->as.label.text, text) == 0)) return;
    struct known *mine = new_labelled(what, domain, id, text);
    if (mine) add(mine);
}

void xpr_nvtx_name_category(struct xpr_nvtx_domain *domain, uint32_t category, const char *text) {
    name(CATEGORY, xpr_nvtx_domain_of(domain), category, text);
}

struct xpr_nvtx_label *xpr_nvtx_category(struct xpr_nvtx_domain *domain, uint32_t category) {
    struct known *found = look_up(CATEGORY, xpr_nvtx_domain_of(domain), category, NULL);
    return found ? &found->as.label : NULL;
}

void xpr_nvtx_name_thread(uint32_t os_tid, const char *text) { name(THREAD, NULL, os_tid, text); }

const char *xpr_nvtx_thread_name(uint32_t os_tid) {
    struct known *found = look_up(THREAD, NULL, os_tid, NULL);
    return found ? found->as.label.text : NULL;
}

uint32_t xpr_nvtx_intern_label(struct xpr_nvtx_label *label, uint32_t capture, int is_argument) {
    uint32_t id = xprof_py_trace_v1.table->intern(label->text, label->bytes, is_argument);
    /* 0 and 1 stand for what is past the limits. */
    if (id > 1) __atomic_store_n(&label->state, (uint64_t)capture << 32 | id, __ATOMIC_RELAXED);
    return id;
}

size_t xpr_nvtx_bytes_of_type(uint64_t type) {
    static const uint8_t bytes[81] = {
        [XPR_NVTX_CHAR] = 1, [XPR_NVTX_UCHAR] = 1, [XPR_NVTX_SHORT] = 2, [XPR_NVTX_USHORT] = 2, [XPR_NVTX_INT] = 4,
        [XPR_NVTX_UINT] = 4, [XPR_NVTX_LONG] = sizeof(long), [XPR_NVTX_ULONG] = sizeof(long), [XPR_NVTX_LONGLONG] = 8,
        [XPR_NVTX_ULONGLONG] = 8, [XPR_NVTX_I8] = 1, [XPR_NVTX_U8] = 1, [XPR_NVTX_I16] = 2, [XPR_NVTX_U16] = 2,
        [XPR_NVTX_I32] = 4, [XPR_NVTX_U32] = 4, [XPR_NVTX_I64] = 8, [XPR_NVTX_U64] = 8, [XPR_NVTX_FLOAT] = 4,
        [XPR_NVTX_DOUBLE] = 8, [XPR_NVTX_LONGDOUBLE] = sizeof(long double), [XPR_NVTX_SIZE] = sizeof(size_t),
        [XPR_NVTX_ADDRESS] = sizeof(void *), [XPR_NVTX_CHAR8] = 1, [XPR_NVTX_BYTE] = 1, [XPR_NVTX_FLOAT32] = 4,
        [XPR_NVTX_FLOAT64] = 8, [XPR_NVTX_CATEGORY] = 4, [XPR_NVTX_COLOR] = 4, [XPR_NVTX_SCOPE] = 8, [XPR_NVTX_PID32] = 4,
        [XPR_NVTX_PID64] = 8, [XPR_NVTX_TID32] = 4, [XPR_NVTX_TID64] = 8, [XPR_NVTX_CSTRING] = sizeof(char *),
        [XPR_NVTX_CSTRING_UTF8] = sizeof(char *), [XPR_NVTX_REGISTERED] = sizeof(void *),
    };
    return type < sizeof bytes ? bytes[type] : 0;
}

/* Size and alignment of one value of an entry's type; 0: not known, so neither is where the next entry lies. */
static size_t place_of(struct xpr_nvtx_domain *domain, const struct xpr_nvtx_schema_entry *entry, size_t *alignment) {
    size_t bytes = entry->flags & (XPR_NVTX_ENTRY_POINTER | XPR_NVTX_ENTRY_FROM_BASE | XPR_NVTX_ENTRY_FROM_HERE)
                       ? sizeof(void *)
                       : xpr_nvtx_bytes_of_type(entry->type);
    *alignment = bytes ? bytes : 1;
    if (!bytes && entry->type >= XPR_NVTX_FIRST_SCHEMA) {
        const struct xpr_nvtx_layout *layout = xpr_nvtx_layout_of(domain, entry->type);
        bytes = layout ? layout->bytes : 0;
        *alignment = layout ? layout->alignment : 1;
    }
    uint64_t array = entry->flags & XPR_NVTX_ENTRY_POINTER ? 0 : entry->flags & XPR_NVTX_ENTRY_ARRAY;
    if (array && array != XPR_NVTX_ENTRY_ARRAY_FIXED) return 0;
    if (array && (!entry->array_detail || bytes > SIZE_MAX / 2 / entry->array_detail)) return 0;
    return array ? bytes * entry->array_detail : bytes;
}

uint64_t xpr_nvtx_register_schema(struct xpr_nvtx_domain *domain, const struct xpr_nvtx_schema *schema) {
    static uint64_t next = XPR_NVTX_FIRST_DYNAMIC_SCHEMA;
    enum { MOST_ENTRIES = 1 << 16 };
    if (!schema) return 0;
    uint64_t mask = schema->mask;
    uint64_t id = mask & XPR_NVTX_HAS_SCHEMA_ID ? schema->id : 0;
    if (!id) id = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
    bool has_entries = mask & XPR_NVTX_HAS_ENTRIES && mask & XPR_NVTX_HAS_ENTRY_COUNT && schema->entries;
    bool is_static = mask & XPR_NVTX_HAS_TYPE && schema->type == XPR_NVTX_SCHEMA_STATIC;
    bool is_dynamic = mask & XPR_NVTX_HAS_TYPE && schema->type == XPR_NVTX_SCHEMA_DYNAMIC;
    bool is_read = (is_static || is_dynamic) && has_entries && schema->entry_count <= MOST_ENTRIES;
    size_t count = is_read ? schema->entry_count : 0, names = 0;
    for (size_t i = 0; i < count; i++) names += schema->entries[i].name ? strlen(schema->entries[i].name) + 1 : 0;
    struct known *mine = calloc(1, sizeof *mine);
    struct xpr_nvtx_layout *layout = calloc(1, sizeof *layout + count * sizeof *layout->entries + names);
    if (!mine || !layout) {
        free(mine);
        free(layout);
        return 0;
    }
    char *name = (char *)&layout->entries[count];
    size_t end = 0, pack = mask & XPR_NVTX_HAS_PACK_ALIGN && schema->pack_align ? schema->pack_align : SIZE_MAX;
    bool is_placed = true; /* where the entry before this one ends is known */
    layout->alignment = 1;
    for (size_t i = 0; i < count; i++) {
        const struct xpr_nvtx_schema_entry *from = &schema->entries[i];
        struct xpr_nvtx_entry *entry = &layout->entries[i];
        size_t alignment, bytes = place_of(xpr_nvtx_domain_of(domain), from, &alignment);
        if (alignment > pack) alignment = pack;
        *entry = (struct xpr_nvtx_entry){.flags = from->flags, .type = from->type, .length = from->array_detail};
        entry->offset = from->offset || !i ? from->offset : (end + alignment - 1) / alignment * alignment;
        if (!from->offset && i && !is_placed) entry->offset = SIZE_MAX;
        is_placed = bytes && entry->offset < SIZE_MAX / 2;
        end = is_placed ? entry->offset + bytes : 0;
        if (alignment > layout->alignment) layout->alignment = alignment;
        if (from->name) {
            entry->name = strcpy(name, from->name);
            name += strlen(name) + 1;
        }
    }
    for (size_t i = 0; i < count; i++) {
        struct xpr_nvtx_entry *entry = &layout->entries[i];
        if ((entry->flags & XPR_NVTX_ENTRY_ARRAY) == XPR_NVTX_ENTRY_ARRAY_LENGTH_IN && entry->length < count)
            layout->entries[entry->length].is_length = true;
    }
    layout->is_read = is_read;
    layout->count = count;
    if (is_static && is_read && mask & XPR_NVTX_HAS_STATIC_BYTES && schema->static_bytes)
        layout->bytes = schema->static_bytes;
    else if (is_static && is_read && is_placed)
        layout->bytes = (end + layout->alignment - 1) / layout->alignment * layout->alignment;
    *mine = (struct known){.id = id, .domain = xpr_nvtx_domain_of(domain), .what = SCHEMA, .as.layout = layout};
    add(mine);
    return id;
}

const struct xpr_nvtx_layout *xpr_nvtx_layout_of(struct xpr_nvtx_domain *domain, uint64_t id) {
    struct known *found = look_up(SCHEMA, xpr_nvtx_domain_of(domain), id, NULL);
    return found ? found->as.layout : NULL;
}

size_t xpr_nvtx_narrow(char *to, size_t room, const wchar_t *from) {
    size_t used = 0;
    for (; *from; from++) {
        uint32_t c = (uint32_t)*from;
        if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) c = 0xFFFD;
        size_t bytes = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        if (used + bytes >= room) break;
        static const uint8_t first[] = {0, 0, 0xC0, 0xE0, 0xF0};
        for (size_t i = bytes; i-- > 1; c >>= 6) to[used + i] = (char)(0x80 | (c & 0x3F));
        to[used] = (char)(first[bytes] | c);
        used += bytes;
    }
    to[used] = 0;
    return used;
}
