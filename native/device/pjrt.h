/* XLA's profile from the PJRT plugin that the program has loaded, whatever framework loaded it: the profiler extension of the
 * PJRT C API, with own declarations of the few structures of it that are used (pjrt.c).
 *
 * One session per process, since a plugin has one tracer. Ownership: what stop returns is the caller's. Threads: calls lock,
 * the plugin's own work included, so that two never meet in a plugin. In the child of a fork there is no session. */
#ifndef XPROF_PY_DEVICE_PJRT_H
#define XPROF_PY_DEVICE_PJRT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { XPR_PLUGIN_PATH_BYTES = 4096, XPR_MAX_PLUGINS = 16, XPR_PJRT_ERROR_BYTES = 512 };

struct xpr_pjrt_plugin {
    char path[XPR_PLUGIN_PATH_BYTES];
    const void *api;             /* PJRT_Api */
    int32_t major, minor;        /* of the API; -1: its table is too short to say */
    const void *profiler;        /* PLUGIN_Profiler_Api; NULL: none that can be used */
    char why[96];                /* then: why */
};

/* The plugins among the libraries that are loaded; nothing is loaded by this. Costs about a microsecond where no library was
 * loaded since the last call. Returns how many there are, at most `most`; with plugins NULL all are counted. */
unsigned xpr_pjrt_find(struct xpr_pjrt_plugin *plugins, unsigned most);

/* Starts a session with serialized tensorflow.ProfileOptions. False: `error` (XPR_PJRT_ERROR_BYTES) says why. */
bool xpr_pjrt_start(const struct xpr_pjrt_plugin *plugin, const void *options, size_t bytes, char *error);

/* Ends the session. *xspace: its bytes, to be freed; NULL with *bytes 0 for an empty one. False: `error` says why; the session
 * is over all the same. */
bool xpr_pjrt_stop(uint8_t **xspace, size_t *bytes, char *error);

#endif
