/* What was answered, for those in Python who must hear of it some times a second: opens in their order, reads by reader, and
 * how much it was since the start.
 *
 * Where the ring of opens is not emptied the oldest are lost, and counted; readers for whom there is no room are not
 * named. A part of the data plane, see plane.h.
 */
#include "plane.h"

#include <string.h>
#include <sys/eventfd.h>

struct answered answered;

#define EVENTS 65536 /* 2 MiB: a second of all that two dozen cores can open */

static struct {
    int fd, is_told; /* atomic */
} news[NEWS] = {{-1, 0}, {-1, 0}};

int news_fd(enum news of) {
    int fd = __atomic_load_n(&news[of].fd, __ATOMIC_ACQUIRE);
    if (fd >= 0) return fd;
    fd = eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC); /* what was told before nobody has heard */
    __atomic_store_n(&news[of].fd, fd, __ATOMIC_RELEASE);
    return fd;
}

/* After it has been put where it is taken from: whoever finds it told already has the others take this with theirs. */
void news_tell(enum news of) {
    int fd = __atomic_load_n(&news[of].fd, __ATOMIC_ACQUIRE);
    if (fd >= 0 && !__atomic_exchange_n(&news[of].is_told, 1, __ATOMIC_ACQ_REL)) eventfd_write(fd, 1);
}

void news_read(enum news of) {
    eventfd_t count;
    int fd = __atomic_load_n(&news[of].fd, __ATOMIC_ACQUIRE);
    if (fd >= 0) eventfd_read(fd, &count);
    __atomic_store_n(&news[of].is_told, 0, __ATOMIC_RELEASE);
}

static struct {
    pthread_mutex_t lock;
    uint64_t added, taken; /* since the start; those between them are in the ring, or lost */
    struct event ring[EVENTS];
} events = {.lock = PTHREAD_MUTEX_INITIALIZER};

void events_add(uint64_t node, uint64_t thread_id, uint64_t object) {
    pthread_mutex_lock(&events.lock);
    events.ring[events.added++ % EVENTS] = (struct event){node, thread_id, object, monotonic_ns()};
    pthread_mutex_unlock(&events.lock);
    news_tell(NEWS_OPENS);
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

static struct {
    pthread_mutex_t lock;
    struct served readers[SERVED_READERS]; /* thread_id 0: free */
} served_to = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void add_to_reader(uint64_t thread_id, int64_t bytes) {
    int is_first = 0;
    if (!thread_id) return; /* in a pid namespace that we do not see */
    pthread_mutex_lock(&served_to.lock);
    for (size_t tries = 0, at = thread_id % SERVED_READERS; tries < SERVED_READERS; tries++, at = (at + 1) % SERVED_READERS) {
        struct served *reader = &served_to.readers[at];
        if (reader->thread_id && reader->thread_id != thread_id) continue;
        is_first = !reader->thread_id;
        reader->thread_id = thread_id;
        reader->reads++;
        reader->bytes += bytes;
        break;
    }
    pthread_mutex_unlock(&served_to.lock);
    if (is_first) news_tell(NEWS_OPENS);
}

void served(uint64_t thread_id, ssize_t bytes) {
    __atomic_add_fetch(&answered.reads, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&answered.read_bytes, bytes, __ATOMIC_RELAXED);
    add_to_reader(thread_id, bytes);
}

size_t served_take(struct served *found) {
    size_t count = 0;
    pthread_mutex_lock(&served_to.lock);
    for (size_t at = 0; at < SERVED_READERS; at++)
        if (served_to.readers[at].thread_id) found[count++] = served_to.readers[at];
    memset(served_to.readers, 0, sizeof served_to.readers);
    pthread_mutex_unlock(&served_to.lock);
    return count;
}

void opened_file(uint64_t size, int is_passed) {
    __atomic_add_fetch(is_passed ? &answered.passed : &answered.cached, 1, __ATOMIC_RELAXED);
    if (size <= WHOLE_BYTES)
        __atomic_add_fetch(is_passed ? &answered.passed_bytes : &answered.cached_bytes, (int64_t)size, __ATOMIC_RELAXED);
    else if (is_passed)
        __atomic_add_fetch(&answered.large_passed, 1, __ATOMIC_RELAXED);
}

void read_file(uint64_t file_size, size_t size) {
    if (file_size > WHOLE_BYTES) __atomic_add_fetch(&answered.large_read_bytes, (int64_t)size, __ATOMIC_RELAXED);
}
