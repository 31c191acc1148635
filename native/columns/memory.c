#define _GNU_SOURCE
#include "columns/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { TMPFS = 0x01021994, PASS_BYTES = 64 << 20, COPY_BYTES = 16 << 20 };
enum { SPARE_BLOCKS = 16, SPARE_BYTES = 256 << 20 };
#define RAMFS 0x858458f6u

typedef struct {
    char *at;
    size_t bytes;
    bool in_file;
    int file; /* open where the block may grow, which would take a file for each column otherwise; -1: closed, or memory */
} block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static block *blocks;
static size_t count, room;
static size_t budget = SIZE_MAX;
static char *folders[XPR_MEMORY_FOLDERS];
static xpr_memory_use use;
static size_t since_passed; /* bytes of files that were begun since all were dropped from memory */
static size_t page = 4096;
/* Blocks that were given back, the oldest first: what is wanted next is often as large, and a new file costs more. */
static struct {
    char *at;
    size_t bytes;
} spare[SPARE_BLOCKS];
static size_t spare_count, spare_bytes;

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }
/* Blocks that are free are the parent's: it may give them to whoever asks next. */
static void in_child(void) {
    for (size_t i = 0; i < spare_count; i++) munmap(spare[i].at, spare[i].bytes);
    spare_count = spare_bytes = 0;
    after_fork();
}
__attribute__((constructor)) static void begin(void) {
    page = (size_t)sysconf(_SC_PAGESIZE);
    pthread_atfork(before_fork, after_fork, in_child);
}

xpr_memory_use xpr_column_memory_use(void) {
    pthread_mutex_lock(&lock);
    xpr_memory_use now = use;
    pthread_mutex_unlock(&lock);
    return now;
}

/* As far as no function takes it, below, with the lock held. */

static size_t in_pages(size_t bytes) { return (bytes + page - 1) / page * page; }

static block *block_at(const void *data) {
    for (size_t i = count; i-- > 0;)
        if (blocks[i].at == data) return &blocks[i];
    return NULL;
}

static bool note(char *at, size_t bytes, bool in_file, int file) {
    if (count == room) {
        size_t more = room ? room * 2 : 64;
        block *grown = realloc(blocks, more * sizeof *blocks);
        if (grown == NULL) return false;
        blocks = grown;
        room = more;
    }
    blocks[count++] = (block){at, bytes, in_file, file};
    return true;
}

static void count_bytes(bool in_file, size_t before, size_t now) {
    size_t *total = in_file ? &use.in_files : &use.in_memory;
    *total += now - before;
    if (use.in_files > use.most_in_files) use.most_in_files = use.in_files;
}

static void forget(block *one) {
    count_bytes(one->in_file, one->bytes, 0);
    *one = blocks[--count];
}

/* What decoders fill stays for long: half of the budget is left to what comes and goes. */
static bool wants_file(size_t bytes, size_t given_back, size_t allowed) {
    size_t held = use.in_memory - given_back;
    return bytes >= XPR_LARGE_BYTES && bytes <= SIZE_MAX / 2 && (held > allowed || bytes > allowed - held);
}

/* A file without a name on a disk, or -1 with errno. */
static int open_file(const char *folder) {
    struct statfs system;
    if (statfs(folder, &system) != 0) return -1;
    if ((unsigned)system.f_type == TMPFS || (unsigned)system.f_type == RAMFS) {
        errno = EMEDIUMTYPE;
        return -1;
    }
    int file = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) return file;
    char name[PATH_MAX];
    strcat(strcpy(name, folder), "/.xprof_py-XXXXXX");
    file = mkostemp(name, O_CLOEXEC);
    if (file >= 0) unlink(name);
    return file;
}

/* Blocks for the file's bytes [from, to): without them a full disk would be a signal later. 0 or an errno. */
static int allocate(int file, size_t from, size_t to) {
    int failed;
    do failed = fallocate(file, 0, (off_t)from, (off_t)(to - from)) == 0 ? 0 : errno;
    while (failed == EINTR);
    return failed;
}

static void drop_all(void) {
    for (size_t i = 0; i < count; i++)
        if (blocks[i].in_file) madvise(blocks[i].at, blocks[i].bytes, MADV_DONTNEED);
    for (size_t i = 0; i < spare_count; i++) madvise(spare[i].at, spare[i].bytes, MADV_DONTNEED);
    since_passed = 0;
}

static void take_spare(size_t place) {
    spare_bytes -= spare[place].bytes;
    memmove(&spare[place], &spare[place + 1], (--spare_count - place) * sizeof *spare);
}

static void give_back_spare(size_t room_for) {
    while (spare_count && (spare_count == SPARE_BLOCKS || spare_bytes + room_for > SPARE_BYTES)) {
        munmap(spare[0].at, spare[0].bytes);
        take_spare(0);
    }
}

/* A block that was given back and is no more than twice as large; NULL: none. It holds what it held. */
static char *spare_block(size_t bytes) {
    size_t best = spare_count;
    for (size_t i = 0; i < spare_count; i++) {
        bool fits = spare[i].bytes >= bytes && spare[i].bytes / 2 <= bytes;
        if (fits && (best == spare_count || spare[i].bytes < spare[best].bytes)) best = i;
    }
    if (best == spare_count || !note(spare[best].at, spare[best].bytes, true, -1)) return NULL;
    char *at = spare[best].at;
    count_bytes(true, 0, spare[best].bytes);
    take_spare(best);
    return at;
}

static char *new_file(size_t bytes, bool grows) {
    bytes = in_pages(bytes);
    since_passed += bytes;
    if (since_passed > PASS_BYTES) drop_all();
    char *known = grows ? NULL : spare_block(bytes);
    if (known) return known;
    int why = ENOENT;
    for (size_t i = 0; i < XPR_MEMORY_FOLDERS && folders[i]; i++) {
        int file = open_file(folders[i]);
        if (file < 0) {
            why = errno;
            continue;
        }
        if ((why = allocate(file, 0, bytes)) == 0) {
            void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            why = at == MAP_FAILED ? errno : 0;
            if (!why && note(at, bytes, true, grows ? file : -1)) {
                count_bytes(true, 0, bytes);
                if (!grows) close(file);
                return at;
            }
            if (!why) munmap(at, bytes);
        }
        close(file);
    }
    use.refused = why ? why : ENOMEM;
    return NULL;
}

static void note_memory(void *data, size_t bytes) {
    if (data == NULL || bytes < XPR_LARGE_BYTES) return;
    if (note(data, bytes, false, -1)) count_bytes(false, 0, bytes);
}

/* A block in a file with other bytes; NULL: as it was. What shrinks is done growing. */
static void *resized_file(block *one, size_t bytes) {
    bytes = in_pages(bytes ? bytes : 1);
    if (bytes > one->bytes) {
        if (one->file < 0) return NULL;
        if (allocate(one->file, one->bytes, bytes) != 0) return NULL;
    }
    void *at = mremap(one->at, one->bytes, bytes, MREMAP_MAYMOVE);
    if (at == MAP_FAILED) return NULL;
    if (bytes < one->bytes && one->file >= 0) {
        /* Behind the end of what is mapped nobody looks: a file that stays longer costs blocks alone. */
        if (ftruncate(one->file, (off_t)bytes) != 0) errno = 0;
        close(one->file);
        one->file = -1;
    }
    count_bytes(true, one->bytes, bytes);
    one->at = at;
    one->bytes = bytes;
    return at;
}

/* Whether the block at `data` lay in a file; it is forgotten in either case, and freed if it did. */
static bool released(void *data) {
    block *one = block_at(data);
    if (one == NULL) return false;
    block gone = *one;
    forget(one);
    if (!gone.in_file) return false;
    if (gone.file >= 0) close(gone.file);
    if (gone.bytes > SPARE_BYTES / 4) {
        munmap(gone.at, gone.bytes);
        return true;
    }
    give_back_spare(gone.bytes);
    spare[spare_count].at = gone.at;
    spare[spare_count++].bytes = gone.bytes;
    spare_bytes += gone.bytes;
    return true;
}

static void *new_block(size_t bytes, size_t given_back, bool grows) {
    void *at = wants_file(bytes, given_back, budget / 2) ? new_file(bytes, grows) : NULL;
    if (at) return at;
    at = malloc(bytes ? bytes : 1);
    note_memory(at, bytes);
    return at;
}

/* `data`, whose first `kept` bytes are wanted, as another block; of which, in a file, little is in memory. */
static void *moved(void *data, size_t kept, size_t bytes, size_t given_back) {
    char *at = new_block(bytes, given_back, bytes > kept);
    if (at == NULL) return NULL;
    if (kept > bytes) kept = bytes;
    bool to_file = block_at(at) && block_at(at)->in_file;
    for (size_t done = 0; done < kept;) {
        size_t part = kept - done < COPY_BYTES ? kept - done : COPY_BYTES;
        memcpy(at + done, (char *)data + done, part);
        if (to_file) madvise(at + done, in_pages(part), MADV_DONTNEED);
        done += part;
    }
    if (!released(data)) free(data);
    return at;
}

static void *resized(void *data, size_t bytes) {
    block *one = block_at(data);
    size_t before = one ? one->bytes : malloc_usable_size(data);
    if (one && one->in_file) {
        void *at = bytes < XPR_LARGE_BYTES ? NULL : resized_file(one, bytes);
        return at ? at : moved(data, before, bytes, 0);
    }
    size_t given_back = one ? before : 0;
    if (wants_file(bytes, given_back, budget / 2)) return moved(data, before, bytes, given_back);
    void *at = realloc(data, bytes ? bytes : 1);
    if (at == NULL) return NULL;
    if (one) forget(one);
    note_memory(at, bytes);
    return at;
}

void xpr_set_column_budget(size_t bytes, const char *const *names, size_t names_count) {
    pthread_mutex_lock(&lock);
    budget = bytes;
    give_back_spare(SPARE_BYTES + 1);
    size_t kept = 0;
    for (size_t i = 0; i < XPR_MEMORY_FOLDERS; i++) {
        free(folders[i]);
        folders[i] = NULL;
    }
    for (size_t i = 0; i < names_count && kept < XPR_MEMORY_FOLDERS; i++)
        if (strlen(names[i]) < PATH_MAX - 32 && (folders[kept] = strdup(names[i])) != NULL) kept++;
    use.refused = 0;
    pthread_mutex_unlock(&lock);
}

void *xpr_column_alloc(size_t bytes) {
    if (bytes < XPR_LARGE_BYTES) return malloc(bytes ? bytes : 1);
    pthread_mutex_lock(&lock);
    void *data = new_block(bytes, 0, false);
    pthread_mutex_unlock(&lock);
    return data;
}

void *xpr_column_resize(void *data, size_t bytes) {
    if (data == NULL) return xpr_column_alloc(bytes);
    pthread_mutex_lock(&lock);
    void *at = resized(data, bytes);
    pthread_mutex_unlock(&lock);
    return at;
}

void xpr_column_free(void *data) {
    if (data && !xpr_column_released(data)) free(data);
}

void *xpr_column_file(size_t bytes) {
    pthread_mutex_lock(&lock);
    void *data = wants_file(bytes, 0, budget) ? new_file(bytes, false) : NULL;
    pthread_mutex_unlock(&lock);
    return data;
}

void xpr_column_give_back(void) {
    pthread_mutex_lock(&lock);
    give_back_spare(SPARE_BYTES + 1);
    pthread_mutex_unlock(&lock);
}

void xpr_column_note(void *data, size_t bytes) {
    pthread_mutex_lock(&lock);
    note_memory(data, bytes);
    pthread_mutex_unlock(&lock);
}

bool xpr_column_released(void *data) {
    pthread_mutex_lock(&lock);
    bool was_file = released(data);
    pthread_mutex_unlock(&lock);
    return was_file;
}

/* The block in a file that `data` points into, NULL for none. */
static const block *file_around(const char *data) {
    for (size_t i = 0; i < count; i++)
        if (blocks[i].in_file && data >= blocks[i].at && data < blocks[i].at + blocks[i].bytes) return &blocks[i];
    return NULL;
}

void xpr_column_passed(const void *data, size_t from, size_t to) {
    if (data == NULL || to <= from) return;
    const char *low = (const char *)data + from, *high = (const char *)data + to;
    pthread_mutex_lock(&lock);
    const block *one = file_around(low);
    if (one) {
        char *first = one->at + in_pages((size_t)(low - one->at));
        size_t end = (size_t)(high - one->at);
        char *behind = one->at + (end > one->bytes ? one->bytes : end / page * page);
        if (behind > first) madvise(first, (size_t)(behind - first), MADV_DONTNEED);
    }
    pthread_mutex_unlock(&lock);
}

bool xpr_column_in_file(const void *data) {
    pthread_mutex_lock(&lock);
    bool found = file_around(data) != NULL;
    pthread_mutex_unlock(&lock);
    return found;
}
