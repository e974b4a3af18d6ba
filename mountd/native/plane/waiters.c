/* Requests that are answered later: kept as they came, and handed to Python as they came where they are not answered here.
 *
 * A part of the pipeline, see fetch.h.
 */
#include "fetch.h"

#include <stdlib.h>
#include <string.h>

int64_t waited_ns;

struct waiter *waiter_of(const void *request, size_t size, uint64_t slot) {
    struct waiter *waiter = malloc(sizeof *waiter + size);
    if (!waiter) return NULL;
    waiter->next = NULL;
    waiter->slot = slot;
    waiter->since_ns = monotonic_ns();
    waiter->size = size;
    memcpy(waiter->request, request, size);
    return waiter;
}

void waiter_done(struct waiter *waiter) {
    __atomic_add_fetch(&waited_ns, monotonic_ns() - waiter->since_ns, __ATOMIC_RELAXED);
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
