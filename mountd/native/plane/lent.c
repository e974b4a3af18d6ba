/* Directories that Python has lent: small files in them are looked at and fetched without it; and the names in them that
 * are Python's all the same: of each there is a node, or an answer that is no leaf's.
 *
 * A directory is held by its descriptor, so what is found in it is found beneath the source, whatever its path leads to
 * by now; the loan ends with the time-to-live, and Python looks the path up again before it lends the directory anew. One
 * that it has called back has another generation then: what was begun before may be older than what Python was told.
 * Names are known by leaves_key; two that have the same one are both Python's as long as one is. A part of the pipeline,
 * see fetch.h.
 */
#include "fetch.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static struct table table = TABLE;

void lent_let_go(struct lent *lent) {
    if (__atomic_sub_fetch(&lent->users, 1, __ATOMIC_ACQ_REL)) return;
    close(lent->fd);
    free(lent->prefix);
    free(lent);
}

int lent_take(uint64_t directory, int64_t *leaves) {
    struct entry *entry;
    *leaves = 0;
    int error = table_take(&table, directory, &entry);
    if (error) return error;
    *leaves = ((struct lent *)entry)->leaves;
    lent_let_go((struct lent *)entry);
    return 0;
}

int lent_put(const struct lent *lent) {
    struct lent *copy = malloc(sizeof *copy);
    if (!copy) return ENOMEM;
    *copy = *lent;
    copy->users = 1;
    struct lent *before = lent_hold(lent->entry.node, 0);
    if (before) {
        copy->wants_acls = __atomic_load_n(&before->wants_acls, __ATOMIC_RELAXED); /* and so will those that come */
        copy->is_staged = __atomic_load_n(&before->is_staged, __ATOMIC_RELAXED);
        lent_let_go(before);
    }
    lent_take(lent->entry.node, &copy->leaves);
    int error = table_put(&table, &copy->entry);
    if (error) free(copy);
    return error;
}

struct lent *lent_hold(uint64_t directory, int64_t now_ns) {
    struct shard *held;
    struct lent *lent = (struct lent *)table_hold(&table, directory, &held);
    if (!lent) return NULL;
    int good = now_ns < lent->until_ns;
    if (good) __atomic_add_fetch(&lent->users, 1, __ATOMIC_RELAXED);
    table_let_go(held);
    return good ? lent : NULL;
}

int lent_enter(const struct lent *lent, int (*put)(void *), void *context) {
    struct shard *held;
    struct lent *now = (struct lent *)table_hold(&table, lent->entry.node, &held);
    if (!now) return ENOENT;
    int error = now->generation == lent->generation ? put(context) : ENOENT;
    if (!error) __atomic_add_fetch(&now->leaves, 1, __ATOMIC_RELAXED);
    table_let_go(held);
    return error;
}

uint64_t lent_generation(uint64_t directory) {
    struct shard *held;
    struct lent *lent = (struct lent *)table_hold(&table, directory, &held);
    if (!lent) return 0;
    uint64_t generation = lent->generation;
    table_let_go(held);
    return generation;
}

void lent_wants_acls(uint64_t directory) {
    struct shard *held;
    struct lent *lent = (struct lent *)table_hold(&table, directory, &held);
    if (!lent) return;
    __atomic_store_n(&lent->wants_acls, 1, __ATOMIC_RELAXED);
    table_let_go(held);
}

int64_t lent_leaves(uint64_t directory) {
    struct shard *held;
    struct lent *lent = (struct lent *)table_hold(&table, directory, &held);
    if (!lent) return 0;
    int64_t leaves = __atomic_exchange_n(&lent->leaves, 0, __ATOMIC_RELAXED);
    table_let_go(held);
    return leaves;
}

size_t lent_count(void) { return table_count(&table); }

/* ---- names that are Python's ---------------------------------------------------------------------------------------- */

static struct table owned = TABLE;
static int all_are; /* there was no memory to tell which; atomic */

void owned_begin(void) { __atomic_store_n(&all_are, 0, __ATOMIC_RELEASE); }

int owned_has(uint64_t key) {
    return __atomic_load_n(&all_are, __ATOMIC_ACQUIRE) || table_has(&owned, key);
}

void owned_put(uint64_t key) {
    struct entry *entry = malloc(sizeof *entry);
    if (entry) entry->node = key;
    int error = entry ? table_put(&owned, entry) : ENOMEM;
    if (error) free(entry);
    if (error && error != EEXIST) __atomic_store_n(&all_are, 1, __ATOMIC_RELEASE);
}

void owned_take(uint64_t key) {
    struct entry *entry;
    if (!table_take(&owned, key, &entry)) free(entry);
}
