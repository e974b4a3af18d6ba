/* Drives looks at objects on the disk without Python and without a mount: threads that stand for the kernel's requests have
 * objects looked at, which takes a moment or hangs, while one that stands for Python gives up who has waited too long.
 *
 * Ends with 1 and a line on standard error if one was answered twice, never, or with what was not found; see driving.h.
 *
 *   looks_driver hang    all threads hang, and come back
 */
#include "driving.h"
#include "plane.h"

#include <dirent.h>

#define ASKERS 3
#define SLOTS (1 << 20) /* none waits while as many more are asked for */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t answers;
    int is_silent, waiting;
} disk = {.lock = PTHREAD_MUTEX_INITIALIZER, .answers = PTHREAD_COND_INITIALIZER};

static unsigned char answers[SLOTS]; /* to each look; atomic */
static uint64_t uniques;
static long looked_at, given_up;
static int has_ended, run = 1;

WRAPPED(int, pthread_create, (pthread_t *thread, const pthread_attr_t *attributes, void *(*run_it)(void *), void *argument),
        (thread, attributes, run_it, argument), EAGAIN, EAGAIN)

static int is_left_for(uint64_t unique) { return unique % 3 != 0; }

int __wrap_is_as_left(const struct object *object);
int __wrap_is_as_left(const struct object *object) {
    pthread_mutex_lock(&disk.lock);
    disk.waiting++;
    while (disk.is_silent) pthread_cond_wait(&disk.answers, &disk.lock);
    disk.waiting--;
    pthread_mutex_unlock(&disk.lock);
    if (object->inode % 64 == 0) usleep(2000);
    return is_left_for(object->inode);
}

static void looked(const struct look *look, int is_left) {
    if (__atomic_load_n(&has_ended, __ATOMIC_ACQUIRE)) fail("answered after the end");
    if (__atomic_add_fetch(&answers[look->unique % SLOTS], 1, __ATOMIC_ACQ_REL) != 1) fail("answered twice");
    if (is_left && !is_left_for(look->unique)) fail("it was not found so");
    __atomic_add_fetch(is_left == is_left_for(look->unique) ? &looked_at : &given_up, 1, __ATOMIC_ACQ_REL);
}

static void set_silent(int is_silent) {
    pthread_mutex_lock(&disk.lock);
    disk.is_silent = is_silent;
    pthread_cond_broadcast(&disk.answers);
    pthread_mutex_unlock(&disk.lock);
}

static int wait_now(void) {
    pthread_mutex_lock(&disk.lock);
    int waiting = disk.waiting;
    pthread_mutex_unlock(&disk.lock);
    return waiting;
}

/* The number of a look that will be answered; 0: it is not taken. */
static uint64_t ask(void) {
    struct look look = {.looked = looked, .unique = __atomic_add_fetch(&uniques, 1, __ATOMIC_ACQ_REL)};
    look.object.inode = look.unique;
    __atomic_store_n(&answers[look.unique % SLOTS], 0, __ATOMIC_RELEASE);
    return looks_add(&look) ? look.unique : 0;
}

static int is_answered(uint64_t unique) { return __atomic_load_n(&answers[unique % SLOTS], __ATOMIC_ACQUIRE); }

static void begin(void) {
    __atomic_store_n(&has_ended, 0, __ATOMIC_RELEASE);
    looks_begin();
}

static void end(void) {
    looks_end();
    __atomic_store_n(&has_ended, 1, __ATOMIC_RELEASE);
}

static void *asker(void *argument) {
    unsigned seed = *(unsigned *)argument;
    while (__atomic_load_n(&run, __ATOMIC_ACQUIRE)) {
        if (!ask()) usleep(100);
        if (rand_r(&seed) % 4 == 0) usleep(100);
    }
    return NULL;
}

static void fuzz(double seconds, unsigned seed) {
    pthread_t askers[ASKERS];
    unsigned seeds[ASKERS];
    begin();
    for (int i = 0; i < ASKERS; i++) {
        seeds[i] = seed + 1 + (unsigned)i;
        if (pthread_create(&askers[i], NULL, asker, &seeds[i])) fail("pthread_create");
    }
    int64_t until_ns = monotonic_ns() + (int64_t)(seconds * 1e9);
    while (monotonic_ns() < until_ns || !HAVE_HAPPENED(&looked_at, &given_up)) {
        switch (rand_r(&seed) % 16) {
        case 0: set_silent(1); break;
        case 1: case 2: set_silent(0); break;
        case 3: end(), begin(); break;
        case 4: looks_give_up(monotonic_ns() - 1000000); break;
        default: usleep(500);
        }
    }
    __atomic_store_n(&run, 0, __ATOMIC_RELEASE);
    for (int i = 0; i < ASKERS; i++) pthread_join(askers[i], NULL);
    set_silent(0);
    uint64_t last = ask();
    while (!last) usleep(100), last = ask(); /* there is no room for more just now */
    while (!is_answered(last)) usleep(100);
    end();
    printf("%ld looked at, %ld given up\n", looked_at, given_up);
}

/* As many as there are threads hang, and as many wait as may: they are given up, and later ones are answered again. */
static void hang(void) {
    uint64_t first = 0, last = 0, taken = 0;
    begin();
    set_silent(1);
    for (uint64_t unique; (unique = ask()); taken++) {
        if (!first) first = unique;
        last = unique;
        while (taken < 4 && wait_now() <= (int)taken) usleep(100);
    }
    if (taken < 100) fail("only %d may wait", (int)taken);
    looks_give_up(0); /* nobody has waited since so long ago */
    if (is_answered(first)) fail("given up at once");
    looks_give_up(INT64_MAX);
    for (uint64_t unique = first; unique <= last; unique++)
        if (!is_answered(unique)) fail("%d of %d still waits", (int)(unique - first), (int)taken);
    set_silent(0);
    while (wait_now()) usleep(100);
    uint64_t later = ask();
    if (!later) fail("nothing is looked at any more");
    while (!is_answered(later)) usleep(100);
    end();
}

static int threads_now(void) {
    int count = 0;
    DIR *all = opendir("/proc/self/task");
    if (!all) fail("/proc/self/task: %s", strerror(errno));
    while (readdir(all)) count++;
    closedir(all);
    return count;
}

static int once(void) {
    int error = 0, before = threads_now();
    begin();
    for (int i = 0; i < 8; i++) {
        uint64_t unique = ask();
        if (!unique) error = ENOMEM;
        while (unique && !is_answered(unique)) usleep(10);
    }
    end();
    while (threads_now() > before) usleep(100); /* else they need not be started the next time */
    return error;
}

int main(int count, char **arguments) {
    if (count == 2 && !strcmp(arguments[1], "hang")) return hang(), 0;
    return drive(count, arguments, fuzz, once);
}
