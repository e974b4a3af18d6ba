/* Leaves: regular files that Python has no node of, each hard link one by itself. Their names and attributes lie here and
 * nowhere else, in memory that the next daemon attaches (slots.c).
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
#define IDS_BITS 38  /* how many ids one daemon has, see mountd/namespace/nodes/table.py */

static struct {
    pthread_rwlock_t lock;
    struct slot **by_name, **by_id; /* as many buckets each */
    size_t bucket_count, count;
    uint64_t given; /* ids */
} shards[SHARDS] = {[0 ... SHARDS - 1] = {.lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP}}; /* see table.c */

static uint64_t first_id;
static int stateless; /* opens do not reach us; atomic */
static size_t leaf_count, held_count, open_count; /* all, those that the kernel holds, and those that are open; atomic */
static unsigned hand;     /* the shard that is swept next */

static unsigned shard_of_id(uint64_t id) { return (unsigned)(id % SHARDS); }

/* Of this daemon, or of one before: their ids differ in bits above these. */
int leaves_is_id(uint64_t id) {
    const uint64_t of_daemon = UINT64_C(1) << (IDS_BITS + 2), below = id & (of_daemon - 1), first = first_id & (of_daemon - 1);
    return first_id && id >> 62 == first_id >> 62 && below >= first && below - first < UINT64_C(1) << IDS_BITS;
}

static struct slot **place_of_name(unsigned shard, uint64_t hash, uint64_t directory, const char *name, size_t size) {
    if (!shards[shard].bucket_count) return NULL;
    struct slot **at = &shards[shard].by_name[hash / SHARDS % shards[shard].bucket_count];
    while (*at && ((*at)->directory != directory || (*at)->name_size != size || memcmp((*at)->name, name, size)))
        at = &(*at)->next_by_name;
    return at;
}

static struct slot **place_of_id(unsigned shard, uint64_t id) {
    if (!shards[shard].bucket_count) return NULL;
    struct slot **at = &shards[shard].by_id[id / SHARDS % shards[shard].bucket_count];
    while (*at && (*at)->id != id) at = &(*at)->next_by_id;
    return at;
}

static int grow_to(unsigned shard, size_t count) {
    size_t before = shards[shard].bucket_count;
    struct slot **by_name = calloc(count, sizeof *by_name), **by_id = calloc(count, sizeof *by_id);
    if (!by_name || !by_id) {
        free(by_name);
        free(by_id);
        return ENOMEM;
    }
    for (size_t i = 0; i < before; i++) {
        for (struct slot *leaf = shards[shard].by_name[i], *next; leaf; leaf = next) {
            next = leaf->next_by_name;
            uint64_t hash = leaves_key(leaf->directory, leaf->name, leaf->name_size);
            struct slot **at = &by_name[hash / SHARDS % count];
            leaf->next_by_name = *at;
            *at = leaf;
            at = &by_id[leaf->id / SHARDS % count];
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

/* With the lock: one more has a bucket. Where there is no memory for more of them the chains grow longer. */
static int has_buckets(unsigned shard) {
    size_t before = shards[shard].bucket_count;
    return shards[shard].count < before || !grow_to(shard, before ? before * 2 : FIRST_BUCKETS) || before;
}

static void lock_to_change(unsigned shard) { pthread_rwlock_wrlock(&shards[shard].lock); }
static void unlock(unsigned shard) { pthread_rwlock_unlock(&shards[shard].lock); }

/* With the lock, and with buckets. */
static void link_leaf(unsigned shard, uint64_t hash, struct slot *leaf) {
    struct slot **by_name = &shards[shard].by_name[hash / SHARDS % shards[shard].bucket_count];
    struct slot **by_id = &shards[shard].by_id[leaf->id / SHARDS % shards[shard].bucket_count];
    leaf->next_by_name = *by_name;
    *by_name = leaf;
    leaf->next_by_id = *by_id;
    *by_id = leaf;
    shards[shard].count++;
    __atomic_add_fetch(&leaf_count, 1, __ATOMIC_RELAXED);
    if (leaf->lookups) __atomic_add_fetch(&held_count, 1, __ATOMIC_RELAXED);
    if (leaf->opens) __atomic_add_fetch(&open_count, 1, __ATOMIC_RELAXED);
}

/* Takes it out of both chains. With the lock. */
static struct slot *unlink_leaf(unsigned shard, struct slot *leaf) {
    uint64_t hash = leaves_key(leaf->directory, leaf->name, leaf->name_size);
    struct slot **by_name = place_of_name(shard, hash, leaf->directory, leaf->name, leaf->name_size);
    struct slot **by_id = place_of_id(shard, leaf->id);
    *by_name = leaf->next_by_name;
    *by_id = leaf->next_by_id;
    shards[shard].count--;
    __atomic_sub_fetch(&leaf_count, 1, __ATOMIC_RELAXED);
    if (leaf->lookups) __atomic_sub_fetch(&held_count, 1, __ATOMIC_RELAXED);
    return leaf;
}

/* ---- Python's side ------------------------------------------------------------------------------------------------ */

static void unlink_all(int are_freed) {
    for (unsigned shard = 0; shard < SHARDS; shard++) {
        lock_to_change(shard);
        for (size_t i = 0; i < shards[shard].bucket_count; i++)
            while (shards[shard].by_name[i]) {
                struct slot *leaf = unlink_leaf(shard, shards[shard].by_name[i]);
                if (are_freed) slots_free(leaf);
            }
        free(shards[shard].by_name);
        free(shards[shard].by_id);
        shards[shard].by_name = shards[shard].by_id = NULL;
        shards[shard].bucket_count = shards[shard].given = 0;
        unlock(shard);
    }
    __atomic_store_n(&open_count, 0, __ATOMIC_RELAXED);
}

void leaves_begin(uint64_t first) {
    unlink_all(1);
    first_id = first;
    __atomic_store_n(&stateless, 0, __ATOMIC_RELEASE);
}

static int (*note_attached)(uint64_t directory);

static int found(struct slot *leaf) {
    uint64_t hash = leaves_key(leaf->directory, leaf->name, leaf->name_size);
    unsigned shard = (unsigned)(hash % SHARDS);
    lock_to_change(shard);
    int is_new = has_buckets(shard) && shard_of_id(leaf->id) == shard && !*place_of_id(shard, leaf->id) &&
                 !*place_of_name(shard, hash, leaf->directory, leaf->name, leaf->name_size) && note_attached(leaf->directory);
    if (is_new) link_leaf(shard, hash, leaf);
    uint64_t given = (leaf->id - first_id) / SHARDS; /* by an earlier daemon with the same ids, as tests have it */
    if (is_new && given < UINT64_C(1) << (IDS_BITS - SHARD_BITS) && shards[shard].given <= given) shards[shard].given = given + 1;
    unlock(shard);
    return is_new;
}

/* Doubled again and again, chains of ten million cost most of the time in which nobody is answered. */
static void make_room(size_t expected) {
    size_t count = FIRST_BUCKETS;
    while (count * SHARDS < expected) count *= 2;
    for (unsigned shard = 0; count > FIRST_BUCKETS && shard < SHARDS; shard++) grow_to(shard, count); /* or later */
}

int leaves_attach(int fd, uint64_t terms, int (*note)(uint64_t directory)) {
    unlink_all(0);
    note_attached = note;
    return slots_attach(fd, terms, make_room, found);
}

void leaves_become_stateless(void) { __atomic_store_n(&stateless, 1, __ATOMIC_RELEASE); }
int leaves_are_stateless(void) { return __atomic_load_n(&stateless, __ATOMIC_ACQUIRE); }

int leaves_put(uint64_t directory, const char *name, size_t size, const struct seen *seen, uint64_t object, int64_t until_ns,
               uint64_t *id) {
    if (!size || size > UINT8_MAX || !first_id) return EINVAL;
    uint64_t hash = leaves_key(directory, name, size);
    unsigned shard = (unsigned)(hash % SHARDS);
    lock_to_change(shard);
    int error = 0;
    struct slot **at = place_of_name(shard, hash, directory, name, size);
    if (at && *at) {
        struct slot *leaf = *at;
        error = slots_have_one_version(&leaf->seen, seen) ? EEXIST : ESTALE;
        if (error == EEXIST) { /* as slots.c has it */
            uint32_t flags = leaf->seen.flags | seen->flags;
            __atomic_store_n(&leaf->until_ns, 0, __ATOMIC_RELEASE);
            __atomic_signal_fence(__ATOMIC_SEQ_CST);
            leaf->seen = *seen;
            leaf->seen.flags = flags;
            if (object) leaf->object = object;
            __atomic_store_n(&leaf->until_ns, until_ns, __ATOMIC_RELEASE);
        }
        *id = leaf->id;
        unlock(shard);
        return error;
    }
    int has_id = shards[shard].given < UINT64_C(1) << (IDS_BITS - SHARD_BITS);
    struct slot *leaf = has_id && has_buckets(shard) ? slots_new(size) : NULL;
    if (leaf) {
        *id = first_id + shards[shard].given++ * SHARDS + shard;
        leaf->directory = directory;
        leaf->object = object;
        leaf->until_ns = until_ns;
        leaf->seen = *seen;
        leaf->name_size = (uint8_t)size;
        memcpy(leaf->name, name, size);
        slots_publish(leaf, *id);
        link_leaf(shard, hash, leaf);
    } else {
        error = ENOMEM;
    }
    unlock(shard);
    return error;
}

/* With the lock, which is free then. */
static struct slot *take(unsigned shard, struct slot **at) {
    struct slot *taken = at && *at ? unlink_leaf(shard, *at) : NULL;
    unlock(shard);
    return taken;
}

struct slot *leaves_take(uint64_t directory, const char *name, size_t size) {
    uint64_t hash = leaves_key(directory, name, size);
    unsigned shard = (unsigned)(hash % SHARDS);
    lock_to_change(shard);
    return take(shard, place_of_name(shard, hash, directory, name, size));
}

struct slot *leaves_take_id(uint64_t id) {
    if (!leaves_is_id(id)) return NULL;
    lock_to_change(shard_of_id(id));
    return take(shard_of_id(id), place_of_id(shard_of_id(id), id));
}

size_t leaves_sweep(int64_t now_ns, size_t unheld_at_most, struct slot **taken, size_t room) {
    unsigned shard = hand++ % SHARDS;
    size_t count = 0, unheld = leaves_count() - leaves_held();
    lock_to_change(shard);
    for (size_t i = 0; i < shards[shard].bucket_count && count < room; i++) {
        struct slot *next;
        for (struct slot *leaf = shards[shard].by_name[i]; leaf && count < room; leaf = next) {
            next = leaf->next_by_name;
            if (leaf->lookups || (leaf->until_ns > now_ns && unheld <= unheld_at_most)) continue;
            taken[count++] = unlink_leaf(shard, leaf);
            unheld--;
        }
    }
    unlock(shard);
    return count;
}

int leaves_expire(unsigned shard, const uint64_t *directories, size_t count, struct name_run *held) {
    int error = 0;
    lock_to_change(shard);
    for (size_t i = 0; i < shards[shard].bucket_count; i++)
        for (struct slot *leaf = shards[shard].by_name[i]; leaf; leaf = leaf->next_by_name) {
            if (!ids_have(directories, count, leaf->directory)) continue;
            leaf->until_ns = 0;
            if (leaf->lookups && names_add(held, leaf->directory, leaf->name, leaf->name_size)) error = ENOMEM;
        }
    unlock(shard);
    return error;
}

size_t leaves_count(void) { return __atomic_load_n(&leaf_count, __ATOMIC_RELAXED); }
size_t leaves_held(void) { return __atomic_load_n(&held_count, __ATOMIC_RELAXED); }
size_t leaves_open(void) { return __atomic_load_n(&open_count, __ATOMIC_RELAXED); }

/* ---- answers ------------------------------------------------------------------------------------------------------ */

static void refer(struct slot *leaf, uint32_t more) {
    if (__atomic_fetch_add(&leaf->lookups, more, __ATOMIC_RELAXED) == 0) __atomic_add_fetch(&held_count, 1, __ATOMIC_RELAXED);
}

static void unrefer(struct slot *leaf, uint32_t fewer) {
    uint32_t now = __atomic_load_n(&leaf->lookups, __ATOMIC_RELAXED), left;
    do left = now > fewer ? now - fewer : 0;
    while (!__atomic_compare_exchange_n(&leaf->lookups, &now, left, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    if (now && !left) __atomic_sub_fetch(&held_count, 1, __ATOMIC_RELAXED);
}

/* Of one that says that it has no bytes Python sees whether it gives some, where that cannot be seen at its open. */
static int is_sized(const struct slot *leaf) { return leaf->seen.size || !leaves_are_stateless(); }

/* With the lock for reading; NULL: nothing is locked. */
static struct slot *hold_name(uint64_t directory, const char *name, size_t size) {
    if (!leaves_count()) return NULL;
    uint64_t hash = leaves_key(directory, name, size);
    unsigned shard = (unsigned)(hash % SHARDS);
    lock_to_answer(&shards[shard].lock);
    struct slot **at = place_of_name(shard, hash, directory, name, size), *leaf = at ? *at : NULL;
    if (!leaf) unlock(shard);
    return leaf;
}

static void let_go(struct slot *leaf) { unlock(shard_of_id(leaf->id)); }
int leaves_look_up(uint64_t directory, const char *name, size_t size, int64_t now_ns,
                   int (*reply)(const struct slot *, void *), void *context) {
    struct slot *leaf = hold_name(directory, name, size);
    if (!leaf) return 0;
    int good = leaf->until_ns > now_ns && is_sized(leaf);
    if (good) {
        refer(leaf, 1); /* before the reply: its FORGET may be read by another thread at once */
        if (reply(leaf, context)) unrefer(leaf, 1);
    }
    let_go(leaf);
    return good;
}

static struct slot *hold_id(uint64_t id) {
    if (!leaves_is_id(id)) return NULL;
    unsigned shard = shard_of_id(id);
    lock_to_answer(&shards[shard].lock);
    struct slot **at = place_of_id(shard, id), *leaf = at ? *at : NULL;
    if (!leaf) unlock(shard);
    return leaf;
}

int leaves_attributes(uint64_t id, int64_t now_ns, int (*reply)(const struct slot *, void *), void *context) {
    struct slot *leaf = hold_id(id);
    if (!leaf) return 0;
    int good = leaf->until_ns > now_ns && is_sized(leaf);
    if (good) reply(leaf, context);
    let_go(leaf);
    return good;
}

int leaves_forget(uint64_t id, uint64_t count, int *is_held) {
    struct slot *leaf = hold_id(id);
    if (!leaf) return 0;
    unrefer(leaf, count > UINT32_MAX ? UINT32_MAX : (uint32_t)count);
    *is_held = __atomic_load_n(&leaf->lookups, __ATOMIC_RELAXED) != 0;
    let_go(leaf);
    return 1;
}

void leaves_opened(struct slot *leaf, int more) {
    uint32_t now = __atomic_add_fetch(&leaf->opens, (uint32_t)more, __ATOMIC_ACQ_REL);
    if (now == (more > 0)) __atomic_add_fetch(&open_count, more, __ATOMIC_RELAXED);
}

void leaves_free(struct slot *leaf) {
    if (leaf->opens) __atomic_sub_fetch(&open_count, 1, __ATOMIC_RELAXED);
    slots_free(leaf);
}

int leaves_release(uint64_t id, void (*reply)(void *), void *context) {
    struct slot *leaf = hold_id(id);
    if (!leaf) return 0;
    int is_open = __atomic_load_n(&leaf->opens, __ATOMIC_ACQUIRE) != 0;
    if (is_open) {
        reply(context);
        leaves_opened(leaf, -1);
    }
    let_go(leaf);
    return is_open;
}

struct slot *leaves_slot(uint64_t id) {
    struct slot *leaf = hold_id(id);
    if (leaf) let_go(leaf);
    return leaf;
}

uint64_t leaves_id(uint64_t directory, const char *name, size_t size) {
    struct slot *leaf = hold_name(directory, name, size);
    if (!leaf) return 0;
    uint64_t id = leaf->id;
    let_go(leaf);
    return id;
}

int leaves_place(uint64_t id, int64_t now_ns, struct leaf_place *place) {
    struct slot *leaf = hold_id(id);
    if (!leaf) return 0;
    int good = leaf->until_ns > now_ns;
    place->directory = leaf->directory;
    place->object = leaf->object, place->opens = __atomic_load_n(&leaf->opens, __ATOMIC_ACQUIRE);
    place->seen = leaf->seen;
    place->name_size = leaf->name_size;
    memcpy(place->name, leaf->name, leaf->name_size);
    place->name[leaf->name_size] = 0;
    let_go(leaf);
    return good;
}

int leaves_seen(uint64_t directory, const char *name, size_t size, int64_t now_ns, struct seen *seen) {
    struct slot *leaf = hold_name(directory, name, size);
    if (!leaf) return 0;
    int good = leaf->until_ns > now_ns;
    if (good && seen) *seen = leaf->seen;
    let_go(leaf);
    return good;
}
