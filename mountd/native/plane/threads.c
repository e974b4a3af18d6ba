/* The threads that read requests from the connection: answered at once, or handed to Python.
 *
 * All read from one descriptor: a reply must leave by the descriptor that its request was read from, and one of our own
 * (a clone) would end its requests with the daemon. One of them watches it; others are woken while there is more to do
 * than those that are awake can, and rest when they find nothing. They take no signals, and never run Python. A part of
 * the data plane, see plane.h.
 */
#include "plane.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST_THREADS 64

/* Looked for without sleeping: on an idle machine the next request of a reader that copies 100 KB comes within it, and two
 * wake-ups of 40 us are spared. Whoever else wants the processor meanwhile gets it. */
#define WATCH_NS 100000
#define MOST_PAYS 16   /* so often in vain, and it is not tried any more */
#define RETRY 32       /* but every so many times */
#define BACKLOG 8      /* so many requests in a row, and there is work for one more */

static struct {
    int device, stop_fd, running;
    pthread_t threads[MOST_THREADS];
    pthread_mutex_t lock;
    pthread_cond_t more;
    int awake, wanted, stopping;
} pool = {.device = -1, .stop_fd = -1, .lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};

static struct beat *beats; /* of the threads; NULL: nobody looks at them */
static struct beat unseen[MOST_THREADS];

struct reader {
    struct beat *beat;
    int events_fd;
    char *request, *answer;
    int number;
    int pays, turns;
};

int threads_beat_in(int fd) {
    struct beat *memory = mmap(NULL, (MOST_THREADS + 1) * sizeof *memory, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return errno;
    beats = memory + 1;
    return 0;
}

static void beat(struct reader *reader, uint64_t state, uint64_t unique) {
    uint64_t turns = __atomic_load_n(&reader->beat->turns, __ATOMIC_RELAXED);
    __atomic_store_n(&reader->beat->unique, unique, __ATOMIC_RELAXED);
    __atomic_store_n(&reader->beat->turns, ((turns + BEAT_STEP) & ~(uint64_t)3) | state, __ATOMIC_RELEASE);
}

/* Of an event counter this cannot fail: it is far from its end. */
static void stop_all(void) {
    uint64_t one = 1;
    pthread_mutex_lock(&pool.lock);
    __atomic_store_n(&pool.stopping, 1, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&pool.more);
    pthread_mutex_unlock(&pool.lock);
    while (write(pool.stop_fd, &one, sizeof one) < 0 && errno == EINTR) continue;
}

static void let_go(struct reader *reader) {
    if (reader->events_fd >= 0) close(reader->events_fd);
    if (reader->request != MAP_FAILED) munmap(reader->request, PLANE_REQUEST_BYTES);
    if (reader->answer != MAP_FAILED) munmap(reader->answer, ANSWER_BYTES);
    free(reader);
}

static int watch(int events_fd, int fd, uint32_t events) {
    struct epoll_event event = {.events = events, .data.fd = fd};
    return epoll_ctl(events_fd, EPOLL_CTL_ADD, fd, &event) ? errno : 0;
}

static char *buffer(size_t size) {
    return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* NULL, and an errno. */
static struct reader *make_reader(int number, int *error) {
    struct reader *reader = calloc(1, sizeof *reader);
    if (!reader) {
        *error = ENOMEM;
        return NULL;
    }
    reader->number = number;
    reader->beat = &(beats ? beats : unseen)[number];
    reader->pays = MOST_PAYS / 2;
    reader->events_fd = epoll_create1(EPOLL_CLOEXEC);
    reader->request = buffer(PLANE_REQUEST_BYTES);
    reader->answer = buffer(ANSWER_BYTES);
    if (reader->events_fd < 0 || reader->request == MAP_FAILED || reader->answer == MAP_FAILED) {
        *error = ENOMEM; /* or no descriptor */
    } else {
        *error = watch(reader->events_fd, pool.device, EPOLLIN);
        if (!*error) *error = watch(reader->events_fd, pool.stop_fd, EPOLLIN);
    }
    if (!*error) return reader;
    let_go(reader);
    return NULL;
}

static void spin(struct reader *reader, ssize_t *size) {
    int64_t end_ns = monotonic_ns() + WATCH_NS;
    do {
        *size = read(pool.device, reader->request, PLANE_REQUEST_BYTES);
        if (*size >= 0 || errno != EAGAIN) break;
        sched_yield();
    } while (monotonic_ns() < end_ns);
}

/* The next request, of the thread that watches the connection while the others rest: looked for without sleeping for a
 * moment, as long as that pays; to be woken takes longer than to answer. 0: there may be one now; -1: to stop. */
static ssize_t watch_connection(struct reader *reader) {
    if (reader->pays > 0 || ++reader->turns % RETRY == 0) {
        ssize_t size;
        spin(reader, &size);
        if (size > 0) {
            if (reader->pays < MOST_PAYS) reader->pays++;
            return size;
        }
        if (reader->pays > 0) reader->pays--;
    }
    struct epoll_event events[2];
    int count = epoll_wait(reader->events_fd, events, 2, -1);
    for (int i = 0; i < count; i++)
        if (events[i].data.fd == pool.stop_fd) return -1;
    return 0;
}

/* Rests until there is more to do than others can, if there are others. 0: it is the last, and watches the connection. */
static int rest(void) {
    pthread_mutex_lock(&pool.lock);
    int rests = pool.awake > 1 && !pool.stopping;
    if (rests) {
        pool.awake--;
        while (!pool.wanted && !pool.stopping) pthread_cond_wait(&pool.more, &pool.lock);
        if (pool.wanted) pool.wanted--;
        pool.awake++;
    }
    pthread_mutex_unlock(&pool.lock);
    return rests;
}

static void want_another(void) {
    pthread_mutex_lock(&pool.lock);
    if (pool.awake + pool.wanted < pool.running) {
        pool.wanted++;
        pthread_cond_signal(&pool.more);
    }
    pthread_mutex_unlock(&pool.lock);
}

static int is_stopping(void) { return __atomic_load_n(&pool.stopping, __ATOMIC_ACQUIRE); }

static void *serve(void *argument) {
    struct reader *reader = argument;
    char name[16];
    snprintf(name, sizeof name, "hfs-plane-%d", reader->number);
    pthread_setname_np(pthread_self(), name);
    int in_a_row = 0;
    while (!is_stopping()) {
        beat(reader, BEAT_WORKS, 0);
        ssize_t size = read(pool.device, reader->request, PLANE_REQUEST_BYTES);
        if (size < 0 && errno == EAGAIN) {
            in_a_row = 0;
            beat(reader, BEAT_SLEEPS, 0);
            if (rest()) continue;
            size = watch_connection(reader);
            if (size < 0) break;
            if (!size) continue;
        }
        if (size > 0) {
            if (++in_a_row % BACKLOG == 0) want_another();
            size_t left = (size_t)size;
            beat(reader, BEAT_WORKS, ((struct fuse_in_header *)reader->request)->unique);
            if (answer(pool.device, reader->request, &left, reader->answer)) continue;
            beat(reader, BEAT_WAITS, 0);
            hand_to_python(reader->request, left);
        } else if (!size || (errno != EINTR && errno != ENOENT)) { /* ENOENT: a request was taken back; ENODEV: unmounted */
            queue_end(1);
            stop_all();
        }
    }
    __atomic_store_n(&reader->beat->turns, 0, __ATOMIC_RELEASE);
    let_go(reader);
    return NULL;
}

int threads_start(int device, int count) {
    if (pool.running) return EBUSY;
    if (count < 1) return EINVAL;
    pool.stop_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (pool.stop_fd < 0) return errno;
    pool.device = device;
    pool.awake = pool.wanted = pool.stopping = 0;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* Python's own thread takes them */
    int error = 0;
    for (int i = 0; i < count && i < MOST_THREADS && !error; i++) {
        struct reader *reader = make_reader(i, &error);
        if (!reader) break;
        pthread_mutex_lock(&pool.lock);
        error = pthread_create(&pool.threads[i], NULL, serve, reader);
        if (!error) pool.running++, pool.awake++;
        pthread_mutex_unlock(&pool.lock);
        if (error) let_go(reader);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) threads_stop();
    return error;
}

void threads_stop(void) {
    if (pool.stop_fd < 0) return;
    stop_all();
    queue_end(0); /* one that waits for room reads no more; its request is sent again to whoever comes next */
    for (int i = 0; i < pool.running; i++) pthread_join(pool.threads[i], NULL);
    pool.running = 0;
    close(pool.stop_fd);
    pool.stop_fd = pool.device = -1;
}

int threads_running(void) { return pool.running; }
