/* Contents that are to be pushed for somebody who opens them, on their way from threads that read requests to those that
 * push.
 *
 * A push sleeps in the kernel while somebody has one of its pages locked, so nobody whom others wait for may do it. Bounded:
 * what finds no place here is opened without a push, and its reads follow. A part of the pipeline, see fetch.h.
 */
#include "fetch.h"

#define PLACES 256

static struct {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct content *ring[PLACES];
    size_t first, count;
    int threads; /* 0: nothing is taken any more */
} pushes = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};

static int wanted = 1, passed; /* atomic */

void pushes_terms(int are_wanted, int are_passed) {
    __atomic_store_n(&wanted, are_wanted, __ATOMIC_RELEASE);
    __atomic_store_n(&passed, are_passed, __ATOMIC_RELEASE);
}

int pushes_are_wanted(void) { return __atomic_load_n(&wanted, __ATOMIC_ACQUIRE); }

int pushes_are_passed(void) { return __atomic_load_n(&passed, __ATOMIC_ACQUIRE); }

void pushes_begin(int threads) {
    pthread_mutex_lock(&pushes.lock);
    pushes.threads = threads;
    pthread_mutex_unlock(&pushes.lock);
}

int pushes_add(struct content *content) {
    pthread_mutex_lock(&pushes.lock);
    int is_taken = pushes.threads && pushes.count < PLACES;
    if (is_taken) pushes.ring[(pushes.first + pushes.count++) % PLACES] = content;
    pthread_mutex_unlock(&pushes.lock);
    if (is_taken) pthread_cond_signal(&pushes.more);
    return is_taken;
}

struct content *pushes_next(void) {
    struct content *content = NULL;
    pthread_mutex_lock(&pushes.lock);
    while (pushes.threads && !pushes.count) pthread_cond_wait(&pushes.more, &pushes.lock);
    if (pushes.count) {
        content = pushes.ring[pushes.first];
        pushes.first = (pushes.first + 1) % PLACES;
        pushes.count--;
    }
    pthread_mutex_unlock(&pushes.lock);
    return content;
}

void pushes_end(void) {
    pthread_mutex_lock(&pushes.lock);
    pushes.threads = 0;
    pthread_cond_broadcast(&pushes.more);
    pthread_mutex_unlock(&pushes.lock);
}
