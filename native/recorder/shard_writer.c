#define _GNU_SOURCE
#include "recorder/shard_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "recorder/clock.h"

enum { REST_AFTER_ERROR_NS = 1000000000 };

struct sums {
    uint64_t a, b;
};

static void add_words(struct sums *s, const void *bytes, uint64_t length) {
    const uint8_t *p = bytes;
    uint64_t a = s->a, b = s->b, i = 0;
    /* Four words at once, so that they do not wait for one another: b after them is b + 4a + 4 w0 + 3 w1 + 2 w2 + w3. */
    for (; i + 32 <= length; i += 32) {
        uint64_t w[4];
        memcpy(w, p + i, sizeof w);
        b += 4 * (a + w[0]) + 3 * w[1] + 2 * w[2] + w[3];
        a += w[0] + w[1] + w[2] + w[3];
    }
    for (; i < length; i += 8) {
        uint64_t w;
        memcpy(&w, p + i, 8);
        a += w;
        b += a;
    }
    s->a = a;
    s->b = b;
}

static uint64_t checksum(struct sums s) { return s.a ^ (s.b << 32 | s.b >> 32); }

/* Writes all parts at the offset. 0 or errno. */
static int write_all(int fd, uint64_t offset, struct iovec *parts, int count) {
    while (count) {
        ssize_t put = pwritev(fd, parts, count, (off_t)offset);
        if (put < 0) {
            if (errno == EINTR) continue;
            return errno;
        }
        if (put == 0) return EIO;
        offset += (uint64_t)put;
        while (count && (size_t)put >= parts->iov_len) {
            put -= (ssize_t)parts->iov_len;
            parts++;
            count--;
        }
        if (count) {
            parts->iov_base = (uint8_t *)parts->iov_base + put;
            parts->iov_len -= (size_t)put;
        }
    }
    return 0;
}

int xpr_open_above_standard(const char *path, int flags) {
    int fd = open(path, flags | O_CLOEXEC, 0666);
    if (fd < 0 || fd > 2) return fd;
    int higher = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    int error = errno;
    close(fd);
    errno = error;
    return higher;
}

static bool is_ours(const struct xpr_writer *w) {
    struct stat state;
    return fstat(w->fd, &state) == 0 && (uint64_t)state.st_dev == w->device && (uint64_t)state.st_ino == w->inode;
}

void xpr_read_boot_id(char *text, size_t room) {
    memset(text, 0, room);
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t got = read(fd, text, room - 1);
    close(fd);
    text[got > 0 ? got : 0] = 0;
    text[strcspn(text, "\n")] = 0;
}

int xpr_writer_open(struct xpr_writer *w, const char *path, uint64_t budget_bytes, uint64_t ring_bytes) {
    memset(w, 0, sizeof *w);
    w->fd = xpr_open_above_standard(path, O_WRONLY | O_CREAT | O_TRUNC);
    if (w->fd < 0) return errno;
    struct stat state;
    if (fstat(w->fd, &state) == 0) {
        w->device = (uint64_t)state.st_dev;
        w->inode = (uint64_t)state.st_ino;
    }
    w->budget_bytes = budget_bytes;
    struct xpr_shard_header header = {
        .version = XPR_SHARD_VERSION,
        .header_bytes = sizeof header,
        .pid = (uint64_t)getpid(),
        .clock_kind = xpr_clock_kind,
        .budget_bytes = budget_bytes,
        .ring_bytes = ring_bytes,
        .shard_id = xpr_clock_now(),
    };
    w->shard_id = header.shard_id;
    memcpy(header.magic, XPR_SHARD_MAGIC, sizeof header.magic);
    xpr_read_boot_id(header.boot_id, sizeof header.boot_id);
    struct sums s = {0, 0};
    add_words(&s, &header, sizeof header);
    header.checksum = checksum(s);
    struct iovec part = {&header, sizeof header};
    int error = write_all(w->fd, 0, &part, 1);
    if (error) {
        close(w->fd);
        w->fd = -1;
        return error;
    }
    atomic_store(&w->offset, sizeof header);
    return 0;
}

uint64_t xpr_writer_room(const struct xpr_writer *w) {
    uint64_t used = atomic_load_explicit(&w->offset, memory_order_relaxed) + sizeof(struct xpr_chunk_header);
    return used < w->budget_bytes ? w->budget_bytes - used : 0;
}

bool xpr_writer_add(struct xpr_writer *w, uint16_t type, uint32_t thread, const struct xpr_part *parts, int count,
                    bool insist) {
    if (w->fd < 0) return false;
    if (w->rest_until_ns && !insist && xpr_clock_read_ns(CLOCK_MONOTONIC) < w->rest_until_ns) return false;
    struct xpr_chunk_header header = {
        .magic = XPR_CHUNK_MAGIC,
        .type = type,
        .sequence = w->sequence,
        .thread = thread,
    };
    struct iovec vectors[3] = {{&header, sizeof header}};
    for (int i = 0; i < count; i++) {
        vectors[i + 1] = (struct iovec){(void *)(uintptr_t)parts[i].bytes, parts[i].length};
        header.bytes += parts[i].length;
    }
    struct sums s = {0, 0};
    add_words(&s, &header, sizeof header);
    for (int i = 0; i < count; i++) add_words(&s, parts[i].bytes, parts[i].length);
    header.checksum = checksum(s);

    uint64_t offset = atomic_load_explicit(&w->offset, memory_order_relaxed);
    bool ours = is_ours(w);
    int error = ours ? write_all(w->fd, offset, vectors, count + 1) : EBADF;
    if (error) {
        atomic_store(&w->last_errno, error);
        atomic_fetch_add(&w->write_errors, 1);
        w->rest_until_ns = xpr_clock_read_ns(CLOCK_MONOTONIC) + REST_AFTER_ERROR_NS;
        /* Should this fail too, the reader finds a cut chunk at the end, which it knows how to report. */
        if (ours && ftruncate(w->fd, (off_t)offset) != 0) return false;
        return false;
    }
    w->rest_until_ns = 0;
    w->sequence++;
    atomic_store_explicit(&w->offset, offset + sizeof header + header.bytes, memory_order_relaxed);
    return true;
}

bool xpr_writer_close(struct xpr_writer *w) {
    if (w->fd < 0) return false;
    struct stat state;
    if (!is_ours(w)) {
        w->fd = -1;
        return false;
    }
    bool removed = fstat(w->fd, &state) == 0 && S_ISREG(state.st_mode) && state.st_nlink == 0;
    if (close(w->fd) != 0 && errno != EINTR) {
        /* Network file systems report a failed write only here. */
        atomic_store(&w->last_errno, errno);
        atomic_fetch_add(&w->write_errors, 1);
    }
    w->fd = -1;
    return removed;
}
