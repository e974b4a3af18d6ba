/* The nodes whose opens are answered without Python, and how.
 *
 * Every handle that is given out is counted (counts.c), before the kernel hears of it. A part of the data plane, see
 * plane.h. Decides nothing.
 */
#include "plane.h"

#include <errno.h>
#include <stdlib.h>

static struct table table = TABLE;

int opens_put(const struct opens *opens) {
    struct opens *copy = malloc(sizeof *copy);
    if (!copy) return ENOMEM;
    *copy = *opens;
    int error = table_put(&table, &copy->entry);
    if (error) free(copy);
    return error;
}

int opens_take(uint64_t node, struct opens *taken) {
    struct entry *entry;
    int error = table_take(&table, node, &entry);
    if (error) return error;
    *taken = *(struct opens *)entry;
    free(entry);
    return 0;
}

int opens_open(uint64_t node, int64_t now_ns, int (*reply)(const struct opens *, void *), void *context) {
    struct shard *held;
    struct opens *opens = (struct opens *)table_hold(&table, node, &held);
    if (!opens) return 0;
    int answered = now_ns < opens->until_ns && (opens->object.fd < 0 || is_as_left(&opens->object));
    if (answered) {
        counts_add(opens->counter, 1); /* before the reply: its RELEASE may be read by another thread at once */
        __atomic_add_fetch(&opens->opened, 1, __ATOMIC_RELAXED);
        __atomic_store_n(&opens->last_ns, now_ns, __ATOMIC_RELAXED);
        if (reply(opens, context)) counts_add(opens->counter, -1);
    }
    table_let_go(held);
    return answered;
}

int opens_release(uint64_t node, uint64_t handle, void (*reply)(void *), void *context) {
    struct shard *held;
    struct opens *opens = (struct opens *)table_hold(&table, node, &held);
    if (!opens) return 0;
    int ours = opens->handle == handle;
    if (ours) {
        reply(context); /* first: a daemon that is killed here leaves one too many, which costs nobody any bytes */
        counts_add(opens->counter, -1);
    }
    table_let_go(held);
    return ours;
}

size_t opens_count(void) { return table_count(&table); }
