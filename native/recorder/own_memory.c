#define _GNU_SOURCE
#include "recorder/own_memory.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

int xpr_memory_open(struct xpr_memory *memory) {
    memory->bytes = NULL;
    memory->file = memfd_create("xprof_py", MFD_CLOEXEC);
    if (memory->file < 0) return errno;
    void *bytes = MAP_FAILED;
    int error = ftruncate(memory->file, XPR_MEMORY_ROOM) != 0 ? errno : 0;
    if (!error) {
        bytes = mmap(NULL, XPR_MEMORY_ROOM, PROT_READ, MAP_SHARED | MAP_POPULATE, memory->file, 0);
        if (bytes == MAP_FAILED) error = errno;
    }
    if (error)
        close(memory->file);
    else
        memory->bytes = bytes;
    return error;
}

void xpr_memory_close(struct xpr_memory *memory) {
    if (!memory->bytes) return;
    munmap((void *)memory->bytes, XPR_MEMORY_ROOM);
    close(memory->file);
    memory->bytes = NULL;
}

bool xpr_memory_read(struct xpr_memory *memory, const struct xpr_place_in_memory *places, size_t count) {
    struct iovec parts[XPR_MEMORY_PLACES];
    size_t wanted = 0;
    if (count > XPR_MEMORY_PLACES) return false;
    for (size_t i = 0; i < count; i++) {
        if (places[i].bytes > XPR_MEMORY_ROOM - wanted) return false;
        parts[i] = (struct iovec){(void *)places[i].address, places[i].bytes};
        wanted += places[i].bytes;
    }
    /* The bare call: what lies there may be gone, which the kernel says and the address sanitizer would take for a mistake. */
    return syscall(SYS_pwritev, memory->file, parts, (long)count, 0L, 0L) == (long)wanted;
}
