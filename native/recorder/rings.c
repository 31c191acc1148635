#define _GNU_SOURCE
#include "recorder/rings.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "recorder/clock.h"
#include "recorder/recorder.h"
#include "recorder/shard_writer.h"

enum { FIRST_RING = XPR_RINGS_HEADER_BYTES + XPR_JOURNAL_BYTES };

static struct {
    int fd; /* 0: no file */
    uint64_t device, inode;
    char *path;
    uint64_t bytes, stride; /* of the file; of one ring */
    struct xpr_rings_header *header;
    struct xpr_ring_header **idle;
    unsigned idle_count, idle_room;
    uint64_t journal_mark;
    int error; /* why no more rings can be had */
} rings;

/* Where an allocated block is kept for its file whatever happens. Elsewhere (copy-on-write, networks) a store to a mapped
 * page may find no room, and that is a SIGBUS. */
static bool keeps_what_it_allocates(int fd) {
    struct statfs system;
    if (fstatfs(fd, &system) != 0) return false;
    switch ((uint32_t)system.f_type) {
    case 0xEF53:     /* ext2, ext3, ext4 */
    case 0x58465342: /* xfs */
    case 0x01021994: /* tmpfs */
    case 0x794C7630: /* overlayfs: one of those below, as a rule */
        return true;
    default:
        return false;
    }
}

static bool is_ours(void) {
    struct stat state;
    return rings.fd && fstat(rings.fd, &state) == 0 && (uint64_t)state.st_dev == rings.device &&
           (uint64_t)state.st_ino == rings.inode;
}

static uint64_t process_start(void) {
    char text[1024];
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0) close(fd);
    if (got <= 0) return 0;
    text[got] = 0;
    char *at = strrchr(text, ')'); /* the name before it may hold anything; field 3 follows */
    for (int field = 3; at && field <= 22; field++) at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

static int grow(uint64_t bytes) {
    if (fallocate(rings.fd, 0, (off_t)rings.bytes, (off_t)bytes) != 0) return errno;
    rings.bytes += bytes;
    return 0;
}

static void release(void) {
    if (rings.header) munmap(rings.header, FIRST_RING);
    for (unsigned i = 0; i < rings.idle_count; i++) munmap(rings.idle[i], rings.stride);
    if (is_ours()) close(rings.fd);
    free(rings.idle);
    free(rings.path);
    memset(&rings, 0, sizeof rings);
}

int xpr_rings_open(const char *shard_path, uint64_t ring_bytes, uint64_t shard_id) {
    release();
    struct xpr_clock_record clock = xpr_clock_sample();
    if (asprintf(&rings.path, "%s.rings", shard_path) < 0) {
        rings.path = NULL;
        return rings.error = ENOMEM;
    }
    /* Never the file of another process: cutting that one off would kill it. */
    unlink(rings.path);
    int fd = xpr_open_above_standard(rings.path, O_RDWR | O_CREAT | O_EXCL);
    if (fd < 0) return rings.error = errno;
    struct stat state;
    int error = fstat(fd, &state) == 0 ? 0 : errno;
    rings.fd = fd;
    rings.device = (uint64_t)state.st_dev;
    rings.inode = (uint64_t)state.st_ino;
    rings.stride = xpr_ring_stride(ring_bytes);
    if (!error && !keeps_what_it_allocates(fd)) error = EOPNOTSUPP;
    if (!error) error = grow(FIRST_RING);
    void *place = error ? MAP_FAILED : mmap(NULL, FIRST_RING, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (!error && place == MAP_FAILED) error = errno;
    if (error) {
        unlink(rings.path);
        release();
        return rings.error = error;
    }
    rings.header = place;
    *rings.header = (struct xpr_rings_header){
        .version = XPR_RINGS_VERSION,
        .header_bytes = XPR_RINGS_HEADER_BYTES,
        .pid = (uint64_t)getpid(),
        .process_start = process_start(),
        .shard_id = shard_id,
        .journal_bytes = XPR_JOURNAL_BYTES,
        .ring_bytes = ring_bytes,
        .ring_stride = rings.stride,
        .clock = clock,
    };
    xpr_read_boot_id(rings.header->boot_id, sizeof rings.header->boot_id);
    memcpy(rings.header->magic, XPR_RINGS_MAGIC, sizeof rings.header->magic);
    return 0;
}

static struct xpr_ring_header *new_ring(int *error) {
    if (rings.bytes + rings.stride > XPR_MAX_RINGS_BYTES)
        *error = EDQUOT;
    else if (!is_ours())
        *error = EBADF;
    else
        *error = grow(rings.stride);
    if (*error) return NULL;
    off_t at = (off_t)(rings.bytes - rings.stride);
    void *place = mmap(NULL, rings.stride, PROT_READ | PROT_WRITE, MAP_SHARED, rings.fd, at);
    if (place == MAP_FAILED) *error = errno;
    return place == MAP_FAILED ? NULL : place;
}

struct xpr_ring_header *xpr_rings_take(int *error) {
    *error = rings.error;
    if (!rings.header) return NULL;
    struct xpr_ring_header *ring = rings.idle_count ? rings.idle[--rings.idle_count] : new_ring(error);
    return ring;
}

static void clear(struct xpr_ring_header *ring) {
    atomic_store(&ring->thread, 0);
    atomic_store(&ring->head, 0);
    atomic_store(&ring->tail, 0);
    atomic_store(&ring->pending_offset, 0);
    atomic_store(&ring->dropped_ring, 0);
    memset(&ring->open, 0, sizeof ring->open);
}

void xpr_rings_give(struct xpr_ring_header *ring) {
    clear(ring);
    if (rings.idle_count == rings.idle_room) {
        unsigned room = rings.idle_room ? 2 * rings.idle_room : 16;
        struct xpr_ring_header **larger = realloc(rings.idle, room * sizeof *larger);
        if (!larger) {
            munmap(ring, rings.stride);
            return;
        }
        rings.idle = larger;
        rings.idle_room = room;
    }
    rings.idle[rings.idle_count++] = ring;
}

void xpr_rings_detach(struct xpr_ring_header *ring, uint64_t bytes) {
    /* Should it fail the file stays mapped there: its blocks are the thread's until it ends. */
    mmap(ring, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

/* --- the journal ------------------------------------------------------------------------------------------------ */

static void put(uint64_t at, const void *bytes, uint64_t length) {
    uint8_t *journal = (uint8_t *)rings.header + XPR_RINGS_HEADER_BYTES;
    uint64_t from = at % XPR_JOURNAL_BYTES;
    uint64_t first = length < XPR_JOURNAL_BYTES - from ? length : XPR_JOURNAL_BYTES - from;
    memcpy(journal + from, bytes, first);
    memcpy(journal, (const uint8_t *)bytes + first, length - first);
}

void xpr_journal_add(uint32_t type, const void *record, uint64_t bytes) {
    if (!rings.header) return;
    uint64_t head = atomic_load_explicit(&rings.header->journal_head, memory_order_relaxed);
    uint64_t used = head + sizeof(uint32_t[2]) + bytes - atomic_load(&rings.header->journal_tail);
    if (used > XPR_JOURNAL_BYTES) {
        atomic_fetch_add(&rings.header->journal_skipped, 1);
        return;
    }
    uint32_t prefix[2] = {type, (uint32_t)bytes};
    put(head, prefix, sizeof prefix);
    put(head + sizeof prefix, record, bytes);
    atomic_store_explicit(&rings.header->journal_head, head + sizeof prefix + bytes, memory_order_release);
    if (used > XPR_JOURNAL_BYTES / 2) xpr_recorder_wake();
}

void xpr_journal_taken(void) {
    if (rings.header) rings.journal_mark = atomic_load(&rings.header->journal_head);
}

void xpr_journal_written(void) {
    if (rings.header) atomic_store_explicit(&rings.header->journal_tail, rings.journal_mark, memory_order_release);
}

/* --- the end ---------------------------------------------------------------------------------------------------- */

void xpr_rings_close(void) {
    char link[64], path[PATH_MAX];
    /* The file may have another name by now, that of the process's rank. */
    snprintf(link, sizeof link, "/proc/self/fd/%d", rings.fd);
    ssize_t length = is_ours() ? readlink(link, path, sizeof path - 1) : -1;
    if (length > 0) {
        path[length] = 0;
        struct stat state;
        if (stat(path, &state) == 0 && (uint64_t)state.st_ino == rings.inode) unlink(path);
    }
    release();
}

void xpr_rings_after_fork_child(void) { release(); }
