/* Names in lent directories that are Python's: of each there is a node, or an answer that is no leaf's.
 *
 * Known by leaves_key; two names that have the same one are both Python's as long as one is. A part of the pipeline, see
 * fetch.h.
 */
#include "fetch.h"

#include <errno.h>
#include <stdlib.h>

static struct table owned = TABLE;
static int all_are; /* there was no memory to tell which; atomic */

void owned_begin(void) { __atomic_store_n(&all_are, 0, __ATOMIC_RELEASE); }

int owned_has(uint64_t key) {
    return __atomic_load_n(&all_are, __ATOMIC_ACQUIRE) || table_has(&owned, key);
}

void owned_put(uint64_t key) {
    struct entry *entry = malloc(sizeof *entry);
    if (entry) entry->node = key;
    int error = entry ? table_put(&owned, entry, 1) : ENOMEM;
    if (error) free(entry);
    if (error && error != EEXIST) __atomic_store_n(&all_are, 1, __ATOMIC_RELEASE);
}

void owned_take(uint64_t key) {
    struct entry *entry;
    if (!table_take(&owned, key, 1, &entry)) free(entry);
}
