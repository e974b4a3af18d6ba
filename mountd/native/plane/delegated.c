/* Directories that Python has delegated: small files in them are looked at and fetched without it; and the names in them that
 * are Python's all the same: of each there is a node, or an answer that is no slot's.
 *
 * A directory is held by its descriptor, so what is found in it is found beneath the source, whatever its path leads to
 * by now; the loan ends with the time-to-live, and Python looks the path up again before it delegates the directory anew. One
 * that it has called back has another generation then: what was begun before may be older than what Python was told.
 * Names are known by name_key; two that have the same one are both Python's as long as one is. A part of the pipeline,
 * see fetch.h.
 */
#include "fetch.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static struct table table = TABLE;

void delegated_let_go(struct delegated *delegated) {
    if (__atomic_sub_fetch(&delegated->users, 1, __ATOMIC_ACQ_REL)) return;
    close(delegated->fd);
    free(delegated->prefix);
    free(delegated);
}

int delegated_take(uint64_t directory, int64_t *slots) {
    struct entry *entry;
    *slots = 0;
    int error = table_take(&table, directory, &entry);
    if (error) return error;
    *slots = ((struct delegated *)entry)->slots;
    delegated_let_go((struct delegated *)entry);
    return 0;
}

int delegated_put(const struct delegated *delegated) {
    struct delegated *copy = malloc(sizeof *copy);
    if (!copy) return ENOMEM;
    *copy = *delegated;
    copy->users = 1;
    struct delegated *before = delegated_hold(delegated->entry.node, 0);
    if (before) {
        copy->wants_acls = __atomic_load_n(&before->wants_acls, __ATOMIC_RELAXED); /* and so will those that come */
        copy->is_staged = __atomic_load_n(&before->is_staged, __ATOMIC_RELAXED);
        delegated_let_go(before);
    }
    delegated_take(delegated->entry.node, &copy->slots);
    int error = table_put(&table, &copy->entry);
    if (error) free(copy);
    return error;
}

struct delegated *delegated_hold(uint64_t directory, int64_t now_ns) {
    struct shard *held;
    struct delegated *delegated = (struct delegated *)table_hold(&table, directory, &held);
    if (!delegated) return NULL;
    int good = now_ns < delegated->until_ns;
    if (good) __atomic_add_fetch(&delegated->users, 1, __ATOMIC_RELAXED);
    table_let_go(held);
    return good ? delegated : NULL;
}

int delegated_enter(const struct delegated *delegated, int (*put)(void *), void *context) {
    struct shard *held;
    struct delegated *now = (struct delegated *)table_hold(&table, delegated->entry.node, &held);
    if (!now) return ENOENT;
    int error = now->generation == delegated->generation ? put(context) : ENOENT;
    if (!error) __atomic_add_fetch(&now->slots, 1, __ATOMIC_RELAXED);
    table_let_go(held);
    return error;
}

uint64_t delegated_generation(uint64_t directory) {
    struct shard *held;
    struct delegated *delegated = (struct delegated *)table_hold(&table, directory, &held);
    if (!delegated) return 0;
    uint64_t generation = delegated->generation;
    table_let_go(held);
    return generation;
}

void delegated_wants_acls(uint64_t directory) {
    struct shard *held;
    struct delegated *delegated = (struct delegated *)table_hold(&table, directory, &held);
    if (!delegated) return;
    __atomic_store_n(&delegated->wants_acls, 1, __ATOMIC_RELAXED);
    table_let_go(held);
}

int64_t delegated_slots(uint64_t directory) {
    struct shard *held;
    struct delegated *delegated = (struct delegated *)table_hold(&table, directory, &held);
    if (!delegated) return 0;
    int64_t slots = __atomic_exchange_n(&delegated->slots, 0, __ATOMIC_RELAXED);
    table_let_go(held);
    return slots;
}

size_t delegated_count(void) { return table_count(&table); }

/* ---- names that are Python's ---------------------------------------------------------------------------------------- */

static struct table owned = TABLE;
static int all_are; /* there was no memory to tell which; atomic */

void reserved_begin(void) { __atomic_store_n(&all_are, 0, __ATOMIC_RELEASE); }

int reserved_has(uint64_t key) {
    return __atomic_load_n(&all_are, __ATOMIC_ACQUIRE) || table_has(&owned, key);
}

void reserved_put(uint64_t key) {
    struct entry *entry = malloc(sizeof *entry);
    if (entry) entry->node = key;
    int error = entry ? table_put(&owned, entry) : ENOMEM;
    if (error) free(entry);
    if (error && error != EEXIST) __atomic_store_n(&all_are, 1, __ATOMIC_RELEASE);
}

void reserved_take(uint64_t key) {
    struct entry *entry;
    if (!table_take(&owned, key, &entry)) free(entry);
}
