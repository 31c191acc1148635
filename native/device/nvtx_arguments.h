/* The arguments of one NVTX event as the recorder takes them: its domain, its category, its payload.
 *
 *     domain            always, "default" where the event names none
 *     category          its name, else its number
 *     payload           of one number; of an array payload.0, payload.1, ...
 *     payload.<field>   of a payload with a schema, nested ones with a further dot
 *
 * Everything is read at the call: a client's memory may be gone afterwards. What finds no place (more arguments than an event
 * holds, unions, arrays without a length, types wider than 64 bits) is counted. Colours are left out without a count. */
#ifndef XPROF_PY_DEVICE_NVTX_ARGUMENTS_H
#define XPROF_PY_DEVICE_NVTX_ARGUMENTS_H

#include "device/nvtx_names.h"

enum { XPR_NVTX_TEXTS = 256, XPR_NVTX_TEXT_BYTES = 48 };

/* Short texts that one thread used lately, with their ids: a message that is not registered comes as text each time, and
 * often again. Belongs to its thread. */
struct xpr_nvtx_texts {
    struct {
        uint32_t capture, id;
        uint8_t bytes;
        char text[XPR_NVTX_TEXT_BYTES - 1];
    } known[XPR_NVTX_TEXTS];
};

uint32_t xpr_nvtx_text_id(struct xpr_nvtx_texts *texts, uint32_t capture, const char *text, size_t bytes, int is_argument);

struct xpr_nvtx_arguments {
    uint32_t capture;
    uint32_t message; /* string id of the name */
    bool has_message;
    uint16_t schema, count;
    uint64_t left_out;
    uint64_t kinds;
    uint32_t keys[XPROF_PY_MAX_ARGUMENTS];
    uint64_t values[XPROF_PY_MAX_ARGUMENTS];
};

/* Schemas of events without structured payloads, as a label's state: by whether they have a category, by their number's kind. */
extern uint64_t xpr_nvtx_plain_schemas[2][4];

/* Fills in `a` from an event's attributes (NULL: none) and payloads of the extension. Where neither names the event, its name
 * is "(unnamed)". */
void xpr_nvtx_read_event(struct xpr_nvtx_arguments *a, struct xpr_nvtx_texts *texts, uint32_t capture,
                         struct xpr_nvtx_domain *domain, const struct xpr_nvtx_attributes *attributes,
                         const struct xpr_nvtx_payload *payloads, size_t payload_count);

/* The commonest event, a name in a domain and nothing else, when the ids of the domain and of its schema are known in the
 * capture: the domain's id, and its schema and name; else 0. `message`: of an event without attributes. */
static inline uint32_t xpr_nvtx_read_simple(struct xpr_nvtx_texts *texts, uint32_t capture, const struct xpr_nvtx_domain *domain,
                                            const struct xpr_nvtx_attributes *a, const char *message, uint32_t *name,
                                            uint16_t *schema) {
    uint64_t of_domain = __atomic_load_n(&domain->name.state, __ATOMIC_RELAXED);
    uint64_t of_schema = __atomic_load_n(&xpr_nvtx_plain_schemas[0][0], __ATOMIC_RELAXED);
    if (of_domain >> 32 != capture || of_schema >> 32 != capture) return 0;
    if (a) {
        if (a->bytes < sizeof *a || !a->message.registered || a->category || a->payload_type != XPR_NVTX_PAYLOAD_NONE) return 0;
        if (a->message_type == XPR_NVTX_MESSAGE_REGISTERED)
            *name = xpr_nvtx_id_of((struct xpr_nvtx_label *)a->message.registered, capture, 0);
        else if (a->message_type == XPR_NVTX_MESSAGE_ASCII)
            message = a->message.ascii;
        else
            return 0;
    }
    if (message) *name = xpr_nvtx_text_id(texts, capture, message, strlen(message), 0);
    *schema = (uint16_t)of_schema;
    return (uint32_t)of_domain;
}

/* As xpr_nvtx_read_event for an event of the default domain that has a name and nothing else. */
void xpr_nvtx_read_message(struct xpr_nvtx_arguments *a, struct xpr_nvtx_texts *texts, uint32_t capture, const char *message);

#endif
