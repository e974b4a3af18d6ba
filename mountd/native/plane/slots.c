/* Slots: regular files that Python has no node of, each hard link one by itself. Their names and attributes lie here and
 * nowhere else, in memory that the next daemon attaches (slot_memory.c).
 *
 * A slot is found by its directory and name, and by its id, which says in which shard it lies. Whoever answers from one
 * has the shard's lock for reading, so a slot that was taken out is one that nobody answers from any more. The look-ups
 * that the kernel holds are counted here until the slot is taken; one that the kernel does not hold stays until it is
 * swept. A part of the data plane, see plane.h. Asks nobody, and decides nothing.
 */
#include "plane.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_BUCKETS 8
#define SHARD_BITS 10
#define SHARDS SLOT_SHARDS /* so many that one of millions of slots is swept, or grows, within a millisecond */
#define IDS_BITS 38  /* how many ids one daemon has, see mountd/namespace/nodes/table.py */

static struct {
    pthread_rwlock_t lock;
    struct slot **by_name, **by_id; /* as many buckets each */
    size_t bucket_count, count;
    uint64_t given; /* ids */
} shards[SHARDS] = {[0 ... SHARDS - 1] = {.lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP}}; /* see table.c */

static uint64_t first_id;
static int stateless; /* opens do not reach us; atomic */
static size_t slot_count, held_count, open_count; /* all, those that the kernel holds, and those that are open; atomic */
static unsigned hand;     /* the shard that is swept next */

static unsigned shard_of_id(uint64_t id) { return (unsigned)(id % SHARDS); }

/* Of this daemon, or of one before: their ids differ in bits above these. */
int slots_is_id(uint64_t id) {
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
        for (struct slot *slot = shards[shard].by_name[i], *next; slot; slot = next) {
            next = slot->next_by_name;
            uint64_t hash = name_key(slot->directory, slot->name, slot->name_size);
            struct slot **at = &by_name[hash / SHARDS % count];
            slot->next_by_name = *at;
            *at = slot;
            at = &by_id[slot->id / SHARDS % count];
            slot->next_by_id = *at;
            *at = slot;
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
static void link_slot(unsigned shard, uint64_t hash, struct slot *slot) {
    struct slot **by_name = &shards[shard].by_name[hash / SHARDS % shards[shard].bucket_count];
    struct slot **by_id = &shards[shard].by_id[slot->id / SHARDS % shards[shard].bucket_count];
    slot->next_by_name = *by_name;
    *by_name = slot;
    slot->next_by_id = *by_id;
    *by_id = slot;
    shards[shard].count++;
    __atomic_add_fetch(&slot_count, 1, __ATOMIC_RELAXED);
    if (slot->lookups) __atomic_add_fetch(&held_count, 1, __ATOMIC_RELAXED);
    if (slot->opens) __atomic_add_fetch(&open_count, 1, __ATOMIC_RELAXED);
}

/* Takes it out of both chains. With the lock. */
static struct slot *unlink_slot(unsigned shard, struct slot *slot) {
    uint64_t hash = name_key(slot->directory, slot->name, slot->name_size);
    struct slot **by_name = place_of_name(shard, hash, slot->directory, slot->name, slot->name_size);
    struct slot **by_id = place_of_id(shard, slot->id);
    *by_name = slot->next_by_name;
    *by_id = slot->next_by_id;
    shards[shard].count--;
    __atomic_sub_fetch(&slot_count, 1, __ATOMIC_RELAXED);
    if (slot->lookups) __atomic_sub_fetch(&held_count, 1, __ATOMIC_RELAXED);
    return slot;
}

/* ---- Python's side ------------------------------------------------------------------------------------------------ */

static void unlink_all(int are_freed) {
    for (unsigned shard = 0; shard < SHARDS; shard++) {
        lock_to_change(shard);
        for (size_t i = 0; i < shards[shard].bucket_count; i++)
            while (shards[shard].by_name[i]) {
                struct slot *slot = unlink_slot(shard, shards[shard].by_name[i]);
                if (are_freed) slot_free(slot);
            }
        free(shards[shard].by_name);
        free(shards[shard].by_id);
        shards[shard].by_name = shards[shard].by_id = NULL;
        shards[shard].bucket_count = shards[shard].given = 0;
        unlock(shard);
    }
    __atomic_store_n(&open_count, 0, __ATOMIC_RELAXED);
}

void slots_begin(uint64_t first) {
    unlink_all(1);
    first_id = first;
    __atomic_store_n(&stateless, 0, __ATOMIC_RELEASE);
}

static int (*note_attached)(uint64_t directory);

static int found(struct slot *slot) {
    uint64_t hash = name_key(slot->directory, slot->name, slot->name_size);
    unsigned shard = (unsigned)(hash % SHARDS);
    lock_to_change(shard);
    int is_new = has_buckets(shard) && shard_of_id(slot->id) == shard && !*place_of_id(shard, slot->id) &&
                 !*place_of_name(shard, hash, slot->directory, slot->name, slot->name_size) && note_attached(slot->directory);
    if (is_new) link_slot(shard, hash, slot);
    uint64_t given = (slot->id - first_id) / SHARDS; /* by an earlier daemon with the same ids, as tests have it */
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

int slots_attach(int fd, uint64_t terms, int (*note)(uint64_t directory)) {
    unlink_all(0);
    note_attached = note;
    return slot_memory_attach(fd, terms, make_room, found);
}

void slots_become_stateless(void) { __atomic_store_n(&stateless, 1, __ATOMIC_RELEASE); }
int slots_are_stateless(void) { return __atomic_load_n(&stateless, __ATOMIC_ACQUIRE); }

int slots_put(uint64_t directory, const char *name, size_t size, const struct seen *seen, uint64_t object, int64_t until_ns,
               uint64_t *id) {
    if (!size || size > UINT8_MAX || !first_id) return EINVAL;
    uint64_t hash = name_key(directory, name, size);
    unsigned shard = (unsigned)(hash % SHARDS);
    lock_to_change(shard);
    int error = 0;
    struct slot **at = place_of_name(shard, hash, directory, name, size);
    if (at && *at) {
        struct slot *slot = *at;
        error = seen_have_one_version(&slot->seen, seen) ? EEXIST : ESTALE;
        if (error == EEXIST) { /* as slot_memory.c has it */
            uint32_t flags = slot->seen.flags | seen->flags;
            __atomic_store_n(&slot->until_ns, 0, __ATOMIC_RELEASE);
            __atomic_signal_fence(__ATOMIC_SEQ_CST);
            slot->seen = *seen;
            slot->seen.flags = flags;
            if (object) slot->object = object;
            __atomic_store_n(&slot->until_ns, until_ns, __ATOMIC_RELEASE);
        }
        *id = slot->id;
        unlock(shard);
        return error;
    }
    int has_id = shards[shard].given < UINT64_C(1) << (IDS_BITS - SHARD_BITS);
    struct slot *slot = has_id && has_buckets(shard) ? slot_new(size) : NULL;
    if (slot) {
        *id = first_id + shards[shard].given++ * SHARDS + shard;
        slot->directory = directory;
        slot->object = object;
        slot->until_ns = until_ns;
        slot->seen = *seen;
        slot->name_size = (uint8_t)size;
        memcpy(slot->name, name, size);
        slot_publish(slot, *id);
        link_slot(shard, hash, slot);
    } else {
        error = ENOMEM;
    }
    unlock(shard);
    return error;
}

/* With the lock, which is free then. */
static struct slot *take(unsigned shard, struct slot **at) {
    struct slot *taken = at && *at ? unlink_slot(shard, *at) : NULL;
    unlock(shard);
    return taken;
}

struct slot *slots_take(uint64_t directory, const char *name, size_t size) {
    uint64_t hash = name_key(directory, name, size);
    unsigned shard = (unsigned)(hash % SHARDS);
    lock_to_change(shard);
    return take(shard, place_of_name(shard, hash, directory, name, size));
}

struct slot *slots_take_id(uint64_t id) {
    if (!slots_is_id(id)) return NULL;
    lock_to_change(shard_of_id(id));
    return take(shard_of_id(id), place_of_id(shard_of_id(id), id));
}

size_t slots_sweep(int64_t now_ns, size_t unheld_at_most, struct slot **taken, size_t room) {
    unsigned shard = hand++ % SHARDS;
    size_t count = 0, unheld = slots_count() - slots_held();
    lock_to_change(shard);
    for (size_t i = 0; i < shards[shard].bucket_count && count < room; i++) {
        struct slot *next;
        for (struct slot *slot = shards[shard].by_name[i]; slot && count < room; slot = next) {
            next = slot->next_by_name;
            if (slot->lookups || (slot->until_ns > now_ns && unheld <= unheld_at_most)) continue;
            taken[count++] = unlink_slot(shard, slot);
            unheld--;
        }
    }
    unlock(shard);
    return count;
}

int slots_expire(unsigned shard, const uint64_t *directories, size_t count, struct name_run *held) {
    int error = 0;
    lock_to_change(shard);
    for (size_t i = 0; i < shards[shard].bucket_count; i++)
        for (struct slot *slot = shards[shard].by_name[i]; slot; slot = slot->next_by_name) {
            if (!ids_have(directories, count, slot->directory)) continue;
            slot->until_ns = 0;
            if (slot->lookups && names_add(held, slot->directory, slot->name, slot->name_size)) error = ENOMEM;
        }
    unlock(shard);
    return error;
}

size_t slots_count(void) { return __atomic_load_n(&slot_count, __ATOMIC_RELAXED); }
size_t slots_held(void) { return __atomic_load_n(&held_count, __ATOMIC_RELAXED); }
size_t slots_open(void) { return __atomic_load_n(&open_count, __ATOMIC_RELAXED); }

/* ---- answers ------------------------------------------------------------------------------------------------------ */

static void refer(struct slot *slot, uint32_t more) {
    if (__atomic_fetch_add(&slot->lookups, more, __ATOMIC_RELAXED) == 0) __atomic_add_fetch(&held_count, 1, __ATOMIC_RELAXED);
}

static void unrefer(struct slot *slot, uint32_t fewer) {
    uint32_t now = __atomic_load_n(&slot->lookups, __ATOMIC_RELAXED), left;
    do left = now > fewer ? now - fewer : 0;
    while (!__atomic_compare_exchange_n(&slot->lookups, &now, left, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    if (now && !left) __atomic_sub_fetch(&held_count, 1, __ATOMIC_RELAXED);
}

/* Of one that says that it has no bytes Python sees whether it gives some, where that cannot be seen at its open. */
static int is_sized(const struct slot *slot) { return slot->seen.size || !slots_are_stateless(); }

/* With the lock for reading; NULL: nothing is locked. */
static struct slot *hold_name(uint64_t directory, const char *name, size_t size) {
    if (!slots_count()) return NULL;
    uint64_t hash = name_key(directory, name, size);
    unsigned shard = (unsigned)(hash % SHARDS);
    lock_to_answer(&shards[shard].lock);
    struct slot **at = place_of_name(shard, hash, directory, name, size), *slot = at ? *at : NULL;
    if (!slot) unlock(shard);
    return slot;
}

static void let_go(struct slot *slot) { unlock(shard_of_id(slot->id)); }
int slots_look_up(uint64_t directory, const char *name, size_t size, int64_t now_ns,
                   int (*reply)(const struct slot *, void *), void *context) {
    struct slot *slot = hold_name(directory, name, size);
    if (!slot) return 0;
    int good = slot->until_ns > now_ns && is_sized(slot);
    if (good) {
        refer(slot, 1); /* before the reply: its FORGET may be read by another thread at once */
        if (reply(slot, context)) unrefer(slot, 1);
    }
    let_go(slot);
    return good;
}

static struct slot *hold_id(uint64_t id) {
    if (!slots_is_id(id)) return NULL;
    unsigned shard = shard_of_id(id);
    lock_to_answer(&shards[shard].lock);
    struct slot **at = place_of_id(shard, id), *slot = at ? *at : NULL;
    if (!slot) unlock(shard);
    return slot;
}

int slots_attributes(uint64_t id, int64_t now_ns, int (*reply)(const struct slot *, void *), void *context) {
    struct slot *slot = hold_id(id);
    if (!slot) return 0;
    int good = slot->until_ns > now_ns && is_sized(slot);
    if (good) reply(slot, context);
    let_go(slot);
    return good;
}

int slots_forget(uint64_t id, uint64_t count, int *is_held) {
    struct slot *slot = hold_id(id);
    if (!slot) return 0;
    unrefer(slot, count > UINT32_MAX ? UINT32_MAX : (uint32_t)count);
    *is_held = __atomic_load_n(&slot->lookups, __ATOMIC_RELAXED) != 0;
    let_go(slot);
    return 1;
}

void slots_opened(struct slot *slot, int more) {
    uint32_t now = __atomic_add_fetch(&slot->opens, (uint32_t)more, __ATOMIC_ACQ_REL);
    if (now == (more > 0)) __atomic_add_fetch(&open_count, more, __ATOMIC_RELAXED);
}

void slots_free(struct slot *slot) {
    if (slot->opens) __atomic_sub_fetch(&open_count, 1, __ATOMIC_RELAXED);
    slot_free(slot);
}

int slots_release(uint64_t id, void (*reply)(void *), void *context) {
    struct slot *slot = hold_id(id);
    if (!slot) return 0;
    int is_open = __atomic_load_n(&slot->opens, __ATOMIC_ACQUIRE) != 0;
    if (is_open) {
        reply(context);
        slots_opened(slot, -1);
    }
    let_go(slot);
    return is_open;
}

struct slot *slots_find(uint64_t id) {
    struct slot *slot = hold_id(id);
    if (slot) let_go(slot);
    return slot;
}

uint64_t slots_id(uint64_t directory, const char *name, size_t size) {
    struct slot *slot = hold_name(directory, name, size);
    if (!slot) return 0;
    uint64_t id = slot->id;
    let_go(slot);
    return id;
}

int slots_place(uint64_t id, int64_t now_ns, struct slot_place *place) {
    struct slot *slot = hold_id(id);
    if (!slot) return 0;
    int good = slot->until_ns > now_ns;
    place->directory = slot->directory;
    place->object = slot->object, place->opens = __atomic_load_n(&slot->opens, __ATOMIC_ACQUIRE);
    place->seen = slot->seen;
    place->name_size = slot->name_size;
    memcpy(place->name, slot->name, slot->name_size);
    place->name[slot->name_size] = 0;
    let_go(slot);
    return good;
}

int slots_seen(uint64_t directory, const char *name, size_t size, int64_t now_ns, struct seen *seen) {
    struct slot *slot = hold_name(directory, name, size);
    if (!slot) return 0;
    int good = slot->until_ns > now_ns;
    if (good && seen) *seen = slot->seen;
    let_go(slot);
    return good;
}
