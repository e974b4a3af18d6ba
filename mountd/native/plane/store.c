/* New objects in the cache: one file each, from numbers and room that Python has granted.
 *
 * What is granted is used up by whoever comes first, and nothing is stored when there is none. A file is written here and
 * synced by Python, many at a time, before it enters the index. A part of the pipeline, see fetch.h.
 */
#include "fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK ((uint64_t)4096) /* policies/cache/admission.py: BLOCK_BYTES */

static struct {
    pthread_mutex_t lock;
    int fd;
    uint64_t overhead, next, end, bytes;
} store = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

void store_in(int directory_fd, uint64_t overhead_bytes) {
    pthread_mutex_lock(&store.lock);
    store.fd = directory_fd;
    store.overhead = overhead_bytes;
    store.next = store.end = store.bytes = 0;
    pthread_mutex_unlock(&store.lock);
}

void store_grant(uint64_t *first, uint64_t *end) {
    pthread_mutex_lock(&store.lock);
    uint64_t unused = store.next, unused_end = store.end;
    store.next = *first;
    store.end = *end;
    *first = unused;
    *end = unused_end;
    pthread_mutex_unlock(&store.lock);
}

void store_grant_room(uint64_t bytes) {
    pthread_mutex_lock(&store.lock);
    store.bytes += bytes;
    pthread_mutex_unlock(&store.lock);
}

void store_left(uint64_t *numbers, uint64_t *bytes) {
    pthread_mutex_lock(&store.lock);
    *numbers = store.end - store.next;
    *bytes = store.bytes;
    pthread_mutex_unlock(&store.lock);
}

uint64_t store_room(uint64_t size) { return (size + BLOCK - 1) / BLOCK * BLOCK + store.overhead; }

static int take_number(size_t size, int *fd, uint64_t *number) {
    uint64_t room = store_room(size);
    pthread_mutex_lock(&store.lock);
    int is_granted = store.fd >= 0 && store.next < store.end && store.bytes >= room;
    if (is_granted) *number = store.next++, store.bytes -= room, *fd = store.fd;
    pthread_mutex_unlock(&store.lock);
    return is_granted;
}

static int create(int directory, uint64_t number) {
    const int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    char folder[8], path[OBJECT_NAME_BYTES];
    snprintf(folder, sizeof folder, "%02x", (unsigned)(number & 0xff));
    snprintf(path, sizeof path, "%s/%llu", folder, (unsigned long long)number);
    int fd = openat(directory, path, flags, 0600);
    if (fd >= 0 || errno != ENOENT) return fd;
    if (mkdirat(directory, folder, 0700) != 0 && errno != EEXIST) return -1;
    return openat(directory, path, flags, 0600);
}

int store_write(const char *data, size_t size, struct stored *stored) {
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
    struct stat left;
    if (!error && fstat(fd, &left)) error = errno;
    if (!error) {
        stored->inode = left.st_ino;
        stored->ctime_ns = left.st_ctim.tv_sec * INT64_C(1000000000) + left.st_ctim.tv_nsec;
    }
    close(fd);
    return error;
}
