/* Which node of the job owns a small file, as policies/cluster/placement.py says: a file of another one is Python's, who
 * asks that node before the source. A part of the pipeline, see fetch.h.
 */
#include "fetch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define LONGEST_PATH 4096
#define NOBODY (-1) /* each may keep it. What is below no cache has room for: it is Python's, who does not store it */

static struct {
    pthread_rwlock_t lock;
    int32_t *owners; /* NULL: there is no other node */
    int32_t own;
} placement = {.lock = PTHREAD_RWLOCK_INITIALIZER};

int placement_set(const int32_t *owners, int32_t own) {
    int32_t *copy = owners ? malloc(PLACEMENT_SLOTS * sizeof *copy) : NULL;
    if (owners && !copy) return 0;
    if (owners) memcpy(copy, owners, PLACEMENT_SLOTS * sizeof *copy);
    pthread_rwlock_wrlock(&placement.lock);
    int32_t *before = placement.owners;
    placement.owners = copy;
    placement.own = own;
    pthread_rwlock_unlock(&placement.lock);
    free(before);
    return 1;
}

/* The finalizer of SplitMix64, of the key of chunk 0. */
static uint64_t key_of(uint64_t hash) {
    uint64_t key = hash + UINT64_C(0x9E3779B97F4A7C15);
    key = (key ^ key >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    key = (key ^ key >> 27) * UINT64_C(0x94D049BB133111EB);
    return key ^ key >> 31;
}

int placement_is_remote(const struct delegated *delegated, const char *name, size_t size) {
    char path[LONGEST_PATH + 1 + UINT8_MAX];
    int is_remote = 0;
    pthread_rwlock_rdlock(&placement.lock);
    if (placement.owners && delegated->prefix_size <= LONGEST_PATH) {
        if (delegated->prefix_size) memcpy(path, delegated->prefix, delegated->prefix_size);
        memcpy(path + delegated->prefix_size, name, size);
        uint64_t key = key_of(checksum_of(path, delegated->prefix_size + size));
        int32_t owner = placement.owners[key >> (64 - PLACEMENT_BITS)];
        is_remote = owner != placement.own && owner != NOBODY;
    } else if (placement.owners) {
        is_remote = 1; /* Python finds out */
    }
    pthread_rwlock_unlock(&placement.lock);
    return is_remote;
}
