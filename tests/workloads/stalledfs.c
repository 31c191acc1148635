/* LD_PRELOAD shim: writes to files named in STALL_SUFFIX (".xpr", say) never return once a file STALL_WHEN exists: what a
 * network file system does whose server is gone. What is written before goes through.
 * Build: cc -O2 -shared -fPIC -o stalledfs.so stalledfs.c -ldl */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static void stall(int fd) {
    const char *suffix = getenv("STALL_SUFFIX"), *when = getenv("STALL_WHEN");
    char link[64], path[4096];
    if (!suffix || !when || access(when, F_OK) != 0) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    size_t end = strlen(suffix);
    if (length < (ssize_t)end) return;
    path[length] = 0;
    if (strcmp(path + length - end, suffix) != 0) return;
    if (write(2, "stalled\n", 8) < 0) return;
    for (;;) pause();
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    ssize_t (*real)(int, const struct iovec *, int, off_t) = (ssize_t(*)(int, const struct iovec *, int, off_t))dlsym(RTLD_NEXT, "pwritev");
    stall(fd);
    return real(fd, parts, count, offset);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t offset) { return pwritev(fd, parts, count, offset); }
