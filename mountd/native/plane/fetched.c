/* What has become of files that were fetched or looked at: in their order, until Python takes it.
 *
 * Bounded by what is granted and by what Python has asked for ahead: who stores needs numbers, which come with the next
 * look of Python. A part of the pipeline, see fetch.h.
 */
#include "fetch.h"

static struct {
    pthread_mutex_t lock;
    struct fetched *first, **last;
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER, .last = &queue.first};

void fetched_add(struct fetched *fetched) {
    fetched->next = NULL;
    pthread_mutex_lock(&queue.lock);
    *queue.last = fetched;
    queue.last = &fetched->next;
    pthread_mutex_unlock(&queue.lock);
    news_tell(NEWS_FETCHED);
}

struct fetched *fetched_take(size_t most) {
    pthread_mutex_lock(&queue.lock);
    struct fetched *first = queue.first, **end = &queue.first;
    for (; most && *end; most--) end = &(*end)->next;
    struct fetched *rest = *end;
    if (end == &queue.first) first = NULL;
    *end = NULL;
    queue.first = rest;
    if (!rest) queue.last = &queue.first;
    pthread_mutex_unlock(&queue.lock);
    return first;
}
