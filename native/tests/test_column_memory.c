/* Columns in memory and in files: what is written is read back, whatever became of the block in between. */
#include <dirent.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "columns/columns.h"
#include "columns/memory.h"
#include "tests/check.h"

enum { MB = 1 << 20, WORDS = MB / 8 };

static const char *folder(void) {
    const char *named = getenv("TMPDIR");
    return named ? named : "/tmp";
}

static void fill(uint64_t *words, size_t count, uint64_t seed) {
    for (size_t i = 0; i < count; i++) words[i] = seed + i * UINT64_C(0x9e3779b97f4a7c15);
}

static bool holds(const uint64_t *words, size_t count, uint64_t seed) {
    for (size_t i = 0; i < count; i++)
        if (words[i] != seed + i * UINT64_C(0x9e3779b97f4a7c15)) return false;
    return true;
}

/* Whether files can lie in TMPDIR: on tmpfs they would be memory. */
static bool has_disk(void) {
    const char *folders[] = {folder()};
    xpr_set_column_budget(0, folders, 1);
    void *block = xpr_column_alloc(MB);
    bool in_file = xpr_column_in_file(block);
    xpr_column_free(block);
    if (!in_file) CHECK(xpr_column_memory_use().refused != 0);
    return in_file;
}

static void without_a_budget_all_is_memory(void) {
    uint64_t *one = xpr_column_alloc(8 * MB);
    CHECK(one && !xpr_column_in_file(one));
    fill(one, 8 * WORDS, 1);
    xpr_column_passed(one, 0, 8 * MB);
    CHECK(holds(one, 8 * WORDS, 1));
    CHECK(xpr_column_memory_use().in_memory == 8 * MB);
    xpr_column_free(one);
    CHECK(xpr_column_memory_use().in_memory == 0);
}

static void blocks_grow_from_memory_into_files(void) {
    const char *folders[] = {"/no/such/folder", folder()};
    xpr_set_column_budget(3 * MB, folders, 2);
    uint64_t *words = NULL;
    size_t held = 0;
    for (size_t count = 1024; count <= 8 * WORDS; count = count * 2 + 100) {
        words = xpr_column_resize(words, count * 8);
        CHECK(words && holds(words, held, 7));
        fill(words, count, 7);
        held = count;
        if (count % 3 == 0) xpr_column_passed(words, count, count * 8);
        CHECK(holds(words, held, 7));
    }
    CHECK(xpr_column_in_file(words) && xpr_column_in_file(words + held - 1));
    CHECK(xpr_column_memory_use().in_memory == 0);
    /* What needs little room leaves its file. */
    words = xpr_column_resize(words, 2 * MB);
    CHECK(xpr_column_in_file(words) && holds(words, 2 * WORDS, 7));
    words = xpr_column_resize(words, 4096);
    CHECK(!xpr_column_in_file(words) && holds(words, 512, 7));
    xpr_column_free(words);
    xpr_memory_use use = xpr_column_memory_use();
    CHECK(use.in_memory == 0 && use.in_files == 0 && use.most_in_files >= 4 * MB && use.refused == 0);
}

static void parts_that_are_passed_come_back(void) {
    const char *folders[] = {folder()};
    xpr_set_column_budget(0, folders, 1);
    uint64_t *words = xpr_column_file(4 * MB + 12);
    CHECK(words);
    fill(words, 4 * WORDS, 3);
    const size_t ends[] = {0, 1, 4095, 4096, 4097, 2 * MB, 4 * MB, 8 * MB};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        for (size_t j = i; j < sizeof ends / sizeof *ends; j++) xpr_column_passed(words, ends[i], ends[j]);
    xpr_column_passed((char *)words + 100, 0, MB);
    CHECK(holds(words, 4 * WORDS, 3));
    CHECK(xpr_column_released(words));
}

static void what_is_given_back_is_used_again(void) {
    const char *folders[] = {folder()};
    xpr_set_column_budget(0, folders, 1);
    xpr_column_give_back();
    char *held[40], *first = xpr_column_file(5 * MB);
    first[0] = 7;
    CHECK(xpr_column_released(first));
    /* The same block for what fits; a new one for what needs much less or more. */
    char *small = xpr_column_file(MB), *large = xpr_column_file(6 * MB), *fits = xpr_column_file(4 * MB);
    CHECK(fits == first && small != first && large != first && fits[0] == 7);
    memset(fits, 1, 5 * MB);
    CHECK(xpr_column_released(fits) && xpr_column_released(small) && xpr_column_released(large));
    CHECK(xpr_column_memory_use().in_files == 0);
    /* More than are kept. */
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 40; i++) {
            held[i] = xpr_column_file((size_t)(1 + i % 9) * MB);
            memset(held[i], i, MB);
        }
        for (int i = 0; i < 40; i++) CHECK(held[i][0] == i && held[i][MB - 1] == i && xpr_column_released(held[i]));
    }
    xpr_column_give_back();
    CHECK(xpr_column_memory_use().in_files == 0);
}

static void memory_of_others_counts_and_is_theirs(void) {
    const char *folders[] = {folder()};
    xpr_set_column_budget(4 * MB, folders, 1);
    void *theirs = malloc(3 * MB);
    xpr_column_note(theirs, 3 * MB);
    void *ours = xpr_column_alloc(2 * MB);
    CHECK(xpr_column_in_file(ours) && !xpr_column_in_file(theirs));
    CHECK(!xpr_column_released(theirs));
    CHECK(!xpr_column_released(theirs));
    free(theirs);
    xpr_column_free(ours);
    CHECK(xpr_column_memory_use().in_memory == 0);
}

static void files_have_no_names(void) {
    const char *folders[] = {folder()};
    xpr_set_column_budget(0, folders, 1);
    void *block = xpr_column_alloc(MB);
    DIR *open = opendir(folder());
    CHECK(open);
    for (struct dirent *one; (one = readdir(open)) != NULL;) CHECK(strncmp(one->d_name, ".xprof_py-", 10) != 0);
    closedir(open);
    xpr_column_free(block);
}

static void where_no_folder_takes_files_blocks_are_memory(void) {
    const char *folders[] = {"/no/such/folder", "/proc"};
    xpr_set_column_budget(0, folders, 2);
    uint64_t *words = xpr_column_resize(xpr_column_alloc(MB), 2 * MB);
    CHECK(words && !xpr_column_in_file(words));
    fill(words, 2 * WORDS, 5);
    CHECK(holds(words, 2 * WORDS, 5) && xpr_column_memory_use().refused != 0);
    CHECK(xpr_column_memory_use().in_memory == 2 * MB);
    xpr_column_free(words);
    xpr_set_column_budget(0, NULL, 0);
    CHECK(xpr_column_file(MB) == NULL && xpr_column_memory_use().refused != 0);
}

static void tables_expose_their_rows_some_at_a_time(void) {
    static const xpr_column_spec columns[] = {{"a", 'q'}, {"b", 'i'}, {"c", 'B'}};
    const char *folders[] = {folder()};
    xpr_set_column_budget(MB, folders, 1);
    xpr_table table;
    xpr_table_init(&table, columns, 3);
    size_t rows = 3 * XPR_ROWS_AT_ONCE + 17;
    for (size_t i = 0; i < rows; i++) {
        CHECK(xpr_table_room(&table));
        xpr_i64(&table, 0)[i] = (int64_t)(i * 3);
        xpr_i32(&table, 1)[i] = (int32_t)i;
        xpr_u8(&table, 2)[i] = (uint8_t)(i % 251);
        table.count++;
    }
    CHECK(xpr_column_in_file(table.data[0]) && table.capacity <= table.room);
    for (size_t i = 0; i < rows; i++)
        CHECK(xpr_i64(&table, 0)[i] == (int64_t)(i * 3) && xpr_i32(&table, 1)[i] == (int32_t)i &&
              xpr_u8(&table, 2)[i] == i % 251);
    xpr_table_free(&table);
    CHECK(xpr_column_memory_use().in_files == 0);
}

static void a_fork_reads_what_was_there(void) {
    const char *folders[] = {folder()};
    xpr_set_column_budget(0, folders, 1);
    uint64_t *words = xpr_column_alloc(MB);
    fill(words, WORDS, 11);
    /* A block that is free is not used by both. */
    uint64_t *freed = xpr_column_file(2 * MB);
    fill(freed, 2 * WORDS, 5);
    CHECK(xpr_column_released(freed));
    pid_t child = fork();
    if (child == 0) {
        uint64_t *own = xpr_column_alloc(2 * MB);
        if (own) fill(own, 2 * WORDS, 99);
        _exit(own && holds(own, 2 * WORDS, 99) && holds(words, WORDS, 11) ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(holds(words, WORDS, 11));
    CHECK(xpr_column_file(2 * MB) == freed && holds(freed, 2 * WORDS, 5));
    CHECK(xpr_column_released(freed));
    xpr_column_free(words);
}

static void *grow_and_check(void *argument) {
    uint64_t seed = (uint64_t)(uintptr_t)argument;
    for (int round = 0; round < 6; round++) {
        uint64_t *words = xpr_column_alloc(MB);
        fill(words, WORDS, seed);
        words = xpr_column_resize(words, 3 * MB);
        fill(words, 3 * WORDS, seed + 1);
        xpr_column_passed(words, 0, 3 * MB);
        CHECK(holds(words, 3 * WORDS, seed + 1));
        xpr_column_free(words);
    }
    return NULL;
}

static void threads_do_not_meet(void) {
    const char *folders[] = {folder()};
    xpr_set_column_budget(4 * MB, folders, 1);
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, grow_and_check, (void *)(i * 1000)) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    xpr_memory_use use = xpr_column_memory_use();
    CHECK(use.in_memory == 0 && use.in_files == 0);
}

int main(void) {
    without_a_budget_all_is_memory();
    bool disk = has_disk();
    where_no_folder_takes_files_blocks_are_memory();
    if (!disk) {
        printf("TMPDIR is no disk: of files nothing was tested\n");
        return 0;
    }
    blocks_grow_from_memory_into_files();
    parts_that_are_passed_come_back();
    what_is_given_back_is_used_again();
    memory_of_others_counts_and_is_theirs();
    files_have_no_names();
    tables_expose_their_rows_some_at_a_time();
    a_fork_reads_what_was_there();
    threads_do_not_meet();
    return 0;
}
