/* The table: nodes whose opens are answered without Python, and how.
 *
 * Entries lie in shards, each with a lock of its own. An answer is given with the lock held for reading, so that whoever
 * takes an entry out knows: nobody answers with it any more, and every handle that was given out is counted. A part of
 * the data plane, see plane.h. Decides nothing.
 */
#include "plane.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHARDS 64          /* threads that answer at a time are few */
#define FIRST_BUCKETS 16   /* a shard's; doubled when there are as many entries */

struct shard {
    pthread_rwlock_t lock;
    struct opens **buckets;
    size_t bucket_count, count;
};

static struct shard shards[SHARDS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_locks(void) {
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
    /* Who takes an entry out holds up Python, and with it everybody: it waits for answers under way, not for later ones. */
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    for (int i = 0; i < SHARDS; i++) pthread_rwlock_init(&shards[i].lock, &attributes);
    pthread_rwlockattr_destroy(&attributes);
}

static uint64_t mixed(uint64_t node) { /* inode numbers follow one another, and repeat in their low bits */
    node ^= node >> 32;
    node *= UINT64_C(0x9E3779B97F4A7C15);
    return node ^ node >> 29;
}

static struct shard *shard_of(uint64_t node) {
    pthread_once(&once, make_locks);
    return &shards[mixed(node) % SHARDS];
}

static struct opens **slot(struct shard *shard, uint64_t node) {
    if (!shard->bucket_count) return NULL;
    struct opens **at = &shard->buckets[mixed(node) / SHARDS % shard->bucket_count];
    while (*at && (*at)->node != node) at = &(*at)->next;
    return at;
}

static struct opens *find(struct shard *shard, uint64_t node) {
    struct opens **at = slot(shard, node);
    return at ? *at : NULL;
}

static int grow(struct shard *shard) {
    size_t count = shard->bucket_count ? shard->bucket_count * 2 : FIRST_BUCKETS;
    struct opens **buckets = calloc(count, sizeof *buckets);
    if (!buckets) return ENOMEM;
    for (size_t i = 0; i < shard->bucket_count; i++) {
        for (struct opens *entry = shard->buckets[i], *next; entry; entry = next) {
            next = entry->next;
            struct opens **at = &buckets[mixed(entry->node) / SHARDS % count];
            entry->next = *at;
            *at = entry;
        }
    }
    free(shard->buckets);
    shard->buckets = buckets;
    shard->bucket_count = count;
    return 0;
}

int opens_put(const struct opens *entry) {
    struct opens *copy = malloc(sizeof *copy);
    if (!copy) return ENOMEM;
    *copy = *entry;
    struct shard *shard = shard_of(entry->node);
    pthread_rwlock_wrlock(&shard->lock);
    int error = 0;
    if (find(shard, entry->node)) error = EEXIST;
    /* Where there is no memory for more buckets the chains grow longer. */
    if (!error && shard->count >= shard->bucket_count && grow(shard) && !shard->bucket_count) error = ENOMEM;
    if (!error) {
        struct opens **at = slot(shard, entry->node);
        copy->next = NULL; /* of a chain `slot` gives the end, where the node is not in it */
        *at = copy;
        shard->count++;
    }
    pthread_rwlock_unlock(&shard->lock);
    if (error) free(copy);
    return error;
}

int opens_take(uint64_t node, struct opens *taken) {
    struct shard *shard = shard_of(node);
    pthread_rwlock_wrlock(&shard->lock);
    struct opens **at = slot(shard, node), *entry = at ? *at : NULL;
    if (entry) {
        *at = entry->next;
        shard->count--;
        *taken = *entry;
    }
    pthread_rwlock_unlock(&shard->lock);
    if (!entry) return 0;
    if (entry->object_fd >= 0) close(entry->object_fd);
    free(entry);
    return 1;
}

static int is_as_left(const struct opens *entry) {
    if (entry->object_fd < 0) return 1;
    struct stat now;
    if (fstat(entry->object_fd, &now)) return 0;
    return now.st_ino == entry->stamp.inode && (uint64_t)now.st_size == entry->stamp.size &&
           now.st_ctim.tv_sec * INT64_C(1000000000) + now.st_ctim.tv_nsec == entry->stamp.ctime_ns;
}

/* `reply` returns 0 if the kernel has taken the handle. */
int opens_open(uint64_t node, int64_t now_ns, int (*reply)(const struct opens *, void *), void *context) {
    struct shard *shard = shard_of(node);
    pthread_rwlock_rdlock(&shard->lock);
    struct opens *entry = find(shard, node);
    int answered = entry && now_ns < entry->until_ns && is_as_left(entry);
    if (answered) {
        /* Before the reply: its RELEASE may be read by another thread at once. */
        counts_add(entry->slot, 1);
        __atomic_add_fetch(&entry->counts.opened, 1, __ATOMIC_RELAXED);
        __atomic_store_n(&entry->counts.last_ns, now_ns, __ATOMIC_RELAXED);
        if (reply(entry, context)) counts_add(entry->slot, -1);
    }
    pthread_rwlock_unlock(&shard->lock);
    return answered;
}

int opens_release(uint64_t node, uint64_t handle, void (*reply)(void *), void *context) {
    struct shard *shard = shard_of(node);
    pthread_rwlock_rdlock(&shard->lock);
    struct opens *entry = find(shard, node);
    int ours = entry && entry->handle == handle;
    if (ours) {
        reply(context); /* first: a daemon that is killed here leaves one too many, which costs nobody any bytes */
        counts_add(entry->slot, -1);
    }
    pthread_rwlock_unlock(&shard->lock);
    return ours;
}

size_t opens_count(void) {
    size_t count = 0;
    pthread_once(&once, make_locks);
    for (int i = 0; i < SHARDS; i++) {
        pthread_rwlock_rdlock(&shards[i].lock);
        count += shards[i].count;
        pthread_rwlock_unlock(&shards[i].lock);
    }
    return count;
}
