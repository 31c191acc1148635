/* Interning: the same text has the same id, the limits hold, and what is past them is counted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "recorder/strings.h"
#include "tests/check.h"

static uint32_t name_id(const char *text) { return xpr_intern(text, strlen(text), XPR_USE_NAME, NULL); }

static void same_text_same_id(void) {
    CHECK(xpr_strings_reset() == 0);
    bool is_new;
    uint32_t id = xpr_intern("forward", 7, XPR_USE_NAME, &is_new);
    CHECK(is_new && id >= 2);
    CHECK(xpr_intern("forward", 7, XPR_USE_NAME, &is_new) == id && !is_new);
    CHECK(xpr_intern("forward", 7, XPR_USE_TEXT, &is_new) == id && !is_new);
    CHECK(name_id("forwards") != id && name_id("") != id);
    CHECK(name_id("") == name_id(""));
    CHECK(xpr_intern("a\0b", 3, XPR_USE_NAME, NULL) != xpr_intern("a\0c", 3, XPR_USE_NAME, NULL));
    CHECK(name_id("(more names)") == XPR_MORE_NAMES && name_id("(more texts)") == XPR_MORE_TEXTS);
}

static void long_texts_end_at_a_character(void) {
    CHECK(xpr_strings_reset() == 0);
    struct xpr_bytes strings, schemas;
    xpr_strings_take(&strings, &schemas);
    xpr_bytes_free(&strings);
    xpr_bytes_free(&schemas);
    char text[XPR_MAX_STRING_BYTES + 8];
    memset(text, 'x', sizeof text);
    memcpy(text + XPR_MAX_STRING_BYTES - 1, "\xE2\x82\xAC", 3); /* the euro sign lies across the limit */
    xpr_intern(text, sizeof text, XPR_USE_TEXT, NULL);
    xpr_strings_take(&strings, &schemas);
    const struct xpr_string_record *record = (const void *)strings.data;
    CHECK(record->bytes == XPR_MAX_STRING_BYTES - 1);
    CHECK(strings.used == sizeof *record + XPR_MAX_STRING_BYTES);
    xpr_bytes_free(&strings);
    xpr_bytes_free(&schemas);
}

static void limits_hold_and_are_counted(void) {
    CHECK(xpr_strings_reset() == 0);
    char text[32];
    for (int i = 0; i < XPR_MAX_NAMES; i++) {
        snprintf(text, sizeof text, "name %d", i);
        CHECK(name_id(text) > XPR_MORE_TEXTS);
    }
    CHECK(name_id("one more") == XPR_MORE_NAMES && name_id("and another") == XPR_MORE_NAMES);
    CHECK(name_id("name 7") > XPR_MORE_TEXTS);
    CHECK(xpr_intern("a text", 6, XPR_USE_TEXT, NULL) > XPR_MORE_TEXTS); /* texts have room of their own */
    for (int i = 0; i < XPR_MAX_TEXTS + 4; i++) {
        snprintf(text, sizeof text, "text %d", i);
        xpr_intern(text, strlen(text), XPR_USE_TEXT, NULL);
    }
    struct xpr_string_counts counts = xpr_strings_counts();
    CHECK(counts.more_names == 2 && counts.more_texts == 5);
    CHECK(counts.strings == 2 + XPR_MAX_NAMES + XPR_MAX_TEXTS);
}

static void schemas_are_keys_and_kinds(void) {
    CHECK(xpr_strings_reset() == 0);
    uint32_t keys[2] = {name_id("layer"), name_id("loss")};
    uint32_t id = xpr_intern_schema(keys, 2, 0x31);
    CHECK(id && xpr_intern_schema(keys, 2, 0x31) == id);
    CHECK(xpr_intern_schema(keys, 2, 0x33) != id && xpr_intern_schema(keys, 1, 0x1) != id);
    struct xpr_bytes strings, schemas;
    xpr_strings_take(&strings, &schemas);
    const struct xpr_schema_record *record = (const void *)schemas.data;
    CHECK(record->id == id && record->count == 2 && record->kinds == 0x31);
    CHECK(memcmp(record + 1, keys, sizeof keys) == 0);
    CHECK(schemas.used == 3 * (sizeof *record + 8));
    xpr_bytes_free(&strings);
    xpr_bytes_free(&schemas);
    for (uint32_t i = 3; i < XPR_MAX_SCHEMAS - 1; i++) { /* three are there, one place stays free */
        uint32_t key = i;
        CHECK(xpr_intern_schema(&key, 1, 1) != 0);
    }
    uint32_t key = 1u << 30;
    CHECK(xpr_intern_schema(&key, 1, 1) != 0 && xpr_intern_schema(&key, 1, 2) == 0);
    CHECK(xpr_strings_counts().dropped_args == 1);
}

static void a_cleared_table_is_harmless(void) {
    xpr_strings_clear();
    CHECK(name_id("late") == XPR_MORE_NAMES);
    uint32_t key = 5;
    CHECK(xpr_intern_schema(&key, 1, 1) == 0);
    xpr_strings_clear();
}

int main(void) {
    same_text_same_id();
    long_texts_end_at_a_character();
    limits_hold_and_are_counted();
    schemas_are_keys_and_kinds();
    a_cleared_table_is_harmless();
    return 0;
}
