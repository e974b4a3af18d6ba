/* Requests that are answered later: kept as they came, and handed to Python as they came where they are not answered here.
 *
 * A part of the pipeline, see fetch.h.
 */
#include "fetch.h"

#include <stdlib.h>
#include <string.h>

struct waiter *waiter_of(const void *request, size_t size, uint64_t leaf) {
    struct waiter *waiter = malloc(sizeof *waiter + size);
    if (!waiter) return NULL;
    waiter->next = NULL;
    waiter->leaf = leaf;
    waiter->since_ns = monotonic_ns();
    waiter->size = size;
    memcpy(waiter->request, request, size);
    return waiter;
}

void waiter_done(struct waiter *waiter) {
    __atomic_add_fetch(&source_counts.wait_ns, monotonic_ns() - waiter->since_ns, __ATOMIC_RELAXED);
    free(waiter);
}

void waiters_to_python(struct waiter *waiter) {
    for (struct waiter *next; waiter; waiter = next) {
        next = waiter->next;
        queue_put(waiter->request, waiter->size);
        waiter_done(waiter);
    }
}

void waiters_drop(struct waiter *waiter) {
    for (struct waiter *next; waiter; waiter = next) next = waiter->next, free(waiter);
}

/* `opens`: where those go that open the file; NULL: they are answered too. */
static void answer_each(struct waiter *waiter, int device, const struct leaf_place *place, char *buffer, struct waiter **opens) {
    for (struct waiter *next; waiter; waiter = next) {
        next = waiter->next;
        const struct fuse_in_header *header = (void *)waiter->request;
        if (opens && header->opcode == FUSE_OPEN) {
            waiter->next = *opens;
            *opens = waiter;
            continue;
        }
        int answered = !waiter->leaf ? reply_looked_up(device, header, place->name, place->name_size) :
                       header->opcode == FUSE_READ ? !reply_read_of_leaf(device, header, buffer) :
                       contents_open(device, waiter->leaf, place, header, waiter->size, buffer);
        if (answered <= 0) queue_put(waiter->request, waiter->size);
        waiter_done(waiter);
    }
}

void waiters_answer(struct waiter *first, int device, const struct leaf_place *place, char *buffer) {
    struct waiter *opens = NULL;
    answer_each(first, device, place, buffer, &opens);
    answer_each(opens, device, place, buffer, NULL); /* last: an open may push, and a READ has pages locked */
}
