/* Memory of columns: from malloc up to a budget, beyond it in files without a name.
 *
 * A capture's columns can be larger than the memory of the machine, or than what a container grants. What lies in a
 * file the system can write out and drop; it costs no more to fill than memory that is touched for the first time, but
 * more than memory that was just given back.
 * Only blocks of XPR_LARGE_BYTES and more count towards the budget or lie in files. Until xpr_set_column_budget is
 * called all is memory. Files are on a disk, never in a file system that is memory itself; their blocks are allocated
 * before they are used, so that a full disk is found out here: then, and where no folder takes a file, a block is
 * memory after all, and xpr_column_memory_use says why.
 *
 * After a fork both processes share what lies in files: neither may change it. What was free is the parent's alone.
 * Threading: any thread, any time; a block is used by whoever has it. Cost: a file of its own per block, which is kept
 * open only while the block grows. */
#ifndef XPROF_PY_COLUMNS_MEMORY_H
#define XPROF_PY_COLUMNS_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { XPR_LARGE_BYTES = 1 << 20, XPR_MEMORY_FOLDERS = 4 };

/* Rows after which a pass over columns says that those before are passed. */
enum { XPR_ROWS_AT_ONCE = 1 << 20 };
static inline size_t xpr_end_of_rows(size_t first, size_t count) {
    return count - first > XPR_ROWS_AT_ONCE ? first + XPR_ROWS_AT_ONCE : count;
}

/* Blocks of memory may take `bytes` together, those of xpr_column_alloc and _resize half of it; SIZE_MAX: no bound. Files go to the first of the folders, in order and at
 * most XPR_MEMORY_FOLDERS, that takes them. The names are copied; too long ones and those behind the last are left out. */
void xpr_set_column_budget(size_t bytes, const char *const *folders, size_t count);

/* As malloc, realloc and free; memory of malloc may be given to the last two. */
void *xpr_column_alloc(size_t bytes);
void *xpr_column_resize(void *data, size_t bytes);
void xpr_column_free(void *data);

/* For who has an allocator of his own: a block in a file, NULL where the budget has room; memory that counts towards it
 * from now on; and whether a block lay in a file and is free now: else it is his to free, and counts no more. */
void *xpr_column_file(size_t bytes);
void xpr_column_note(void *data, size_t bytes);
bool xpr_column_released(void *data);

/* Blocks in files that are free are kept for the next ones, 256 MB at most, until this or xpr_set_column_budget. */
void xpr_column_give_back(void);

/* Bytes [from, to) behind `data`, which may point into a block, are not needed soon: they leave this process's memory if
 * they lie in a file, and come back unchanged when they are touched. */
void xpr_column_passed(const void *data, size_t from, size_t to);
/* Whether `data` points into a block that lies in a file. */
bool xpr_column_in_file(const void *data);

typedef struct {
    size_t in_memory, in_files; /* bytes of large blocks now */
    size_t most_in_files;       /* at one time, since the process began */
    int refused;                /* an errno: why a block that should lie in a file is in memory; 0: none is */
} xpr_memory_use;
xpr_memory_use xpr_column_memory_use(void);

#endif
