#include "decode/json_text.h"

#include <string.h>

enum { MAX_DEPTH = 64 };

/* Bytes at which a string needs a look: its end, an escape, a control byte. */
static const uint8_t stops[256] = {
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, ['"'] = 1, ['\\'] = 1,
};

/* How many of eight bytes lie before the first stop, 8 where none is one. */
static inline unsigned before_stop(const uint8_t *bytes) {
    const uint64_t ones = UINT64_C(0x0101010101010101), tops = UINT64_C(0x8080808080808080);
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    uint64_t quote = word ^ ones * '"', slash = word ^ ones * '\\';
    /* The lowest bit set is right: a borrow makes stops only of bytes above one. */
    uint64_t found = (((word - ones * 0x20) & ~word) | ((quote - ones) & ~quote) | ((slash - ones) & ~slash)) & tops;
    return found ? (unsigned)__builtin_ctzll(found) / 8 : 8;
}

static int hex_of(uint8_t c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The code unit of the four digits at `text`, -1 where they are not four. */
static int code_unit(const uint8_t *text, const uint8_t *end) {
    if (end - text < 4) return -1;
    int unit = 0;
    for (int i = 0; i < 4; i++) {
        int digit = hex_of(text[i]);
        if (digit < 0) return -1;
        unit = unit << 4 | digit;
    }
    return unit;
}

/* Whether a quote at `at - 1` ends a string: what may follow one follows. */
static xpr_json_status ends_string(const xpr_json *json, const uint8_t *at) {
    while (at < json->end && xpr_json_is_space(*at)) at++;
    if (at == json->end) return json->final ? XPR_JSON_OK : XPR_JSON_MORE;
    return *at == ',' || *at == ':' || *at == '}' || *at == ']' ? XPR_JSON_OK : XPR_JSON_BROKEN;
}

static xpr_json_status read_string(xpr_json *json, xpr_json_value *value) {
    const uint8_t *at = json->at + 1, *end = json->end, *odd = NULL;
    value->kind = XPR_JSON_STRING;
    value->text = at;
    value->escaped = false;
    for (;;) {
        unsigned passed = 8;
        while (end - at >= 8 && (passed = before_stop(at)) == 8) at += 8;
        if (passed < 8)
            at += passed;
        else
            while (at < end && !stops[*at]) at++;
        if (at == end) return XPR_JSON_MORE;
        if (*at == '"') break;
        if (*at != '\\') {
            if (odd == NULL) odd = at;
            at++;
            continue;
        }
        value->escaped = true;
        if (end - at < 2) return XPR_JSON_MORE;
        if (at[1] == '"' && json->backslash_ends) {
            xpr_json_status ends = ends_string(json, at + 2);
            if (ends == XPR_JSON_MORE) return ends;
            if (ends == XPR_JSON_OK) {
                if (odd == NULL) odd = at;
                at++;
                break;
            }
        }
        if (at[1] == 'u' && end - at < 6 && !json->final) return XPR_JSON_MORE;
        bool known = at[1] == 'u' ? code_unit(at + 2, end) >= 0 : at[1] && strchr("\"\\/bfnrt", at[1]) != NULL;
        if (!known && odd == NULL) odd = at;
        at += known ? 2 : 1;
    }
    value->length = (size_t)(at - value->text);
    json->at = at + 1;
    if (odd) {
        if (json->odd++ == 0) json->first_odd = odd;
    }
    return XPR_JSON_OK;
}

static bool is_digit(uint8_t c) { return c >= '0' && c <= '9'; }

/* Past digits; `*value` is theirs, which wraps beyond 19 of them. */
static inline const uint8_t *behind_digits(const uint8_t *at, const uint8_t *end, uint64_t *value) {
    uint64_t found = 0;
    while (at < end && is_digit(*at)) found = found * 10 + (uint64_t)(*at++ - '0');
    *value = found;
    return at;
}

/* Also numbers without a digit before or behind the point are read. */
static xpr_json_status read_number(xpr_json *json, xpr_json_value *value) {
    const uint8_t *at = json->at, *end = json->end;
    uint64_t fraction = 0, exponent;
    bool simple = *at != '-';
    if (!simple) at++;
    const uint8_t *digits = at;
    at = behind_digits(at, end, &value->whole);
    bool any = at > digits;
    simple &= any && at - digits <= 18;
    value->behind = 0;
    if (at < end && *at == '.') {
        digits = ++at;
        at = behind_digits(at, end, &fraction);
        any |= at > digits;
        simple &= at > digits && at - digits <= 9;
        value->behind = (uint8_t)(at - digits);
    }
    if (at < end && (*at == 'e' || *at == 'E')) {
        at++;
        if (at < end && (*at == '-' || *at == '+')) at++;
        digits = at;
        at = behind_digits(at, end, &exponent);
        any &= at > digits;
        simple = false;
    }
    if (at == end && !json->final) return XPR_JSON_MORE;
    value->kind = XPR_JSON_NUMBER;
    value->simple = simple;
    value->fraction = (uint32_t)fraction;
    value->text = json->at;
    value->length = (size_t)(at - json->at);
    json->at = at;
    return any ? XPR_JSON_OK : XPR_JSON_BROKEN;
}

static xpr_json_status read_word(xpr_json *json, xpr_json_value *value) {
    static const struct {
        const char *word;
        xpr_json_kind kind;
    } words[] = {{"true", XPR_JSON_TRUE},     {"false", XPR_JSON_FALSE},   {"null", XPR_JSON_NULL},
                 {"NaN", XPR_JSON_NULL},      {"nan", XPR_JSON_NULL},      {"-nan", XPR_JSON_NULL},
                 {"Infinity", XPR_JSON_NULL}, {"-Infinity", XPR_JSON_NULL}, {"inf", XPR_JSON_NULL},
                 {"-inf", XPR_JSON_NULL}};
    const uint8_t *at = json->at;
    while (at < json->end && ((*at | 0x20) >= 'a') && (*at | 0x20) <= 'z') at++;
    if (at == json->at && *at == '-')
        for (at++; at < json->end && (*at | 0x20) >= 'a' && (*at | 0x20) <= 'z';) at++;
    if (at == json->end && !json->final && at - json->at < 10) return XPR_JSON_MORE;
    value->text = json->at;
    value->length = (size_t)(at - json->at);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strlen(words[i].word) != value->length || memcmp(words[i].word, value->text, value->length) != 0) continue;
        value->kind = words[i].kind;
        json->at = at;
        return XPR_JSON_OK;
    }
    return XPR_JSON_BROKEN;
}

static xpr_json_status read_value(xpr_json *json, xpr_json_value *value, int depth);

static xpr_json_status skip_container(xpr_json *json, int depth) {
    uint8_t close = *json->at == '{' ? '}' : ']';
    xpr_json_value ignored;
    xpr_json_status status;
    json->at++;
    for (bool first = true;; first = false) {
        if ((status = xpr_json_space(json)) != XPR_JSON_OK) return status;
        if (*json->at == close && first) break;
        if (close == '}' && (status = xpr_json_key(json, &ignored)) != XPR_JSON_OK) return status;
        if ((status = read_value(json, &ignored, depth + 1)) != XPR_JSON_OK) return status;
        if ((status = xpr_json_space(json)) != XPR_JSON_OK) return status;
        if (*json->at == close) break;
        if (*json->at != ',') return XPR_JSON_BROKEN;
        json->at++;
    }
    json->at++;
    return XPR_JSON_OK;
}

static xpr_json_status read_value(xpr_json *json, xpr_json_value *value, int depth) {
    xpr_json_status status = xpr_json_space(json);
    if (status != XPR_JSON_OK) return status;
    uint8_t c = *json->at;
    value->escaped = false;
    if (c == '"') return read_string(json, value);
    if (c == '{' || c == '[') {
        if (depth >= MAX_DEPTH) return XPR_JSON_BROKEN;
        value->kind = c == '{' ? XPR_JSON_OBJECT : XPR_JSON_ARRAY;
        value->text = json->at;
        status = skip_container(json, depth);
        value->length = (size_t)(json->at - value->text);
        return status;
    }
    if (is_digit(c) || c == '.') return read_number(json, value);
    if (c != '-') return read_word(json, value);
    if (json->end - json->at < 2) return json->final ? XPR_JSON_BROKEN : XPR_JSON_MORE;
    return is_digit(json->at[1]) || json->at[1] == '.' ? read_number(json, value) : read_word(json, value);
}

xpr_json_status xpr_json_read(xpr_json *json, xpr_json_value *value) { return read_value(json, value, 0); }

xpr_json_status xpr_json_key(xpr_json *json, xpr_json_value *key) {
    xpr_json_status status = xpr_json_space(json);
    if (status != XPR_JSON_OK) return status;
    if (*json->at != '"') return XPR_JSON_BROKEN;
    if ((status = read_string(json, key)) != XPR_JSON_OK) return status;
    if ((status = xpr_json_space(json)) != XPR_JSON_OK) return status;
    if (*json->at != ':') return XPR_JSON_BROKEN;
    json->at++;
    return xpr_json_space(json);
}

static size_t put_utf8(uint32_t code, uint8_t *to) {
    if (code < 0x80) {
        to[0] = (uint8_t)code;
        return 1;
    }
    if (code < 0x800) {
        to[0] = (uint8_t)(0xc0 | code >> 6);
        to[1] = (uint8_t)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        to[0] = (uint8_t)(0xe0 | code >> 12);
        to[1] = (uint8_t)(0x80 | (code >> 6 & 0x3f));
        to[2] = (uint8_t)(0x80 | (code & 0x3f));
        return 3;
    }
    to[0] = (uint8_t)(0xf0 | code >> 18);
    to[1] = (uint8_t)(0x80 | (code >> 12 & 0x3f));
    to[2] = (uint8_t)(0x80 | (code >> 6 & 0x3f));
    to[3] = (uint8_t)(0x80 | (code & 0x3f));
    return 4;
}

size_t xpr_json_unescape(const uint8_t *text, size_t length, uint8_t *to) {
    const uint8_t *at = text, *end = text + length;
    size_t wrote = 0;
    while (at < end) {
        if (*at != '\\' || end - at < 2) {
            to[wrote++] = *at++;
            continue;
        }
        int unit = at[1] == 'u' ? code_unit(at + 2, end) : -1;
        if (unit >= 0) {
            at += 6;
            uint32_t code = (uint32_t)unit;
            if (code >= 0xd800 && code < 0xe000) {
                int low = code < 0xdc00 && end - at >= 6 && at[0] == '\\' && at[1] == 'u' ? code_unit(at + 2, end) : -1;
                if (low >= 0xdc00 && low < 0xe000) {
                    code = 0x10000 + ((code - 0xd800) << 10) + ((uint32_t)low - 0xdc00);
                    at += 6;
                } else {
                    code = 0xfffd;
                }
            }
            wrote += put_utf8(code, to + wrote);
            continue;
        }
        static const char from[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
        const char *found = at[1] ? strchr(from, at[1]) : NULL;
        to[wrote++] = found ? (uint8_t)meant[found - from] : *at;
        at += found ? 2 : 1;
    }
    return wrote;
}

bool xpr_json_decimal(const uint8_t *text, size_t length, int shift, __int128 *value) {
    const uint8_t *at = text, *end = text + length;
    const __int128 limit = (__int128)1000000000000000 * 1000000000000000;
    bool negative = at < end && *at == '-';
    if (at < end && (*at == '-' || *at == '+')) at++;
    const uint8_t *digits = at, *point = NULL;
    long count = 0;
    for (; at < end && ((*at >= '0' && *at <= '9') || (*at == '.' && point == NULL)); at++) {
        if (*at == '.') point = at;
        else count++;
    }
    const uint8_t *digits_end = at;
    if (count == 0) return false;
    long exponent = shift - (point ? (long)(digits_end - point - 1) : 0);
    if (at < end) {
        if (*at != 'e' && *at != 'E') return false;
        at++;
        bool minus = at < end && *at == '-';
        if (at < end && (*at == '-' || *at == '+')) at++;
        if (at == end) return false;
        long stated = 0;
        for (; at < end; at++) {
            if (*at < '0' || *at > '9') return false;
            if (stated < 100000) stated = stated * 10 + (*at - '0');
        }
        exponent += minus ? -stated : stated;
    }
    /* Digits behind the last one that counts are dropped; the first of them says how to round. */
    long kept = exponent < 0 ? count + exponent : count;
    __int128 whole = 0;
    uint64_t head = 0; /* the first digits, in a register that is quick to multiply */
    int in_head = 0;
    bool up = false;
    for (at = digits; at < digits_end; at++) {
        if (*at == '.') continue;
        if (kept > 0 && in_head < 18) {
            head = head * 10 + (uint64_t)(*at - '0');
            in_head++;
        } else if (kept > 0) {
            whole = (in_head++ == 18 ? (__int128)head : whole) * 10 + (*at - '0');
            if (whole > limit) return false;
        } else if (kept == 0) {
            up = *at >= '5';
        }
        kept--;
    }
    if (in_head <= 18) whole = (__int128)head;
    if (up) whole++;
    for (; exponent > 0 && whole; exponent--) {
        whole *= 10;
        if (whole > limit) return false;
    }
    *value = negative ? -whole : whole;
    return true;
}
