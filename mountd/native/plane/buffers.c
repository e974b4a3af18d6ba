/* Memory for the bytes of small files: taken and given back thousands of times a second, and touched only once.
 *
 * The first touch of a page costs the kernel 0.5 to 7 us, so what is given back is kept, up to a bound, and the last one
 * that was given is taken first. A part of the pipeline, see fetch.h.
 */
#include "fetch.h"

#include <stdlib.h>

#define CLASSES 9                          /* 4 KiB to 1 MiB */
#define SMALLEST ((size_t)4096)
#define KEPT_BYTES ((size_t)32 << 20)

struct unused {
    struct unused *next;
};

static struct {
    pthread_mutex_t lock;
    struct unused *unused[CLASSES];
    size_t kept_bytes, out_bytes;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int class_of(size_t size, size_t *room) {
    int class = 0;
    for (*room = SMALLEST; *room < size && class < CLASSES - 1; *room *= 2) class ++;
    return class;
}

char *buffer_take(size_t size) {
    size_t room;
    int class = class_of(size, &room);
    if (size > room) return NULL;
    pthread_mutex_lock(&pool.lock);
    struct unused *found = pool.unused[class];
    if (found) pool.unused[class] = found->next, pool.kept_bytes -= room;
    pool.out_bytes += room;
    pthread_mutex_unlock(&pool.lock);
    char *buffer = found ? (char *)found : aligned_alloc(SMALLEST, room);
    if (buffer) return buffer;
    pthread_mutex_lock(&pool.lock);
    pool.out_bytes -= room;
    pthread_mutex_unlock(&pool.lock);
    return NULL;
}

void buffer_give(char *buffer, size_t size) {
    if (!buffer) return;
    size_t room;
    int class = class_of(size, &room), keep;
    pthread_mutex_lock(&pool.lock);
    pool.out_bytes -= room;
    keep = pool.kept_bytes + room <= KEPT_BYTES;
    if (keep) {
        struct unused *unused = (struct unused *)buffer;
        unused->next = pool.unused[class];
        pool.unused[class] = unused;
        pool.kept_bytes += room;
    }
    pthread_mutex_unlock(&pool.lock);
    if (!keep) free(buffer);
}

size_t buffers_out(void) {
    pthread_mutex_lock(&pool.lock);
    size_t out = pool.out_bytes;
    pthread_mutex_unlock(&pool.lock);
    return out;
}
