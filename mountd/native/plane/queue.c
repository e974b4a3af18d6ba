/* Requests on their way to Python: a ring of bytes, in the order in which they were read.
 *
 * Bounded: where Python does not keep up, the threads wait and read no more, and the kernel keeps what comes. A part of
 * the data plane, see plane.h. Never looks into a request.
 */
#include "plane.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define RING_BYTES ((size_t)4 << 20) /* some 40 000 requests, or four of the largest */

struct record {
    uint64_t size; /* of the request behind it; SKIP: go on at the start of the ring */
};
#define SKIP UINT64_MAX
#define ROOM(size) ((sizeof(struct record) + (size) + 7) & ~(size_t)7)

static struct {
    pthread_mutex_t lock;
    pthread_cond_t room;
    char *ring;
    size_t first, used; /* bytes */
    int event_fd;
    int ended, connection_gone;
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER, .room = PTHREAD_COND_INITIALIZER, .event_fd = -1};

int queue_open(void) {
    if (queue.event_fd >= 0) return 0;
    char *ring = mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ring == MAP_FAILED) return errno;
    int event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (event_fd < 0) {
        int error = errno;
        munmap(ring, RING_BYTES);
        return error;
    }
    queue.ring = ring;
    queue.event_fd = event_fd;
    return 0;
}

int queue_event_fd(void) { return queue.event_fd; }

/* With the lock held. Of an event counter neither can fail: it is far from its end, and never waits. */
static void tell(void) {
    uint64_t one = 1;
    if (write(queue.event_fd, &one, sizeof one) < 0) return;
}

static void untell(void) {
    uint64_t count;
    if (read(queue.event_fd, &count, sizeof count) < 0) return;
}

void queue_wake(void) {
    pthread_mutex_lock(&queue.lock);
    tell();
    pthread_mutex_unlock(&queue.lock);
}

void queue_reset(void) {
    pthread_mutex_lock(&queue.lock);
    queue.first = queue.used = 0;
    queue.ended = queue.connection_gone = 0;
    untell();
    pthread_mutex_unlock(&queue.lock);
}

/* Where a record of so many bytes would begin, and how many the ring has to have free for it. */
static size_t place(size_t bytes, size_t *needed) {
    size_t end = (queue.first + queue.used) % RING_BYTES, behind = RING_BYTES - end;
    *needed = behind >= bytes ? bytes : behind + bytes;
    return behind >= bytes ? end : 0;
}

void queue_put(const void *request, size_t size) {
    size_t bytes = ROOM(size), needed, at;
    pthread_mutex_lock(&queue.lock);
    for (;;) {
        if (queue.ended) break; /* whoever serves the connection next gets it again */
        if (!queue.used) queue.first = 0;
        at = place(bytes, &needed);
        if (queue.used + needed <= RING_BYTES) {
            if (needed != bytes) ((struct record *)(queue.ring + RING_BYTES - (needed - bytes)))->size = SKIP;
            ((struct record *)(queue.ring + at))->size = size;
            memcpy(queue.ring + at + sizeof(struct record), request, size);
            if (!queue.used) tell();
            queue.used += needed;
            break;
        }
        pthread_cond_wait(&queue.room, &queue.lock);
    }
    pthread_mutex_unlock(&queue.lock);
}

static void drop(size_t bytes) {
    queue.first = (queue.first + bytes) % RING_BYTES;
    queue.used -= bytes;
}

ssize_t queue_take(void *buffer, size_t room) {
    ssize_t size = -EAGAIN;
    pthread_mutex_lock(&queue.lock);
    if (queue.used) {
        struct record *record = (struct record *)(queue.ring + queue.first);
        if (record->size == SKIP) {
            drop(RING_BYTES - queue.first);
            record = (struct record *)queue.ring;
        }
        size = (ssize_t)record->size;
        if (record->size > room) {
            size = -EMSGSIZE; /* a fault of ours: no request is longer */
        } else {
            memcpy(buffer, record + 1, record->size);
        }
        drop(ROOM(record->size));
        pthread_cond_broadcast(&queue.room);
    } else if (queue.connection_gone) {
        size = 0;
    }
    if (!queue.used && !queue.connection_gone) untell();
    pthread_mutex_unlock(&queue.lock);
    return size;
}

void queue_end(int connection_gone) {
    pthread_mutex_lock(&queue.lock);
    queue.ended = 1;
    if (connection_gone) {
        queue.connection_gone = 1;
        tell();
    }
    pthread_cond_broadcast(&queue.room);
    pthread_mutex_unlock(&queue.lock);
}
