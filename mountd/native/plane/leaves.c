/* Leaves: regular files with one name that Python has no node of. Their names and attributes lie here and nowhere else.
 *
 * A leaf is found by its directory and name, and by its id, which says in which shard it lies. Whoever answers from one
 * has the shard's lock for reading, so a leaf that was taken out is one that nobody answers from any more. The look-ups
 * that the kernel holds are counted here until the leaf is taken; one that the kernel does not hold stays until it is
 * swept. A part of the data plane, see plane.h. Asks nobody, and decides nothing.
 */
#include "plane.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_BUCKETS 8
#define SHARD_BITS 10
#define SHARDS LEAF_SHARDS /* so many that one of millions of leaves is swept, or grows, within a millisecond */
#define IDS_BITS 38  /* how many ids there are, see mountd/namespace/nodes/table.py */
#define KEPT_BITS 40 /* and of those that are made of the number of an object */

struct leaf {
    struct leaf *next_by_name, *next_by_id;
    uint64_t directory;
    struct leaf_facts facts;
    uint32_t lookups; /* atomic */
    uint8_t name_size;
    char name[];
};

static struct {
    pthread_rwlock_t lock;
    struct leaf **by_name, **by_id; /* as many buckets each */
    size_t bucket_count, count;
    uint64_t given; /* ids */
} shards[SHARDS];

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint64_t first_id, first_kept_id;
static int ended; /* nothing is answered any more; atomic */
static size_t leaf_count, held_count; /* all, and those that the kernel holds; atomic */
static unsigned hand;     /* the shard that is swept next */

static void make(void) {
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP); /* see table.c */
    for (int i = 0; i < SHARDS; i++) pthread_rwlock_init(&shards[i].lock, &attributes);
    pthread_rwlockattr_destroy(&attributes);
}

uint64_t leaves_key(uint64_t directory, const char *name, size_t size) { /* FNV-1a, and the finish of MurmurHash3 */
    uint64_t hash = UINT64_C(14695981039346656037) ^ directory;
    for (size_t i = 0; i < size; i++) hash = (hash ^ (unsigned char)name[i]) * UINT64_C(1099511628211);
    hash ^= hash >> 33;
    hash *= UINT64_C(0xff51afd7ed558ccd);
    return hash ^ hash >> 33;
}

static unsigned shard_of_id(uint64_t id) { return (unsigned)(id % SHARDS); }

static int is_kept(uint64_t id) { return first_kept_id && id >= first_kept_id && id - first_kept_id < UINT64_C(1) << KEPT_BITS; }

int leaves_is_id(uint64_t id) {
    return is_kept(id) || (first_id && id >= first_id && id - first_id < UINT64_C(1) << IDS_BITS);
}

static struct leaf **place_of_name(unsigned shard, uint64_t hash, uint64_t directory, const char *name, size_t size) {
    if (!shards[shard].bucket_count) return NULL;
    struct leaf **at = &shards[shard].by_name[hash / SHARDS % shards[shard].bucket_count];
    while (*at && ((*at)->directory != directory || (*at)->name_size != size || memcmp((*at)->name, name, size)))
        at = &(*at)->next_by_name;
    return at;
}

static struct leaf **place_of_id(unsigned shard, uint64_t id) {
    if (!shards[shard].bucket_count) return NULL;
    struct leaf **at = &shards[shard].by_id[id / SHARDS % shards[shard].bucket_count];
    while (*at && (*at)->facts.id != id) at = &(*at)->next_by_id;
    return at;
}

static int grow(unsigned shard) {
    size_t before = shards[shard].bucket_count, count = before ? before * 2 : FIRST_BUCKETS;
    struct leaf **by_name = calloc(count, sizeof *by_name), **by_id = calloc(count, sizeof *by_id);
    if (!by_name || !by_id) {
        free(by_name);
        free(by_id);
        return ENOMEM;
    }
    for (size_t i = 0; i < before; i++) {
        for (struct leaf *leaf = shards[shard].by_name[i], *next; leaf; leaf = next) {
            next = leaf->next_by_name;
            uint64_t hash = leaves_key(leaf->directory, leaf->name, leaf->name_size);
            struct leaf **at = &by_name[hash / SHARDS % count];
            leaf->next_by_name = *at;
            *at = leaf;
            at = &by_id[leaf->facts.id / SHARDS % count];
            leaf->next_by_id = *at;
            *at = leaf;
        }
    }
    free(shards[shard].by_name);
    free(shards[shard].by_id);
    shards[shard].by_name = by_name;
    shards[shard].by_id = by_id;
    shards[shard].bucket_count = count;
    return 0;
}

static int lock_to_change(unsigned shard, int wait) {
    pthread_once(&once, make);
    if (!pthread_rwlock_trywrlock(&shards[shard].lock)) return 0;
    if (!wait) return EBUSY;
    pthread_rwlock_wrlock(&shards[shard].lock);
    return 0;
}

static void unlock(unsigned shard) { pthread_rwlock_unlock(&shards[shard].lock); }

/* Takes it out of both chains. With the lock. */
static struct leaf *unlink_leaf(unsigned shard, struct leaf *leaf) {
    uint64_t hash = leaves_key(leaf->directory, leaf->name, leaf->name_size);
    struct leaf **by_name = place_of_name(shard, hash, leaf->directory, leaf->name, leaf->name_size);
    struct leaf **by_id = place_of_id(shard, leaf->facts.id);
    *by_name = leaf->next_by_name;
    *by_id = leaf->next_by_id;
    shards[shard].count--;
    __atomic_sub_fetch(&leaf_count, 1, __ATOMIC_RELAXED);
    if (leaf->lookups) __atomic_sub_fetch(&held_count, 1, __ATOMIC_RELAXED);
    return leaf;
}

/* ---- Python's side ------------------------------------------------------------------------------------------------ */

void leaves_begin(uint64_t first, uint64_t first_kept) {
    for (unsigned shard = 0; shard < SHARDS; shard++) {
        lock_to_change(shard, 1);
        for (size_t i = 0; i < shards[shard].bucket_count; i++)
            while (shards[shard].by_name[i]) free(unlink_leaf(shard, shards[shard].by_name[i]));
        shards[shard].given = 0;
        unlock(shard);
    }
    first_id = first;
    first_kept_id = first_kept;
    __atomic_store_n(&ended, 0, __ATOMIC_RELEASE);
}

void leaves_end(void) { __atomic_store_n(&ended, 1, __ATOMIC_RELEASE); }

int leaves_are_ended(void) { return __atomic_load_n(&ended, __ATOMIC_ACQUIRE); }

static int same_version(const struct seen *one, const struct seen *other) {
    return one->inode == other->inode && one->size == other->size && one->seconds[1] == other->seconds[1] &&
           one->parts[1] == other->parts[1] && one->seconds[2] == other->seconds[2] && one->parts[2] == other->parts[2];
}

static int put(uint64_t directory, const char *name, size_t size, const struct seen *seen, uint64_t object, int64_t until_ns,
               int wait, uint64_t *id) {
    if (!size || size > UINT8_MAX || !first_id || object >> (KEPT_BITS - SHARD_BITS)) return EINVAL;
    if (object && !first_kept_id) object = 0;
    uint64_t hash = leaves_key(directory, name, size);
    unsigned shard = (unsigned)(hash % SHARDS);
    int error = lock_to_change(shard, wait);
    if (error) return error;
    struct leaf **at = place_of_name(shard, hash, directory, name, size);
    if (at && *at) {
        struct leaf *leaf = *at;
        error = same_version(&leaf->facts.seen, seen) ? EEXIST : ESTALE;
        if (error == EEXIST) {
            uint32_t flags = leaf->facts.seen.flags | seen->flags;
            leaf->facts.seen = *seen;
            leaf->facts.seen.flags = flags;
            leaf->facts.until_ns = until_ns;
        }
        *id = leaf->facts.id;
        unlock(shard);
        return error;
    }
    struct leaf *leaf = malloc(sizeof *leaf + size);
    /* Where there is no memory for more buckets the chains grow longer. */
    int room = shards[shard].count < shards[shard].bucket_count || !grow(shard) || shards[shard].bucket_count;
    if (leaf && room && shards[shard].given < UINT64_C(1) << (IDS_BITS - SHARD_BITS)) {
        memset(leaf, 0, sizeof *leaf);
        leaf->directory = directory;
        leaf->facts.id = first_kept_id + object * SHARDS + shard;
        at = object ? place_of_id(shard, leaf->facts.id) : NULL;
        if (!at || *at) /* of none; or it is seen in two directories, as where one is mounted below another */
            leaf->facts.id = first_id + shards[shard].given++ * SHARDS + shard;
        *id = leaf->facts.id;
        leaf->facts.until_ns = until_ns;
        leaf->facts.seen = *seen;
        leaf->name_size = (uint8_t)size;
        memcpy(leaf->name, name, size);
        at = place_of_name(shard, hash, directory, name, size);
        *at = leaf;
        struct leaf **by_id = place_of_id(shard, leaf->facts.id);
        *by_id = leaf;
        shards[shard].count++;
        __atomic_add_fetch(&leaf_count, 1, __ATOMIC_RELAXED);
    } else {
        free(leaf);
        error = ENOMEM;
    }
    unlock(shard);
    return error;
}

int leaves_put(uint64_t directory, const char *name, size_t size, const struct seen *seen, uint64_t object, int64_t until_ns,
               int wait) {
    uint64_t id;
    return put(directory, name, size, seen, object, until_ns, wait, &id);
}

int leaves_put_id(uint64_t directory, const char *name, size_t size, const struct seen *seen, int64_t until_ns, uint64_t *id) {
    return put(directory, name, size, seen, 0, until_ns, 1, id);
}

static int took(struct leaf *leaf, struct leaf_taken *taken) {
    taken->directory = leaf->directory;
    taken->facts = leaf->facts;
    taken->lookups = leaf->lookups;
    taken->name_size = leaf->name_size;
    memcpy(taken->name, leaf->name, leaf->name_size);
    free(leaf);
    return 0;
}

int leaves_take(uint64_t directory, const char *name, size_t size, int wait, struct leaf_taken *taken) {
    uint64_t hash = leaves_key(directory, name, size);
    unsigned shard = (unsigned)(hash % SHARDS);
    int error = lock_to_change(shard, wait);
    if (error) return error;
    struct leaf **at = place_of_name(shard, hash, directory, name, size);
    struct leaf *leaf = at && *at ? unlink_leaf(shard, *at) : NULL;
    unlock(shard);
    return leaf ? took(leaf, taken) : ENOENT;
}

int leaves_take_id(uint64_t id, int wait, struct leaf_taken *taken) {
    if (!leaves_is_id(id)) return ENOENT;
    unsigned shard = shard_of_id(id);
    int error = lock_to_change(shard, wait);
    if (error) return error;
    struct leaf **at = place_of_id(shard, id);
    struct leaf *leaf = at && *at ? unlink_leaf(shard, *at) : NULL;
    unlock(shard);
    return leaf ? took(leaf, taken) : ENOENT;
}

size_t leaves_sweep(int64_t now_ns, size_t unheld_at_most, uint64_t *directories, size_t room, void (*end)(uint64_t id)) {
    unsigned shard = hand++ % SHARDS;
    size_t count = 0, unheld = leaves_count() - leaves_held();
    lock_to_change(shard, 1);
    for (size_t i = 0; i < shards[shard].bucket_count && count < room; i++) {
        struct leaf *next;
        for (struct leaf *leaf = shards[shard].by_name[i]; leaf && count < room; leaf = next) {
            next = leaf->next_by_name;
            if (leaf->lookups || (leaf->facts.until_ns > now_ns && unheld <= unheld_at_most)) continue;
            directories[count++] = leaf->directory;
            end(leaf->facts.id);
            free(unlink_leaf(shard, leaf));
            unheld--;
        }
    }
    unlock(shard);
    return count;
}

int leaves_expire(unsigned shard, const uint64_t *directories, size_t count, struct name_run *held) {
    int error = 0;
    lock_to_change(shard, 1);
    for (size_t i = 0; i < shards[shard].bucket_count; i++)
        for (struct leaf *leaf = shards[shard].by_name[i]; leaf; leaf = leaf->next_by_name) {
            if (!ids_have(directories, count, leaf->directory)) continue;
            leaf->facts.until_ns = 0;
            if (leaf->lookups && names_add(held, leaf->directory, leaf->name, leaf->name_size)) error = ENOMEM;
        }
    unlock(shard);
    return error;
}

size_t leaves_count(void) { return __atomic_load_n(&leaf_count, __ATOMIC_RELAXED); }

size_t leaves_held(void) { return __atomic_load_n(&held_count, __ATOMIC_RELAXED); }

/* ---- answers ------------------------------------------------------------------------------------------------------ */

static void refer(struct leaf *leaf, uint32_t more) {
    if (__atomic_fetch_add(&leaf->lookups, more, __ATOMIC_RELAXED) == 0) __atomic_add_fetch(&held_count, 1, __ATOMIC_RELAXED);
}

static void unrefer(struct leaf *leaf, uint32_t fewer) {
    uint32_t now = __atomic_load_n(&leaf->lookups, __ATOMIC_RELAXED), left;
    do left = now > fewer ? now - fewer : 0;
    while (!__atomic_compare_exchange_n(&leaf->lookups, &now, left, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    if (now && !left) __atomic_sub_fetch(&held_count, 1, __ATOMIC_RELAXED);
}

int leaves_look_up(uint64_t directory, const char *name, size_t size, int64_t now_ns,
                   int (*reply)(const struct leaf_facts *, void *), void *context) {
    if (!leaves_count()) return 0;
    uint64_t hash = leaves_key(directory, name, size);
    unsigned shard = (unsigned)(hash % SHARDS);
    lock_to_answer(&shards[shard].lock);
    struct leaf **at = place_of_name(shard, hash, directory, name, size), *leaf = at ? *at : NULL;
    int found = leaf && leaf->facts.until_ns > now_ns && (is_kept(leaf->facts.id) || !__atomic_load_n(&ended, __ATOMIC_ACQUIRE));
    if (found) {
        refer(leaf, 1); /* before the reply: its FORGET may be read by another thread at once */
        if (reply(&leaf->facts, context)) unrefer(leaf, 1);
    }
    unlock(shard);
    return found;
}

/* With the lock for reading; NULL: nothing is locked. */
static struct leaf *hold_id(uint64_t id) {
    if (!leaves_is_id(id)) return NULL;
    unsigned shard = shard_of_id(id);
    lock_to_answer(&shards[shard].lock);
    struct leaf **at = place_of_id(shard, id), *leaf = at ? *at : NULL;
    if (!leaf) unlock(shard);
    return leaf;
}

int leaves_attributes(uint64_t id, int64_t now_ns, int (*reply)(const struct leaf_facts *, void *), void *context) {
    struct leaf *leaf = hold_id(id);
    if (!leaf) return 0;
    int good = leaf->facts.until_ns > now_ns && (leaf->facts.seen.size || !__atomic_load_n(&ended, __ATOMIC_ACQUIRE));
    if (good) reply(&leaf->facts, context);
    unlock(shard_of_id(id));
    return good;
}

int leaves_forget(uint64_t id, uint64_t count, int *is_held) {
    struct leaf *leaf = hold_id(id);
    if (!leaf) return 0;
    unrefer(leaf, count > UINT32_MAX ? UINT32_MAX : (uint32_t)count);
    *is_held = __atomic_load_n(&leaf->lookups, __ATOMIC_RELAXED) != 0;
    unlock(shard_of_id(id));
    return 1;
}

uint64_t leaves_id(uint64_t directory, const char *name, size_t size) {
    uint64_t hash = leaves_key(directory, name, size), id;
    unsigned shard = (unsigned)(hash % SHARDS);
    pthread_once(&once, make);
    lock_to_answer(&shards[shard].lock);
    struct leaf **at = place_of_name(shard, hash, directory, name, size);
    id = at && *at ? (*at)->facts.id : 0;
    unlock(shard);
    return id;
}

int leaves_place(uint64_t id, int64_t now_ns, struct leaf_place *place) {
    struct leaf *leaf = hold_id(id);
    if (!leaf) return 0;
    int good = leaf->facts.until_ns > now_ns;
    place->directory = leaf->directory;
    place->seen = leaf->facts.seen;
    place->name_size = leaf->name_size;
    memcpy(place->name, leaf->name, leaf->name_size);
    place->name[leaf->name_size] = 0;
    unlock(shard_of_id(id));
    return good;
}

uint64_t leaves_object(uint64_t id) { return is_kept(id) ? (id - first_kept_id) / SHARDS : 0; }

int leaves_seen(uint64_t directory, const char *name, size_t size, int64_t now_ns, struct seen *seen) {
    if (!leaves_count()) return 0;
    uint64_t hash = leaves_key(directory, name, size);
    unsigned shard = (unsigned)(hash % SHARDS);
    lock_to_answer(&shards[shard].lock);
    struct leaf **at = place_of_name(shard, hash, directory, name, size);
    int good = at && *at && (*at)->facts.until_ns > now_ns;
    if (good) *seen = (*at)->facts.seen;
    unlock(shard);
    return good;
}

int leaves_knows(uint64_t directory, const char *name, size_t size, int64_t now_ns) {
    if (!leaves_count()) return 0;
    uint64_t hash = leaves_key(directory, name, size);
    unsigned shard = (unsigned)(hash % SHARDS);
    lock_to_answer(&shards[shard].lock);
    struct leaf **at = place_of_name(shard, hash, directory, name, size);
    int knows = at && *at && (*at)->facts.until_ns > now_ns &&
                (is_kept((*at)->facts.id) || !__atomic_load_n(&ended, __ATOMIC_ACQUIRE));
    unlock(shard);
    return knows;
}
