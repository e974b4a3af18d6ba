/* Opens that were answered, in their order: a ring that Python empties some times a second, if anybody wants to hear.
 *
 * Where it is not emptied the oldest are lost, and counted. A part of the data plane, see plane.h.
 */
#include "plane.h"

#include <pthread.h>

#define EVENTS 65536 /* 1 MiB: a second of all that two dozen cores can open */

static struct {
    pthread_mutex_t lock;
    uint64_t added, taken; /* since the start; those between them are in the ring, or lost */
    struct event ring[EVENTS];
} events = {.lock = PTHREAD_MUTEX_INITIALIZER};

void events_add(uint64_t node, uint64_t thread_id) {
    pthread_mutex_lock(&events.lock);
    events.ring[events.added++ % EVENTS] = (struct event){node, thread_id};
    pthread_mutex_unlock(&events.lock);
}

size_t events_take(struct event *found, size_t most, uint64_t *lost) {
    size_t count = 0;
    pthread_mutex_lock(&events.lock);
    *lost = events.added - events.taken > EVENTS ? events.added - events.taken - EVENTS : 0;
    events.taken += *lost;
    while (count < most && events.taken < events.added) found[count++] = events.ring[events.taken++ % EVENTS];
    pthread_mutex_unlock(&events.lock);
    return count;
}
