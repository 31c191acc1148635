/* A PJRT plugin with nothing but a profiler: the true layouts of the C API, written down a second time, and what can go wrong.
 *
 * FAKE_PJRT in the environment, words between spaces, read at every call:
 *   no_extension   empty   old (a table without collect_data)   new (structures longer than known)   no_version
 *   fail=create|start|stop|collect    gives an error object      null (create gives no profiler)
 *   own            collect copies into the caller's buffer (else it lends its own)
 *   grows          and wants more room at the second call        nul (one NUL is all there is)
 * FAKE_PJRT_XSPACE: a file with the bytes of the XSpace. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct base {
    size_t struct_size;
    int type;
    struct base *next;
};
struct version {
    size_t struct_size;
    void *extension_start;
    int major_version, minor_version;
};
struct table {
    size_t struct_size;
    struct base *extension_start;
    struct version pjrt_api_version;
    void *error_functions[3];
};

struct failure {
    char text[64];
};
struct profiler {
    int running, collected;
    uint8_t *bytes;
    size_t size;
};

struct error_destroy_args {
    size_t struct_size;
    void *priv;
    struct failure *error;
};
struct error_message_args {
    size_t struct_size;
    void *priv;
    const struct failure *error;
    const char *message;
    size_t message_size;
};
struct error_code_args {
    size_t struct_size;
    void *priv;
    const struct failure *error;
    int code;
};
struct create_args {
    size_t struct_size;
    const char *options;
    size_t options_size;
    struct profiler *profiler;
};
struct profiler_args {
    size_t struct_size;
    struct profiler *profiler;
};
struct collect_args {
    size_t struct_size;
    struct profiler *profiler;
    uint8_t *buffer;
    size_t buffer_size_in_bytes;
};

static int says(const char *what) {
    const char *script = getenv("FAKE_PJRT");
    size_t length = strlen(what);
    for (const char *at = script; at && (at = strstr(at, what)); at++)
        if ((at == script || at[-1] == ' ') && (at[length] == 0 || at[length] == ' ')) return 1;
    return 0;
}

static int alive; /* errors and profilers that nobody destroyed */
__attribute__((visibility("default"))) int fake_pjrt_alive(void) { return alive; }

static struct failure *failure(const char *where) {
    char word[32];
    snprintf(word, sizeof word, "fail=%s", where);
    if (!says(word)) return NULL;
    struct failure *f = malloc(sizeof *f);
    snprintf(f->text, sizeof f->text, "planted failure of %s!!", where);
    alive++;
    return f;
}

static void error_destroy(struct error_destroy_args *a) {
    if (a->struct_size < sizeof *a) abort();
    free(a->error);
    alive--;
}
static void error_message(struct error_message_args *a) {
    if (a->struct_size < sizeof *a) abort();
    a->message = a->error->text;
    a->message_size = strlen(a->error->text) - 2; /* it is not the text's end that counts */
}
static struct failure *error_get_code(struct error_code_args *a) {
    a->code = 13;
    return NULL;
}

static struct failure *create(struct create_args *a) {
    if (a->struct_size < sizeof *a) abort();
    static const uint8_t wanted[] = {0x28, 1, 0x10, 2, 0x18, 1, 0x38, 1};
    if (a->options_size != sizeof wanted || memcmp(a->options, wanted, sizeof wanted) != 0) abort();
    struct failure *f = failure("create");
    if (f || says("null")) return f;
    a->profiler = calloc(1, sizeof *a->profiler);
    alive++;
    return NULL;
}
static struct failure *destroy(struct profiler_args *a) {
    free(a->profiler->bytes);
    free(a->profiler);
    alive--;
    return NULL;
}
static struct failure *start(struct profiler_args *a) {
    a->profiler->running = 1;
    return failure("start");
}
static struct failure *stop(struct profiler_args *a) {
    if (!a->profiler->running) abort();
    a->profiler->running = 0;
    return failure("stop");
}

static void read_xspace(struct profiler *p, size_t more) {
    const char *path = getenv("FAKE_PJRT_XSPACE");
    FILE *file = path && !says("nul") ? fopen(path, "rb") : NULL;
    free(p->bytes);
    p->bytes = calloc(1, (1 << 20) + more + 1);
    p->size = file ? fread(p->bytes, 1, 1 << 20, file) : 0;
    if (file) fclose(file);
    p->size++; /* the NUL */
    /* An unknown field (tag 15, two bytes each) is still an XSpace. */
    for (size_t i = 0; i < more; i += 2) {
        p->bytes[p->size - 1] = 15 << 3;
        p->bytes[p->size] = 1;
        p->size += 2;
    }
}

static struct failure *collect_data(struct collect_args *a) {
    struct profiler *p = a->profiler;
    struct failure *f = failure("collect");
    if (f) return f;
    int grown = says("grows") && p->collected == 1;
    if (p->collected < 2) read_xspace(p, grown ? 100 : 0);
    p->collected++;
    size_t room = a->buffer_size_in_bytes;
    a->buffer_size_in_bytes = p->size;
    if (!says("own"))
        a->buffer = p->bytes;
    else if (a->buffer && room >= p->size)
        memcpy(a->buffer, p->bytes, p->size);
    return NULL;
}

static struct {
    size_t struct_size;
    void *priv;
    void (*error_destroy)(struct error_destroy_args *);
    void (*error_message)(struct error_message_args *);
    struct failure *(*error_get_code)(struct error_code_args *);
    struct failure *(*create)(struct create_args *);
    struct failure *(*destroy)(struct profiler_args *);
    struct failure *(*start)(struct profiler_args *);
    struct failure *(*stop)(struct profiler_args *);
    struct failure *(*collect_data)(struct collect_args *);
    void *later[4];
} profiler_api = {0, NULL, error_destroy, error_message, error_get_code, create, destroy, start, stop, collect_data, {0}};

static struct {
    struct base base;
    void *profiler_api;
    int64_t traceme_context_id;
} profiler = {{0, 1, NULL}, &profiler_api, 0};

static struct base other = {sizeof other, 5, &profiler.base};
static struct table table;

__attribute__((visibility("default"))) const struct table *GetPjrtApi(void) {
    size_t known = sizeof profiler_api - sizeof profiler_api.later;
    profiler_api.struct_size = says("old") ? known - sizeof(void *) : says("new") ? sizeof profiler_api : known;
    profiler.base.struct_size = sizeof profiler + (says("new") ? 64 : 0);
    profiler.profiler_api = says("empty") ? NULL : &profiler_api;
    other.next = says("no_extension") ? NULL : &profiler.base;
    table.struct_size = says("no_version") ? 2 * sizeof(void *) : sizeof table + (says("new") ? 4096 : 0);
    table.extension_start = &other;
    table.pjrt_api_version = (struct version){sizeof(struct version), NULL, 0, 99};
    return &table;
}
