/* The threads that read requests from the connection: answered at once, or handed to Python.
 *
 * All read from one descriptor: a reply must leave by the descriptor that its request was read from, and one of our own
 * (a clone) would end its requests with the daemon. A request wakes one of them. They hold no lock while they wait, take
 * no signals, and never run Python. A part of the data plane, see plane.h.
 */
#include "plane.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST_THREADS 64

static struct {
    int device, stop_fd, running;
    pthread_t threads[MOST_THREADS];
} pool = {.device = -1, .stop_fd = -1};

struct reader {
    int events_fd;
    char *request;
    int number;
};

static void let_go(struct reader *reader) {
    if (reader->events_fd >= 0) close(reader->events_fd);
    if (reader->request != MAP_FAILED) munmap(reader->request, PLANE_REQUEST_BYTES);
    free(reader);
}

static int watch(int events_fd, int fd, uint32_t events) {
    struct epoll_event event = {.events = events, .data.fd = fd};
    return epoll_ctl(events_fd, EPOLL_CTL_ADD, fd, &event) ? errno : 0;
}

/* NULL, and an errno. */
static struct reader *make_reader(int number, int *error) {
    struct reader *reader = calloc(1, sizeof *reader);
    if (!reader) {
        *error = ENOMEM;
        return NULL;
    }
    reader->number = number;
    reader->events_fd = epoll_create1(EPOLL_CLOEXEC);
    reader->request = mmap(NULL, PLANE_REQUEST_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (reader->events_fd < 0 || reader->request == MAP_FAILED) {
        *error = errno;
    } else {
        *error = watch(reader->events_fd, pool.device, EPOLLIN | EPOLLEXCLUSIVE);
        if (!*error) *error = watch(reader->events_fd, pool.stop_fd, EPOLLIN);
    }
    if (!*error) return reader;
    let_go(reader);
    return NULL;
}

/* Until there may be a request. 0: the threads are to stop. */
static int wait_request(struct reader *reader) {
    struct epoll_event events[2];
    int count = epoll_wait(reader->events_fd, events, 2, -1);
    for (int i = 0; i < count; i++)
        if (events[i].data.fd == pool.stop_fd) return 0;
    return 1;
}

static void *serve(void *argument) {
    struct reader *reader = argument;
    char name[16];
    snprintf(name, sizeof name, "hfs-plane-%d", reader->number);
    pthread_setname_np(pthread_self(), name);
    for (int serving = 1; serving;) {
        ssize_t size = read(pool.device, reader->request, PLANE_REQUEST_BYTES);
        if (size > 0) {
            if (!answer(pool.device, reader->request, (size_t)size)) queue_put(reader->request, (size_t)size);
            continue;
        }
        switch (size ? errno : ENODEV) {
        case EAGAIN: serving = wait_request(reader); break;
        case EINTR:
        case ENOENT: break; /* a request that was there has been taken back */
        default: /* ENODEV: unmounted */
            queue_end(1);
            serving = 0;
        }
    }
    let_go(reader);
    return NULL;
}

int threads_start(int device, int count) {
    if (pool.running) return EBUSY;
    if (count < 1) return EINVAL;
    pool.stop_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (pool.stop_fd < 0) return errno;
    pool.device = device;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* Python's own thread takes them */
    int error = 0;
    for (int i = 0; i < count && i < MOST_THREADS && !error; i++) {
        struct reader *reader = make_reader(i, &error);
        if (!reader) break;
        error = pthread_create(&pool.threads[i], NULL, serve, reader);
        if (error)
            let_go(reader);
        else
            pool.running++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) threads_stop();
    return error;
}

void threads_stop(void) {
    if (pool.stop_fd < 0) return;
    uint64_t one = 1;
    while (write(pool.stop_fd, &one, sizeof one) < 0 && errno == EINTR) continue;
    queue_end(0); /* one that waits for room reads no more; its request is sent again to whoever comes next */
    for (int i = 0; i < pool.running; i++) pthread_join(pool.threads[i], NULL);
    pool.running = 0;
    close(pool.stop_fd);
    pool.stop_fd = pool.device = -1;
}

int threads_running(void) { return pool.running; }
