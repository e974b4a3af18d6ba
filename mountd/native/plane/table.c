/* A table by node id, for threads that answer from its entries and for Python, which puts them in and takes them out.
 *
 * Entries lie in shards, each with a lock of its own. An answer is given with the lock held for reading, so that whoever
 * takes an entry out knows: nobody answers with it any more. A part of the data plane, see plane.h. Knows nothing of what
 * the entries say.
 */
#include "plane.h"

#include <errno.h>
#include <stdlib.h>

#define FIRST_BUCKETS 16 /* a shard's; doubled when there are as many entries */

int64_t lock_wait_ns;

void lock_to_answer(pthread_rwlock_t *lock) {
    if (!pthread_rwlock_tryrdlock(lock)) return;
    int64_t began_ns = monotonic_ns();
    pthread_rwlock_rdlock(lock);
    __atomic_add_fetch(&lock_wait_ns, monotonic_ns() - began_ns, __ATOMIC_RELAXED);
}

static uint64_t mixed(uint64_t node) { /* inode numbers follow one another, and repeat in their low bits */
    node ^= node >> 32;
    node *= UINT64_C(0x9E3779B97F4A7C15);
    return node ^ node >> 29;
}

static struct shard *shard_of(struct table *table, uint64_t node) { return &table->shards[mixed(node) % TABLE_SHARDS]; }

/* Where the pointer to the entry is, or the end of its chain; NULL: there are no buckets yet. */
static struct entry **place(struct shard *shard, uint64_t node) {
    if (!shard->bucket_count) return NULL;
    struct entry **at = &shard->buckets[mixed(node) / TABLE_SHARDS % shard->bucket_count];
    while (*at && (*at)->node != node) at = &(*at)->next;
    return at;
}

static int grow(struct shard *shard) {
    size_t count = shard->bucket_count ? shard->bucket_count * 2 : FIRST_BUCKETS;
    struct entry **buckets = calloc(count, sizeof *buckets);
    if (!buckets) return ENOMEM;
    for (size_t i = 0; i < shard->bucket_count; i++) {
        for (struct entry *entry = shard->buckets[i], *next; entry; entry = next) {
            next = entry->next;
            struct entry **at = &buckets[mixed(entry->node) / TABLE_SHARDS % count];
            entry->next = *at;
            *at = entry;
        }
    }
    free(shard->buckets);
    shard->buckets = buckets;
    shard->bucket_count = count;
    return 0;
}

int table_put(struct table *table, struct entry *entry) {
    struct shard *shard = shard_of(table, entry->node);
    int error = 0;
    pthread_rwlock_wrlock(&shard->lock);
    /* Where there is no memory for more buckets the chains grow longer. */
    if (shard->count >= shard->bucket_count && grow(shard) && !shard->bucket_count) error = ENOMEM;
    if (!error) {
        struct entry **at = place(shard, entry->node);
        if (*at) {
            error = EEXIST;
        } else {
            entry->next = NULL;
            *at = entry;
            shard->count++;
        }
    }
    pthread_rwlock_unlock(&shard->lock);
    return error;
}

int table_take(struct table *table, uint64_t node, struct entry **taken) {
    struct shard *shard = shard_of(table, node);
    pthread_rwlock_wrlock(&shard->lock);
    struct entry **at = place(shard, node), *entry = at ? *at : NULL;
    if (entry) {
        *at = entry->next;
        *taken = entry;
        shard->count--;
    }
    pthread_rwlock_unlock(&shard->lock);
    return entry ? 0 : ENOENT;
}

struct entry *table_hold(struct table *table, uint64_t node, struct shard **held) {
    struct shard *shard = shard_of(table, node);
    lock_to_answer(&shard->lock);
    struct entry **at = place(shard, node), *entry = at ? *at : NULL;
    if (entry)
        *held = shard;
    else
        pthread_rwlock_unlock(&shard->lock);
    return entry;
}

void table_let_go(struct shard *held) { pthread_rwlock_unlock(&held->lock); }

int table_has(struct table *table, uint64_t node) {
    struct shard *held;
    if (!table_hold(table, node, &held)) return 0;
    table_let_go(held);
    return 1;
}

size_t table_count(struct table *table) {
    size_t count = 0;
    for (int i = 0; i < TABLE_SHARDS; i++) {
        pthread_rwlock_rdlock(&table->shards[i].lock);
        count += table->shards[i].count;
        pthread_rwlock_unlock(&table->shards[i].lock);
    }
    return count;
}
