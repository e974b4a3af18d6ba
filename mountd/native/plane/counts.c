/* How many have each handle open that the threads give out: in memory that outlives the daemon, as a memfd of the keeper.
 *
 * The next daemon of the mount finds there what the kernel still has open. A daemon that is killed between a count and
 * its reply leaves a count too high, never one too low: a file is then kept for nobody. A part of the data plane, see
 * plane.h. Slots are given out and back under the GIL; counts change in all threads.
 */
#include "plane.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct counted {
    uint64_t handle; /* 0: free */
    int64_t open;
};

static struct {
    struct counted *counters; /* COUNTS_AT_MOST of them; NULL: not attached */
    uint32_t *unused;      /* a stack of free ones */
    uint32_t unused_count;
    pthread_mutex_t lock; /* of the stack */
} counts = {.lock = PTHREAD_MUTEX_INITIALIZER};

int counts_attach(int fd) {
    int error = fd < 0 ? 0 : posix_fallocate(fd, 0, COUNTS_BYTES); /* or writing to it may kill us */
    if (error) return error;
    uint32_t *unused = malloc(COUNTS_AT_MOST * sizeof *unused);
    if (!unused) return ENOMEM;
    void *memory = mmap(NULL, COUNTS_BYTES, PROT_READ | PROT_WRITE, fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        error = errno;
        free(unused);
        return error;
    }
    if (counts.counters) munmap(counts.counters, COUNTS_BYTES);
    free(counts.unused);
    counts.counters = memory;
    counts.unused = unused;
    counts.unused_count = 0;
    for (uint32_t counter = COUNTS_AT_MOST; counter-- > 0;)
        if (!counts_handle(counter)) counts_free(counter);
    return 0;
}

int64_t counts_new(uint64_t handle) {
    pthread_mutex_lock(&counts.lock);
    int64_t counter = counts.counters && counts.unused_count ? (int64_t)counts.unused[--counts.unused_count] : -1;
    pthread_mutex_unlock(&counts.lock);
    if (counter < 0) return -1;
    counts.counters[counter].open = 0;
    __atomic_store_n(&counts.counters[counter].handle, handle, __ATOMIC_RELEASE);
    return counter;
}

void counts_free(uint32_t counter) {
    __atomic_store_n(&counts.counters[counter].handle, 0, __ATOMIC_RELEASE);
    pthread_mutex_lock(&counts.lock);
    counts.unused[counts.unused_count++] = counter;
    pthread_mutex_unlock(&counts.lock);
}

int64_t counts_add(uint32_t counter, int64_t more) { return __atomic_add_fetch(&counts.counters[counter].open, more, __ATOMIC_ACQ_REL); }

int64_t counts_open(uint32_t counter) { return __atomic_load_n(&counts.counters[counter].open, __ATOMIC_ACQUIRE); }

uint64_t counts_handle(uint32_t counter) { return counts.counters ? counts.counters[counter].handle : 0; }
