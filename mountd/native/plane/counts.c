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

struct slot {
    uint64_t handle; /* 0: free */
    int64_t open;
};

#define COUNTS_BYTES (COUNTS_SLOTS * sizeof(struct slot) + COUNTS_NAMED * sizeof(struct named_slot))

static struct {
    struct slot *slots; /* COUNTS_SLOTS of them; NULL: not attached */
    struct named_slot *named; /* COUNTS_NAMED, behind them */
    uint32_t *unused, *unused_named; /* stacks of free ones */
    uint32_t unused_count, unused_named_count;
    pthread_mutex_t lock; /* of the stacks */
} counts = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void find_unused(void) {
    counts.unused_count = counts.unused_named_count = 0;
    for (uint32_t slot = COUNTS_ALL; slot-- > 0;)
        if (!counts_handle(slot)) counts_free(slot);
}

int counts_attach(int fd) {
    int error = fd < 0 ? 0 : posix_fallocate(fd, 0, COUNTS_BYTES); /* or writing to it may kill us */
    if (error) return error;
    uint32_t *unused = malloc(COUNTS_ALL * sizeof *unused);
    if (!unused) return ENOMEM;
    char *memory = mmap(NULL, COUNTS_BYTES, PROT_READ | PROT_WRITE, fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        error = errno;
        free(unused);
        return error;
    }
    if (counts.slots) munmap(counts.slots, COUNTS_BYTES);
    free(counts.unused);
    counts.slots = (struct slot *)memory;
    counts.named = (struct named_slot *)(memory + COUNTS_SLOTS * sizeof(struct slot));
    counts.unused = unused;
    counts.unused_named = unused + COUNTS_SLOTS;
    find_unused();
    return 0;
}

static uint64_t *handle_at(uint32_t slot) {
    return slot < COUNTS_SLOTS ? &counts.slots[slot].handle : &counts.named[slot - COUNTS_SLOTS].handle;
}

static int64_t *open_at(uint32_t slot) {
    return slot < COUNTS_SLOTS ? &counts.slots[slot].open : &counts.named[slot - COUNTS_SLOTS].open;
}

int64_t counts_new(uint64_t handle) {
    pthread_mutex_lock(&counts.lock);
    int64_t slot = counts.slots && counts.unused_count ? (int64_t)counts.unused[--counts.unused_count] : -1;
    pthread_mutex_unlock(&counts.lock);
    if (slot < 0) return -1;
    counts.slots[slot].open = 0;
    __atomic_store_n(&counts.slots[slot].handle, handle, __ATOMIC_RELEASE);
    return slot;
}

int64_t counts_name(uint64_t leaf, uint64_t directory, const struct seen *seen, const char *name, size_t size) {
    pthread_mutex_lock(&counts.lock);
    int64_t slot = counts.slots && counts.unused_named_count ? (int64_t)counts.unused_named[--counts.unused_named_count] : -1;
    pthread_mutex_unlock(&counts.lock);
    if (slot < 0) return -1;
    struct named_slot *named = &counts.named[slot - COUNTS_SLOTS];
    named->open = 0;
    named->directory = directory;
    named->seen = *seen;
    named->name_size = (uint8_t)size;
    memcpy(named->name, name, size);
    __atomic_store_n(&named->handle, leaf, __ATOMIC_RELEASE);
    return slot;
}

const struct named_slot *counts_named(uint32_t slot) { return slot < COUNTS_SLOTS ? NULL : &counts.named[slot - COUNTS_SLOTS]; }

void counts_free(uint32_t slot) {
    __atomic_store_n(handle_at(slot), 0, __ATOMIC_RELEASE);
    pthread_mutex_lock(&counts.lock);
    if (slot < COUNTS_SLOTS)
        counts.unused[counts.unused_count++] = slot;
    else
        counts.unused_named[counts.unused_named_count++] = slot;
    pthread_mutex_unlock(&counts.lock);
}

int64_t counts_add(uint32_t slot, int64_t more) { return __atomic_add_fetch(open_at(slot), more, __ATOMIC_ACQ_REL); }

int64_t counts_open(uint32_t slot) { return __atomic_load_n(open_at(slot), __ATOMIC_ACQUIRE); }

uint64_t counts_handle(uint32_t slot) { return counts.slots ? *handle_at(slot) : 0; }
