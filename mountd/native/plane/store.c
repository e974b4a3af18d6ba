/* New objects in the cache: one file each, from numbers and room that Python has granted.
 *
 * What is granted is used up by whoever comes first. When there is none, Python may be late: a thread waits a moment for
 * more, since bytes that are stored nowhere are read again. If none comes in that time the store is dry, and nobody waits
 * until more is granted. A file is written here and synced by Python, many at a time, before it enters the index. A part
 * of the pipeline, see fetch.h.
 */
#include "fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NANOSECONDS INT64_C(1000000000)
#define BLOCK ((uint64_t)4096) /* policies/cache/admission.py: BLOCK_BYTES */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t more; /* of CLOCK_MONOTONIC */
    int fd, is_dry;
    size_t waiting;
    uint64_t overhead, next, end, bytes;
} store = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1, .is_dry = 1};

static int is_at_once, is_pythons; /* atomic */

void store_by_python(int by_python) { __atomic_store_n(&is_pythons, by_python, __ATOMIC_RELEASE); }

int store_is_pythons(void) { return __atomic_load_n(&is_pythons, __ATOMIC_ACQUIRE); }

static void __attribute__((constructor)) begin(void) { cond_of_monotonic(&store.more); }

/* With the lock. */
static void set_dry(int is_dry) {
    store.is_dry = is_dry;
    if (store.waiting) pthread_cond_broadcast(&store.more);
}

void store_in(int directory_fd, uint64_t overhead_bytes) {
    pthread_mutex_lock(&store.lock);
    store.fd = directory_fd;
    store.overhead = overhead_bytes;
    store.next = store.end = store.bytes = 0;
    set_dry(1);
    pthread_mutex_unlock(&store.lock);
}

void store_grant(uint64_t *first, uint64_t *end) {
    pthread_mutex_lock(&store.lock);
    uint64_t unused = store.next, unused_end = store.end;
    store.next = *first;
    store.end = *end;
    *first = unused;
    *end = unused_end;
    if (store.next == store.end)
        set_dry(1);
    else if (store.waiting)
        pthread_cond_broadcast(&store.more);
    pthread_mutex_unlock(&store.lock);
}

void store_grant_room(uint64_t bytes) {
    pthread_mutex_lock(&store.lock);
    store.bytes += bytes;
    set_dry(0);
    pthread_mutex_unlock(&store.lock);
}

void store_left(uint64_t *numbers, uint64_t *bytes) {
    pthread_mutex_lock(&store.lock);
    *numbers = store.end - store.next;
    *bytes = store.bytes;
    pthread_mutex_unlock(&store.lock);
}

uint64_t store_room(uint64_t size) { return (size + BLOCK - 1) / BLOCK * BLOCK + store.overhead; }

/* With the lock. */
static int has_room(uint64_t room) { return store.fd >= 0 && store.next < store.end && store.bytes >= room; }

int store_has_room(size_t size) {
    uint64_t room = store_room(size);
    pthread_mutex_lock(&store.lock);
    int has = has_room(room);
    pthread_mutex_unlock(&store.lock);
    return has;
}

void store_wait(size_t size, int64_t limit_ns, size_t at_most) {
    uint64_t room = store_room(size);
    int64_t until_ns = monotonic_ns() + limit_ns;
    const struct timespec until = {.tv_sec = until_ns / NANOSECONDS, .tv_nsec = until_ns % NANOSECONDS};
    pthread_mutex_lock(&store.lock);
    int error = store.waiting >= at_most ? EAGAIN : 0;
    store.waiting++;
    while (!error && store.fd >= 0 && !store.is_dry && !has_room(room)) error = pthread_cond_timedwait(&store.more, &store.lock, &until);
    if (error == ETIMEDOUT && !has_room(room)) set_dry(1);
    store.waiting--;
    pthread_mutex_unlock(&store.lock);
}

static int take_number(size_t size, int *fd, uint64_t *number) {
    uint64_t room = store_room(size);
    pthread_mutex_lock(&store.lock);
    int is_granted = has_room(room);
    if (is_granted) *number = store.next++, store.bytes -= room, *fd = store.fd;
    pthread_mutex_unlock(&store.lock);
    return is_granted;
}

static int create(int directory, uint64_t number) {
    const int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    char path[OBJECT_NAME_BYTES], folder[3] = "";
    object_name(number, path);
    memcpy(folder, path, 2);
    int fd = openat(directory, path, flags, 0600);
    if (fd >= 0 || errno != ENOENT) return fd;
    if (mkdirat(directory, folder, 0700) != 0 && errno != EEXIST) return -1;
    return openat(directory, path, flags, 0600);
}

void store_at_once(int at_once) { __atomic_store_n(&is_at_once, at_once, __ATOMIC_RELAXED); }

int store_is_at_once(void) { return __atomic_load_n(&is_at_once, __ATOMIC_RELAXED); }

/* That it is durable is for the sync later to say. A failed write-back is told once, so the sync would not hear of it. */
static int write_out(int fd, size_t size) {
    const unsigned how = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    return sync_file_range(fd, 0, (off_t)size, how) ? errno : 0;
}

int store_write(const char *data, size_t size, int at_once, struct stored *stored) {
    int directory, error = 0;
    *stored = (struct stored){0, 0, 0};
    if (!take_number(size, &directory, &stored->number)) return ENOSPC;
    int fd = create(directory, stored->number);
    if (fd < 0) return errno;
    for (size_t done = 0; done < size && !error;) {
        ssize_t written = pwrite(fd, data + done, size - done, (off_t)done);
        if (written > 0)
            done += (size_t)written;
        else
            error = written ? errno : ENOSPC;
    }
    if (!error && at_once) error = write_out(fd, size);
    struct stat left;
    if (!error && fstat(fd, &left)) error = errno;
    if (!error) {
        stored->inode = left.st_ino;
        stored->ctime_ns = left.st_ctim.tv_sec * INT64_C(1000000000) + left.st_ctim.tv_nsec;
    }
    close(fd);
    return error;
}
