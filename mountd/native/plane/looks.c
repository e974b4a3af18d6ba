/* Objects that are looked at on the disk for requests that wait for that, by threads of their own, which may hang there.
 *
 * A thread that reads requests looks at what the kernel has in memory, and hands over here what it has not. Whoever waits
 * too long is answered as for an object that is not as it was left, which is always right; so are those for whom there is
 * no room in the line. A part of the data plane, see plane.h. Nothing is begun before somebody waits.
 */
#include "plane.h"

#include <stdlib.h>

#define LOOKERS 4
#define MOST_LOOKS 256
#define STACK_BYTES ((size_t)128 << 10)

static struct {
    pthread_mutex_t lock;
    pthread_cond_t more, answered;
    struct look *first, **end;
    size_t count;
    struct look *running[LOOKERS]; /* NULL: none, or it is answered */
    int has[LOOKERS];              /* a thread */
    int answering, stopping;
} looks = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER, .answered = PTHREAD_COND_INITIALIZER, .stopping = 1};

/* With the lock, which is let go of meanwhile: nobody else answers it. */
static void answer_look(const struct look *look, int is_left) {
    looks.answering++;
    pthread_mutex_unlock(&looks.lock);
    look->looked(look, is_left);
    pthread_mutex_lock(&looks.lock);
    if (!--looks.answering) pthread_cond_broadcast(&looks.answered);
}

/* With the lock. */
static struct look *take_first(void) {
    struct look *look = looks.first;
    looks.first = look->next;
    if (!looks.first) looks.end = &looks.first;
    looks.count--;
    return look;
}

static void *work(void *argument) {
    int number = (int)(intptr_t)argument;
    pthread_setname_np(pthread_self(), "hfs-look");
    pthread_mutex_lock(&looks.lock);
    while (!looks.stopping) {
        if (!looks.first) {
            pthread_cond_wait(&looks.more, &looks.lock);
            continue;
        }
        struct look *look = looks.running[number] = take_first();
        pthread_mutex_unlock(&looks.lock);
        int is_left = is_as_left(&look->object);
        pthread_mutex_lock(&looks.lock);
        if (looks.running[number] == look) {
            looks.running[number] = NULL;
            answer_look(look, is_left);
        }
        free(look);
    }
    looks.has[number] = 0;
    pthread_mutex_unlock(&looks.lock);
    return NULL;
}

/* With the lock. Whether there is one at least. */
static int start_missing(void) {
    int there = 0;
    for (int number = 0; number < LOOKERS; number++) {
        if (!looks.has[number]) looks.has[number] = !detached_start(work, number, STACK_BYTES);
        there |= looks.has[number];
    }
    return there;
}

int looks_add(const struct look *wanted) {
    struct look *look = malloc(sizeof *look);
    if (!look) return 0;
    *look = *wanted;
    look->next = NULL;
    look->since_ns = monotonic_ns();
    pthread_mutex_lock(&looks.lock);
    int may = !looks.stopping && looks.count < MOST_LOOKS && start_missing();
    if (may) {
        *looks.end = look;
        looks.end = &look->next;
        looks.count++;
        pthread_cond_signal(&looks.more);
    }
    pthread_mutex_unlock(&looks.lock);
    if (!may) free(look);
    return may;
}

void looks_give_up(int64_t before_ns) {
    pthread_mutex_lock(&looks.lock);
    for (int number = 0; number < LOOKERS; number++) {
        struct look *look = looks.running[number];
        if (!look || look->since_ns >= before_ns) continue;
        struct look copy = *look; /* its thread frees it */
        looks.running[number] = NULL;
        answer_look(&copy, 0);
    }
    while (looks.first && looks.first->since_ns < before_ns) {
        struct look *look = take_first();
        answer_look(look, 0);
        free(look);
    }
    pthread_mutex_unlock(&looks.lock);
}

void looks_begin(void) {
    pthread_mutex_lock(&looks.lock);
    looks.stopping = 0;
    looks.end = &looks.first;
    pthread_mutex_unlock(&looks.lock);
}

/* Who waits is not answered: the connection ends, or whoever serves it next is sent the request again. */
void looks_end(void) {
    pthread_mutex_lock(&looks.lock);
    looks.stopping = 1;
    while (looks.first) free(take_first());
    for (int number = 0; number < LOOKERS; number++) looks.running[number] = NULL;
    while (looks.answering) pthread_cond_wait(&looks.answered, &looks.lock);
    pthread_cond_broadcast(&looks.more);
    pthread_mutex_unlock(&looks.lock);
}
