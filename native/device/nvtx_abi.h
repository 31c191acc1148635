/* What an NVTX client (version 3: headers that every library compiles into itself) and a tool agree on, in names of our own.
 *
 * A client reads NVTX_INJECTION64_PATH at its first call, loads that library, calls InitializeInjectionNvtx2 once, which puts
 * functions into the client's slots, and InitializeInjectionNvtxExtension once for each extension that it uses. The layouts
 * are those of NVTX's public headers; tests/native/nvtx_abi_check.c compares them with installed ones. */
#ifndef XPROF_PY_DEVICE_NVTX_ABI_H
#define XPROF_PY_DEVICE_NVTX_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <wchar.h>

/* A push returns how deep its range lies, or this from a tool that does not say. */
enum { XPR_NVTX_NO_LEVEL = -2 };

enum { XPR_NVTX_TABLE_CALLBACKS = 1 };
enum { XPR_NVTX_MODULE_CORE = 1, XPR_NVTX_MODULE_CORE2 = 5 };

typedef void (*xpr_nvtx_function)(void);

struct xpr_nvtx_callbacks {
    size_t struct_bytes;
    int (*module_slots)(int module, xpr_nvtx_function ***slots, unsigned *count);
};

/* Slots of CORE. Texts end with 0; those of *_W are wchar_t. */
enum {
    XPR_NVTX_MARK_EX = 1,
    XPR_NVTX_MARK_A,
    XPR_NVTX_MARK_W,
    XPR_NVTX_START_EX,
    XPR_NVTX_START_A,
    XPR_NVTX_START_W,
    XPR_NVTX_END,
    XPR_NVTX_PUSH_EX,
    XPR_NVTX_PUSH_A,
    XPR_NVTX_PUSH_W,
    XPR_NVTX_POP,
    XPR_NVTX_NAME_CATEGORY_A,
    XPR_NVTX_NAME_CATEGORY_W,
    XPR_NVTX_NAME_THREAD_A,
    XPR_NVTX_NAME_THREAD_W,
};

/* Slots of CORE2: the same within a domain. */
enum {
    XPR_NVTX_DOMAIN_MARK = 1,
    XPR_NVTX_DOMAIN_START,
    XPR_NVTX_DOMAIN_END,
    XPR_NVTX_DOMAIN_PUSH,
    XPR_NVTX_DOMAIN_POP,
    XPR_NVTX_RESOURCE_CREATE,
    XPR_NVTX_RESOURCE_DESTROY,
    XPR_NVTX_DOMAIN_NAME_CATEGORY_A,
    XPR_NVTX_DOMAIN_NAME_CATEGORY_W,
    XPR_NVTX_REGISTER_STRING_A,
    XPR_NVTX_REGISTER_STRING_W,
    XPR_NVTX_DOMAIN_CREATE_A,
    XPR_NVTX_DOMAIN_CREATE_W,
    XPR_NVTX_DOMAIN_DESTROY,
    XPR_NVTX_INITIALIZE,
};

enum {
    XPR_NVTX_PAYLOAD_NONE = 0,
    XPR_NVTX_PAYLOAD_UINT64,
    XPR_NVTX_PAYLOAD_INT64,
    XPR_NVTX_PAYLOAD_DOUBLE,
    XPR_NVTX_PAYLOAD_UINT32,
    XPR_NVTX_PAYLOAD_INT32,
    XPR_NVTX_PAYLOAD_FLOAT,
};
#define XPR_NVTX_PAYLOAD_EXTENDED ((int32_t)0xDFBD0009u)

enum { XPR_NVTX_MESSAGE_NONE = 0, XPR_NVTX_MESSAGE_ASCII, XPR_NVTX_MESSAGE_WIDE, XPR_NVTX_MESSAGE_REGISTERED };

/* `bytes` says how much of it a client filled in. */
struct xpr_nvtx_attributes {
    uint16_t version, bytes;
    uint32_t category; /* 0: none */
    int32_t color_type;
    uint32_t color;
    int32_t payload_type;
    int32_t payload_count; /* of xpr_nvtx_payload, where the type is EXTENDED */
    union {
        uint64_t uint64; /* of EXTENDED: the address of the first payload */
        int64_t int64;
        double float64;
        uint32_t uint32;
        int32_t int32;
        float float32;
    } payload;
    int32_t message_type;
    union {
        const char *ascii;
        const wchar_t *wide;
        const void *registered; /* what our register_string returned */
    } message;
};

/* --- the extension for structured payloads -------------------------------------------------------------------------- */

enum { XPR_NVTX_EXTENSION_PAYLOAD = 2 };

struct xpr_nvtx_segment {
    size_t id, slot_count;
    intptr_t *slots;
};

struct xpr_nvtx_module {
    uint16_t nvtx_version, struct_bytes, module, compatibility;
    size_t segment_count;
    struct xpr_nvtx_segment *segments;
    intptr_t (*get_export_function)(uint32_t id);
    const void *info;
};

/* Slots of the payload extension. */
enum {
    XPR_NVTX_SCHEMA_REGISTER = 0,
    XPR_NVTX_ENUM_REGISTER,
    XPR_NVTX_MARK_PAYLOAD,
    XPR_NVTX_PUSH_PAYLOAD,
    XPR_NVTX_POP_PAYLOAD,
    XPR_NVTX_START_PAYLOAD,
    XPR_NVTX_END_PAYLOAD,
    XPR_NVTX_DOMAIN_IS_ENABLED,
};

struct xpr_nvtx_payload {
    uint64_t schema; /* a registered one, or the type of an array's elements */
    size_t bytes;    /* SIZE_MAX: not said */
    const void *payload;
};

struct xpr_nvtx_schema_entry {
    uint64_t flags, type;
    const char *name, *description;
    uint64_t array_detail; /* of an array: its length, or what says it */
    uint64_t offset;       /* 0 in another entry than the first: right after the one before, aligned */
    const void *semantics, *reserved;
};

/* Only the fields in the mask have a meaning; reading others reads what the client never set. */
enum {
    XPR_NVTX_HAS_TYPE = 1 << 2,
    XPR_NVTX_HAS_ENTRIES = 1 << 4,
    XPR_NVTX_HAS_ENTRY_COUNT = 1 << 5,
    XPR_NVTX_HAS_STATIC_BYTES = 1 << 6,
    XPR_NVTX_HAS_PACK_ALIGN = 1 << 7,
    XPR_NVTX_HAS_SCHEMA_ID = 1 << 8,
};

struct xpr_nvtx_schema {
    uint64_t mask;
    const char *name;
    uint64_t type, flags;
    const struct xpr_nvtx_schema_entry *entries;
    size_t entry_count, static_bytes, pack_align;
    uint64_t id;
    void *extension;
};

enum { XPR_NVTX_SCHEMA_STATIC = 1, XPR_NVTX_SCHEMA_DYNAMIC };

#define XPR_NVTX_ENTRY_POINTER 0x2u
#define XPR_NVTX_ENTRY_FROM_BASE 0x4u
#define XPR_NVTX_ENTRY_FROM_HERE 0x8u
#define XPR_NVTX_ENTRY_ARRAY 0x70u
#define XPR_NVTX_ENTRY_ARRAY_FIXED 0x10u
#define XPR_NVTX_ENTRY_ARRAY_ZERO_ENDED 0x20u
#define XPR_NVTX_ENTRY_ARRAY_LENGTH_IN 0x30u /* another entry, of which array_detail is the index */
#define XPR_NVTX_ENTRY_HIDE 0x200u
#define XPR_NVTX_ENTRY_MESSAGE 0x400u

enum {
    XPR_NVTX_CHAR = 1, XPR_NVTX_UCHAR, XPR_NVTX_SHORT, XPR_NVTX_USHORT, XPR_NVTX_INT, XPR_NVTX_UINT,
    XPR_NVTX_LONG, XPR_NVTX_ULONG, XPR_NVTX_LONGLONG, XPR_NVTX_ULONGLONG,
    XPR_NVTX_I8, XPR_NVTX_U8, XPR_NVTX_I16, XPR_NVTX_U16, XPR_NVTX_I32, XPR_NVTX_U32, XPR_NVTX_I64, XPR_NVTX_U64,
    XPR_NVTX_FLOAT, XPR_NVTX_DOUBLE, XPR_NVTX_LONGDOUBLE,
    XPR_NVTX_SIZE = 22,
    XPR_NVTX_ADDRESS = 23,
    XPR_NVTX_CHAR8 = 25,
    XPR_NVTX_BYTE = 32,
    XPR_NVTX_FLOAT32 = 43,
    XPR_NVTX_FLOAT64 = 44,
    XPR_NVTX_CATEGORY = 68,
    XPR_NVTX_COLOR = 69,
    XPR_NVTX_SCOPE = 70,
    XPR_NVTX_PID32 = 71, XPR_NVTX_PID64, XPR_NVTX_TID32, XPR_NVTX_TID64,
    XPR_NVTX_CSTRING = 75, XPR_NVTX_CSTRING_UTF8,
    XPR_NVTX_REGISTERED = 80,
};
#define XPR_NVTX_FIRST_SCHEMA ((uint64_t)1 << 24)
#define XPR_NVTX_FIRST_DYNAMIC_SCHEMA ((uint64_t)1 << 32)

_Static_assert(sizeof(struct xpr_nvtx_attributes) == 48 && offsetof(struct xpr_nvtx_attributes, message) == 40, "attributes");
_Static_assert(sizeof(struct xpr_nvtx_payload) == 24 && sizeof(struct xpr_nvtx_schema_entry) == 64, "payloads");
_Static_assert(sizeof(struct xpr_nvtx_schema) == 80 && sizeof(struct xpr_nvtx_module) == 40, "schemas");

#endif
