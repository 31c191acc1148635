#define _GNU_SOURCE
#include "device/pjrt.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "decode/wire.h"

/* --- the C API, as far as it is used: every structure begins with its size, and grows at its end only ----------------- */

struct extension {
    size_t struct_size;
    int type;
    struct extension *next;
};

struct api {
    size_t struct_size;
    struct extension *extensions;
    struct {
        size_t struct_size;
        void *extensions;
        int major, minor;
    } version;
};

enum { PROFILER_EXTENSION = 1, MOST_EXTENSIONS = 256 };

struct error_args { /* of destroy, which has none of the rest; of message and get_code */
    size_t struct_size;
    void *priv;
    void *error;
    const char *message;
    size_t message_bytes;
};

struct create_args {
    size_t struct_size;
    const char *options;
    size_t options_bytes;
    void *profiler; /* out */
};

struct session_args { /* destroy, start, stop */
    size_t struct_size;
    void *profiler;
};

struct collect_args {
    size_t struct_size;
    void *profiler;
    uint8_t *buffer; /* NULL: asks for the size; many then lend their own buffer */
    size_t bytes;
};

struct profiler_api {
    size_t struct_size;
    void *priv;
    void (*error_destroy)(struct error_args *);
    void (*error_message)(struct error_args *);
    void *(*error_get_code)(void *);
    void *(*create)(struct create_args *);
    void *(*destroy)(struct session_args *);
    void *(*start)(struct session_args *);
    void *(*stop)(struct session_args *);
    void *(*collect)(struct collect_args *);
};

struct profiler_extension {
    struct extension base;
    const struct profiler_api *api;
};

/* --- finding plugins ------------------------------------------------------------------------------------------------ */

enum { MOST_LIBRARIES = 4096 };

struct libraries {
    char **names; /* NULL: only to be asked how much changed */
    unsigned count;
    unsigned long long changes; /* how often a library was loaded or unloaded so far */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of everything below */
static struct {
    struct xpr_pjrt_plugin plugins[XPR_MAX_PLUGINS];
    unsigned count;
    unsigned long long changes;
} found;

/* Names alone: within dl_iterate_phdr nothing may be opened. */
static int note_library(struct dl_phdr_info *info, size_t size, void *data) {
    struct libraries *l = data;
    if (size >= offsetof(struct dl_phdr_info, dlpi_subs) + sizeof info->dlpi_subs) l->changes = info->dlpi_adds + info->dlpi_subs;
    if (!l->names) return 1;
    if (!info->dlpi_name || info->dlpi_name[0] != '/' || l->count == MOST_LIBRARIES) return 0;
    char *name = strdup(info->dlpi_name);
    if (name) l->names[l->count++] = name;
    return 0;
}

static void read_extensions(struct xpr_pjrt_plugin *p) {
    const struct api *api = p->api;
    snprintf(p->why, sizeof p->why, "it has no profiler extension");
    if (api->struct_size < offsetof(struct api, version)) return;
    const struct extension *e = api->extensions;
    for (int i = 0; e && i < MOST_EXTENSIONS; i++, e = e->next) {
        if (e->type != PROFILER_EXTENSION) continue;
        const struct profiler_api *table = NULL;
        /* Some give the size of the base alone although the rest is there: what it points to has its own size. */
        if (e->struct_size >= sizeof(struct extension)) table = ((const struct profiler_extension *)(const void *)e)->api;
        if (!table) {
            snprintf(p->why, sizeof p->why, "its profiler extension is empty");
        } else if (table->struct_size < sizeof *table || !table->create || !table->destroy || !table->start ||
                   !table->stop || !table->collect || !table->error_message || !table->error_destroy) {
            snprintf(p->why, sizeof p->why, "its profiler lacks functions: a table of %zu bytes", table->struct_size);
        } else {
            p->profiler = table;
            p->why[0] = 0;
        }
        return;
    }
}

static void look_into(const char *path) {
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (!library) return;
    void *symbol = dlsym(library, "GetPjrtApi");
    Dl_info where;
    const struct api *(*get)(void);
    memcpy(&get, &symbol, sizeof get);
    /* A library that only depends on a plugin shows the plugin's function too. */
    struct link_map *own = NULL;
    bool is_own = symbol && dladdr(symbol, &where) && dlinfo(library, RTLD_DI_LINKMAP, &own) == 0 && own &&
                  where.dli_fbase == (void *)own->l_addr;
    const struct api *api = is_own && found.count < XPR_MAX_PLUGINS ? get() : NULL;
    if (api) {
        struct xpr_pjrt_plugin *p = &found.plugins[found.count++];
        memset(p, 0, sizeof *p);
        snprintf(p->path, sizeof p->path, "%s", path);
        p->api = api;
        bool says = api->struct_size >= sizeof *api;
        p->major = says ? api->version.major : -1;
        p->minor = says ? api->version.minor : -1;
        read_extensions(p);
    }
    dlclose(library);
}

/* In the child nobody is inside a plugin, and the parent's session is not its own. */
static void after_fork_child(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    found.changes = 0;
}

static void install_once(void) { pthread_atfork(NULL, NULL, after_fork_child); }

unsigned xpr_pjrt_find(struct xpr_pjrt_plugin *plugins, unsigned most) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_once);
    pthread_mutex_lock(&lock);
    struct libraries l = {0};
    dl_iterate_phdr(note_library, &l);
    if (!l.changes || l.changes != found.changes) l.names = calloc(MOST_LIBRARIES, sizeof *l.names);
    if (l.names) {
        dl_iterate_phdr(note_library, &l);
        found.count = 0;
        for (unsigned i = 0; i < l.count; i++) {
            look_into(l.names[i]);
            free(l.names[i]);
        }
        found.changes = l.changes;
        free(l.names);
    }
    unsigned count = found.count < most || !plugins ? found.count : most;
    if (plugins && count) memcpy(plugins, found.plugins, count * sizeof *plugins);
    pthread_mutex_unlock(&lock);
    return count;
}

/* --- the session ------------------------------------------------------------------------------------------------------ */

static struct {
    const struct profiler_api *api;
    void *profiler;
    pid_t pid;
} session;

/* Takes over an error of the plugin, and says it. True: there was none. */
static bool good(const struct profiler_api *api, const char *what, void *error, char *text) {
    if (!error) return true;
    struct error_args said = {.struct_size = sizeof said, .error = error};
    api->error_message(&said);
    int bytes = said.message && said.message_bytes < 4096 ? (int)said.message_bytes : 0;
    snprintf(text, XPR_PJRT_ERROR_BYTES, "%s: %.*s", what, bytes, bytes ? said.message : "");
    struct error_args gone = {.struct_size = offsetof(struct error_args, message), .error = error};
    api->error_destroy(&gone);
    return false;
}

static void destroy(const struct profiler_api *api, void *profiler) {
    struct session_args args = {sizeof args, profiler};
    char ignored[XPR_PJRT_ERROR_BYTES];
    good(api, "destroy", api->destroy(&args), ignored);
}

bool xpr_pjrt_start(const struct xpr_pjrt_plugin *plugin, const void *options, size_t bytes, char *error) {
    const struct profiler_api *api = plugin->profiler;
    error[0] = 0;
    if (!api) {
        snprintf(error, XPR_PJRT_ERROR_BYTES, "%s", plugin->why);
        return false;
    }
    pthread_mutex_lock(&lock);
    bool ok = session.pid != getpid();
    if (!ok) snprintf(error, XPR_PJRT_ERROR_BYTES, "a session is running");
    struct create_args create = {sizeof create, options, bytes, NULL};
    ok = ok && good(api, "create", api->create(&create), error);
    if (ok && !create.profiler) {
        snprintf(error, XPR_PJRT_ERROR_BYTES, "create: gave no profiler");
        ok = false;
    }
    if (ok) {
        struct session_args args = {sizeof args, create.profiler};
        ok = good(api, "start", api->start(&args), error);
        if (!ok) destroy(api, create.profiler);
    }
    if (ok) {
        session.api = api;
        session.profiler = create.profiler;
        session.pid = getpid();
    }
    pthread_mutex_unlock(&lock);
    return ok;
}

/* Plugins end their bytes with a NUL that is no part of the message. */
static size_t without_nul(const uint8_t *data, size_t bytes) {
    if (!bytes || data[bytes - 1] != 0) return bytes;
    xpr_failure failure;
    xpr_wire w = {data, data + bytes, &failure};
    uint32_t tag;
    while (w.at != w.end) {
        bool is_last = w.at == w.end - 1;
        if (!xpr_wire_tag(&w, &tag) || !xpr_wire_skip(&w, tag)) return is_last ? bytes - 1 : bytes;
    }
    return bytes;
}

static bool collect(const struct profiler_api *api, void *profiler, uint8_t **xspace, size_t *bytes, char *error) {
    struct collect_args args = {sizeof args, profiler, NULL, 0};
    if (!good(api, "collect_data", api->collect(&args), error)) return false;
    for (int attempt = 0; args.bytes; attempt++) {
        size_t room = args.bytes;
        uint8_t *copy = malloc(room);
        if (!copy || attempt == 8) {
            free(copy);
            snprintf(error, XPR_PJRT_ERROR_BYTES, copy ? "collect_data: its size changes" : "no memory for %zu bytes", room);
            return false;
        }
        if (args.buffer) {
            memcpy(copy, args.buffer, room);
        } else {
            args.buffer = copy;
            if (!good(api, "collect_data", api->collect(&args), error)) {
                free(copy);
                return false;
            }
            if (args.bytes > room) {
                free(copy);
                args.buffer = NULL;
                continue;
            }
        }
        *bytes = without_nul(copy, args.bytes);
        *xspace = copy;
        break;
    }
    if (*xspace && !*bytes) {
        free(*xspace);
        *xspace = NULL;
    }
    return true;
}

bool xpr_pjrt_stop(uint8_t **xspace, size_t *bytes, char *error) {
    *xspace = NULL;
    *bytes = 0;
    error[0] = 0;
    pthread_mutex_lock(&lock);
    bool ok = session.profiler && session.pid == getpid();
    if (ok) {
        struct session_args args = {sizeof args, session.profiler};
        ok = good(session.api, "stop", session.api->stop(&args), error);
        ok = ok && collect(session.api, session.profiler, xspace, bytes, error);
        destroy(session.api, session.profiler);
    } else {
        snprintf(error, XPR_PJRT_ERROR_BYTES, "no session is running");
    }
    memset(&session, 0, sizeof session);
    pthread_mutex_unlock(&lock);
    return ok;
}
