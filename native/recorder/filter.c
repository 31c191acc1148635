#include "recorder/filter.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

_Atomic uint32_t xpr_filter_now;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t last_number;
static bool limits_level, limits_category;
static int64_t most_level;
static char *texts; /* the categories, each with its end, one after the other */
static size_t texts_count;

static const char *after(const char *text) { return text + strlen(text) + 1; }

bool xpr_filter_set(const int64_t *level, const char *const *categories, size_t count) {
    size_t bytes = 1; /* an empty list is one too */
    for (size_t i = 0; categories && i < count; i++) bytes += strlen(categories[i]) + 1;
    char *copy = categories ? malloc(bytes) : NULL;
    if (categories && !copy) return false;
    char *at = copy;
    for (size_t i = 0; categories && i < count; i++) at = stpcpy(at, categories[i]) + 1;
    pthread_mutex_lock(&lock);
    char *old = texts;
    texts = copy;
    texts_count = count;
    limits_level = level != NULL;
    limits_category = categories != NULL;
    most_level = level ? *level : 0;
    uint32_t number = 0;
    if (level || categories) {
        last_number = last_number % INT32_MAX + 1;
        number = last_number;
    }
    atomic_store_explicit(&xpr_filter_now, number, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
    free(old);
    return true;
}

static bool has(const char *category) {
    const char *text = texts;
    for (size_t i = 0; i < texts_count; i++, text = after(text))
        if (strcmp(text, category) == 0) return true;
    return false;
}

uint32_t xpr_filter_ask(const int32_t *level, const char *category) {
    pthread_mutex_lock(&lock);
    bool passes = !(limits_level && level && *level > most_level) && !(limits_category && category && !has(category));
    uint32_t answer = xpr_filter_number() << 1 | passes;
    pthread_mutex_unlock(&lock);
    return answer;
}

void xpr_filter_lock(void) { pthread_mutex_lock(&lock); }
void xpr_filter_unlock(void) { pthread_mutex_unlock(&lock); }
void xpr_filter_after_fork_child(void) { lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; }
