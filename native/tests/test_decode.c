/* The decoders without Python.
 *
 *   test_decode                       claims about the wire reader, UTF-8 and the columns
 *   test_decode --mutate N SEED FILE...   each file whole, then N damaged copies of it; made to run under sanitizers
 */
#include <string.h>

#include "decode/json_text.h"
#include "decode/wire.h"
#include "fuzz_decode.c"

static uint64_t random_state;

static uint64_t next_random(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* Every copy is its own allocation of exact size, so that a read past its end is seen. */
static void one_input(const uint8_t *bytes, size_t length) {
    uint8_t *copy = malloc(length ? length : 1);
    REQUIRE(copy != NULL);
    memcpy(copy, bytes, length);
    LLVMFuzzerTestOneInput(copy, length);
    free(copy);
}

static void mutate(uint8_t *bytes, size_t length, long count) {
    one_input(bytes, length);
    uint8_t *damaged = malloc(length ? length : 1);
    REQUIRE(damaged != NULL);
    for (long i = 0; i < count && length; i++) {
        memcpy(damaged, bytes, length);
        size_t kept = next_random() % 3 ? length : (size_t)(next_random() % (length + 1));
        for (uint64_t flips = next_random() % 8; flips > 0 && kept; flips--) {
            uint64_t choice = next_random() % 4;
            size_t at = (size_t)(next_random() % kept);
            if (choice == 0) damaged[at] = (uint8_t)next_random();
            if (choice == 1) damaged[at] ^= (uint8_t)(1u << next_random() % 8);
            if (choice == 2) damaged[at] = 0xff;
            if (choice == 3) memset(damaged + at, 0x80 | (int)(next_random() & 0x7f), kept - at < 9 ? kept - at : 9);
        }
        one_input(damaged, kept);
    }
    free(damaged);
}

static int mutate_files(int count, char **arguments) {
    long rounds = strtol(arguments[0], NULL, 10);
    random_state = strtoull(arguments[1], NULL, 10) * 2 + 1;
    for (int i = 2; i < count; i++) {
        FILE *file = fopen(arguments[i], "rb");
        REQUIRE(file != NULL);
        REQUIRE(fseek(file, 0, SEEK_END) == 0);
        long length = ftell(file);
        REQUIRE(length >= 0 && fseek(file, 0, SEEK_SET) == 0);
        uint8_t *bytes = malloc((size_t)length + 1);
        REQUIRE(bytes != NULL && fread(bytes, 1, (size_t)length, file) == (size_t)length);
        fclose(file);
        mutate(bytes, (size_t)length, rounds);
        free(bytes);
    }
    printf("%d files, %ld copies each\n", count - 2, rounds);
    return 0;
}

static xpr_wire wire_over(const void *bytes, size_t length, xpr_failure *failure) {
    xpr_wire w = {bytes, (const uint8_t *)bytes + length, failure};
    return w;
}

static void test_varints(void) {
    static const struct {
        const char *bytes;
        size_t length;
        uint64_t value;
    } cases[] = {
        {"\x00", 1, 0},
        {"\x7f", 1, 127},
        {"\x80\x01", 2, 128},
        {"\x80\x80\x00", 3, 0}, /* longer than it need be */
        {"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 10, UINT64_MAX},
        {"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 10, UINT64_MAX}, /* bits beyond 64 are dropped */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        xpr_failure failure;
        uint64_t value = 1;
        xpr_wire w = wire_over(cases[i].bytes, cases[i].length, &failure);
        REQUIRE(xpr_wire_varint(&w, &value) && value == cases[i].value && w.at == w.end);
        for (size_t cut = 0; cut < cases[i].length; cut++) {
            w = wire_over(cases[i].bytes, cut, &failure);
            REQUIRE(!xpr_wire_varint(&w, &value));
        }
    }
}

static void test_utf8_repair(void) {
    static const struct {
        const char *bytes, *repaired;
    } cases[] = {
        {"plain", "plain"},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"12345678\xff", "12345678\xef\xbf\xbd"},
        {"\xe2\x82", "\xef\xbf\xbd"},                          /* one cut character, one replacement */
        {"\xe2\x82z", "\xef\xbf\xbdz"},
        {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},              /* overlong */
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* a surrogate */
        {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* above U+10FFFF */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint8_t *bytes = (const uint8_t *)cases[i].bytes;
        size_t length = strlen(cases[i].bytes), wanted = strlen(cases[i].repaired);
        char out[64];
        REQUIRE(xpr_utf8_valid(bytes, length) == (strcmp(cases[i].bytes, cases[i].repaired) == 0));
        REQUIRE(xpr_utf8_repaired_length(bytes, length) == wanted);
        xpr_utf8_repair(bytes, length, out);
        REQUIRE(memcmp(out, cases[i].repaired, wanted) == 0);
    }
}

static void test_dictionary_numbers_by_first_appearance(void) {
    xpr_dictionary dictionary = {0};
    char text[16];
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 1000; i++) {
            int length = snprintf(text, sizeof text, "name %d", i);
            REQUIRE(xpr_dictionary_number(&dictionary, (const uint8_t *)text, (size_t)length) == i);
        }
    REQUIRE(dictionary.strings.count == 1000 && dictionary.strings.repaired == 0);
    REQUIRE(xpr_dictionary_number(&dictionary, NULL, 0) == 1000);
    /* Two broken strings that are the same once repaired are one. */
    REQUIRE(xpr_dictionary_number(&dictionary, (const uint8_t *)"\xff", 1) == 1001);
    REQUIRE(xpr_dictionary_number(&dictionary, (const uint8_t *)"\xfe", 1) == 1001);
    REQUIRE(dictionary.strings.repaired == 2);
    xpr_dictionary_free(&dictionary);
}

static void test_id_map_finds_dense_and_sparse_ids(void) {
    xpr_id_map map;
    int32_t before;
    REQUIRE(xpr_id_map_init(&map, 4));
    REQUIRE(xpr_id_map_row(&map, 3) == -1 && xpr_id_map_row(&map, UINT64_MAX) == -1);
    for (int32_t i = 0; i < 500; i++)
        REQUIRE(xpr_id_map_set(&map, (uint64_t)i * UINT64_C(0x123456789), i, &before) && before == -1);
    for (int32_t i = 0; i < 500; i++) REQUIRE(xpr_id_map_row(&map, (uint64_t)i * UINT64_C(0x123456789)) == i);
    REQUIRE(xpr_id_map_set(&map, UINT64_C(0x123456789), 7, &before) && before == 1);
    REQUIRE(xpr_id_map_row(&map, UINT64_C(0x123456789)) == 7 && xpr_id_map_row(&map, UINT64_C(0x123456788)) == -1);
    xpr_id_map_free(&map);
}

static void test_claimed_lengths_allocate_nothing(void) {
    /* planes, with a length of 2^60 and of 2^63, and ten million of them claimed by a packed field of an HLO. */
    static const char claims[][16] = {"\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x10",
                                      "\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"};
    for (size_t i = 0; i < 2; i++) {
        xpr_xspace space;
        xpr_decode_error error;
        REQUIRE(xpr_xspace_decode((const uint8_t *)claims[i], 12, &space, &error) == -1);
        REQUIRE(error.offset == 1 && strcmp(error.place, "planes[0]") == 0);
        REQUIRE(strcmp(error.reason, "a length beyond the end of its message") == 0);
    }
    static const char packed[] = "\x0a\x0b\x1a\x09\x12\x07\xa2\x02\x80\xad\xe2\x04\x01";
    xpr_hlo hlo;
    xpr_decode_error error;
    REQUIRE(xpr_hlo_decode((const uint8_t *)packed, sizeof packed - 1, &hlo, &error) == -1);
    REQUIRE(strcmp(error.place, "computations[0].instructions[0]") == 0);
}

/* Shapes of shapes, one in the other: read to a depth, refused beyond it, whatever the stack would take. */
static void test_shapes_nest_to_a_depth(void) {
    for (int depth = 1; depth <= 200; depth++) {
        uint8_t bytes[2000];
        size_t at = sizeof bytes, length = 0;
        for (int i = 0; i < depth; i++) {
            /* element_type: TUPLE, then the shape so far as its part; the innermost is an f32 without dimensions. */
            size_t inner = length;
            if (i > 0) {
                at -= inner < 128 ? 2 : 3;
                bytes[at] = 0x22;
                if (inner < 128) bytes[at + 1] = (uint8_t)inner;
                else bytes[at + 1] = (uint8_t)(inner | 0x80), bytes[at + 2] = (uint8_t)(inner >> 7);
            }
            at -= 2;
            bytes[at] = 0x10;
            bytes[at + 1] = i == 0 ? 11 : 13;
            length = sizeof bytes - at;
        }
        static const uint8_t around[] = {0x1a, 0x12, 0x1a, 0x0a}; /* shape, instruction, computation, module */
        for (size_t i = 0; i < sizeof around; i++) {
            size_t inner = length;
            at -= inner < 128 ? 2 : 3;
            bytes[at] = around[i];
            if (inner < 128) bytes[at + 1] = (uint8_t)inner;
            else bytes[at + 1] = (uint8_t)(inner | 0x80), bytes[at + 2] = (uint8_t)(inner >> 7);
            length = sizeof bytes - at;
        }
        xpr_hlo hlo;
        xpr_decode_error error;
        int result = xpr_hlo_decode(bytes + at, length, &hlo, &error);
        REQUIRE(result == (depth <= 64 ? 0 : -1));
        if (result == 0) {
            REQUIRE(hlo.shapes.count == 1 && xpr_i32(&hlo.shapes, XPR_SHAPES_TYPE)[0] == 11);
            REQUIRE(xpr_i32(&hlo.shapes, XPR_SHAPES_ELEMENT)[0] == (depth > 1 ? 0 : -1));
            xpr_hlo_free(&hlo);
        } else {
            REQUIRE(strcmp(error.reason, "shapes nested too deep") == 0);
        }
    }
}

static void test_decimals_are_exact(void) {
    static const struct {
        const char *text;
        int shift;
        int64_t value;
    } cases[] = {
        {"4458676522690.655", 6, INT64_C(4458676522690655000)},
        {"0.6", 6, 600000},
        {".5", 0, 1}, /* halves away from 0 */
        {"-0.5", 0, -1},
        {"0.4999999999999999999999", 0, 0},
        {"1.6E3", 0, 1600},
        {"16e-1", 0, 2},
        {"0.0000001234567", 6, 0},
        {"0.0000005", 6, 1},
        {"9223372036854775807", 0, INT64_MAX},
        {"000000000000000000000000000000000000000012", 0, 12},
        {"0e99999999999", 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        __int128 value = 0;
        REQUIRE(xpr_json_decimal((const uint8_t *)cases[i].text, strlen(cases[i].text), cases[i].shift, &value));
        REQUIRE(value == cases[i].value);
    }
    static const char *const none[] = {"", "-", ".", "1.2.3", "1e", "1e+", "0x1", "1e31", "nan"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        __int128 value;
        REQUIRE(!xpr_json_decimal((const uint8_t *)none[i], strlen(none[i]), 0, &value));
    }
}

static void test_escapes(void) {
    static const struct {
        const char *text, *plain;
    } cases[] = {
        {"a\\n\"\\/\n", "a\n\"/\n"},
        {"a\\\"b", "a\"b"},
        {"\\u00e9\\u20ac\\ud83d\\ude00", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"\\ud83dx\\ude00", "\xef\xbf\xbdx\xef\xbf\xbd"}, /* halves of pairs */
        {"C:\\Users\\q\\u12", "C:\\Users\\q\\u12"}, /* no escapes: kept */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t out[64];
        size_t length = xpr_json_unescape((const uint8_t *)cases[i].text, strlen(cases[i].text), out);
        REQUIRE(length == strlen(cases[i].plain) && memcmp(out, cases[i].plain, length) == 0);
    }
}

/* Every cut of a trace gives a beginning of its events, and says that it is one. */
static void test_every_cut_of_a_trace_is_read_to_its_last_event(void) {
    static const char text[] = "\xef\xbb\xbf{\"a\": [1, {\"b\": 2}], \"traceEvents\": [\n"
                               "{\"ph\": \"X\", \"name\": \"k\", \"ts\": 1.5, \"dur\": 2, \"args\": {\"Seq\": 3}},\n"
                               "{\"ph\": \"i\", \"name\": \"m\", \"ts\": 9}], \"z\": 0}";
    size_t ends[2] = {(size_t)(strstr(text, "}},\n") + 2 - text), (size_t)(strstr(text, "9}") + 2 - text)};
    for (size_t cut = 4; cut < sizeof text; cut++) {
        xpr_chrome chrome;
        size_t length = cut < sizeof text - 1 ? cut : sizeof text - 1;
        REQUIRE(scan_chrome((const uint8_t *)text, length, 1, &chrome) == 0);
        REQUIRE(chrome.events.count == (size_t)(length >= ends[0]) + (length >= ends[1]));
        REQUIRE(chrome.truncated == (length < sizeof text - 1));
        if (chrome.events.count) REQUIRE(xpr_i32(&chrome.events, XPR_CHROME_PS)[0] == 500000);
        xpr_chrome_free(&chrome);
    }
}

int main(int count, char **arguments) {
    if (count > 4 && strcmp(arguments[1], "--mutate") == 0) return mutate_files(count - 2, arguments + 2);
    test_varints();
    test_utf8_repair();
    test_dictionary_numbers_by_first_appearance();
    test_id_map_finds_dense_and_sparse_ids();
    test_claimed_lengths_allocate_nothing();
    test_shapes_nest_to_a_depth();
    test_decimals_are_exact();
    test_escapes();
    test_every_cut_of_a_trace_is_read_to_its_last_event();
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    printf("ok\n");
    return 0;
}
