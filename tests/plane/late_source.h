/* A source that answers a moment late, when it is told so, or not at all for a while; and waits that end late. Linked with --wrap=statx and
 * --wrap=pthread_cond_timedwait. */
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

static struct {
    pthread_mutex_t lock;
    pthread_cond_t answers;
    int hangs, waiting;
} hung = {.lock = PTHREAD_MUTEX_INITIALIZER, .answers = PTHREAD_COND_INITIALIZER};

static void set_hangs(int hangs) {
    pthread_mutex_lock(&hung.lock);
    hung.hangs = hangs;
    pthread_cond_broadcast(&hung.answers);
    pthread_mutex_unlock(&hung.lock);
}

static int hang_now(int wanted) {
    pthread_mutex_lock(&hung.lock);
    int is_so = hung.waiting == wanted;
    pthread_mutex_unlock(&hung.lock);
    return is_so;
}

static void wait_while_hung(void) {
    pthread_mutex_lock(&hung.lock);
    hung.waiting++;
    while (hung.hangs) pthread_cond_wait(&hung.answers, &hung.lock);
    hung.waiting--;
    pthread_mutex_unlock(&hung.lock);
}

static int parking; /* 1: the next second look at a file waits with its answer until it is 3; 2: it does; atomic */
static int is_slow; /* some answers come a moment late */

int __real_statx(int fd, const char *restrict name, int flags, unsigned mask, struct statx *restrict found);
int __wrap_statx(int fd, const char *restrict name, int flags, unsigned mask, struct statx *restrict found);
int __wrap_statx(int fd, const char *restrict name, int flags, unsigned mask, struct statx *restrict found) {
    wait_while_hung();
    int error = __real_statx(fd, name, flags, mask, found), next = 1;
    if (is_slow && found->stx_mtime.tv_sec % 4 == 0) usleep(3000);
    if (!(mask & STATX_MODE) && __atomic_compare_exchange_n(&parking, &next, 2, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        while (__atomic_load_n(&parking, __ATOMIC_ACQUIRE) == 2) usleep(100);
    return error;
}

static int timed_waits; /* that have begun; atomic */
static int is_patient;  /* they end when they are told to, however long that takes on a busy machine */

int __real_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *until) {
    struct timespec later = *until;
    if (is_patient) later.tv_sec += 1000;
    __atomic_add_fetch(&timed_waits, 1, __ATOMIC_ACQ_REL);
    return __real_pthread_cond_timedwait(cond, lock, &later);
}
