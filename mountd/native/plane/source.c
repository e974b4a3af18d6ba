/* One small file of the source, in a directory that is held open: looked at, or read whole.
 *
 * All bytes are of one version, which is looked at before and after. Whatever is not an ordinary file that nobody has
 * changed of late is Python's: links, several names, another file system, a young ctime. A large one is only looked at. A part of the
 * pipeline, see fetch.h. Waits for the source as long as that takes; writes nothing there.
 */
#include "fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if __has_include(<xxhash.h>)
#define XXH_INLINE_ALL
#include <xxhash.h>
int source_is_available(void) { return 1; }
uint64_t checksum_of(const char *data, size_t size) { return XXH3_64bits(data, size); }
#else
int source_is_available(void) { return 0; }
uint64_t checksum_of(const char *data, size_t size) { return (void)data, (void)size, 0; }
#endif

/* mountd/source/descriptors.py: OPEN_TO_READ */
#define OPEN_TO_READ (O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)

struct source_counts source_counts;

static void count(int64_t *counter, int64_t more) { __atomic_add_fetch(counter, more, __ATOMIC_RELAXED); }

static void note(const struct stat *found, struct seen *seen) {
    *seen = (struct seen){
        .mode = found->st_mode, .nlink = found->st_nlink > UINT32_MAX ? UINT32_MAX : (uint32_t)found->st_nlink,
        .uid = found->st_uid, .gid = found->st_gid, .block_bytes = (uint32_t)found->st_blksize, .inode = found->st_ino,
        .size = (uint64_t)found->st_size, .blocks = (uint64_t)found->st_blocks, .rdev = found->st_rdev, .device = found->st_dev,
    };
    const struct timespec times[] = {found->st_atim, found->st_mtim, found->st_ctim};
    for (int i = 0; i < 3; i++) seen->seconds[i] = times[i].tv_sec, seen->parts[i] = (uint32_t)times[i].tv_nsec;
}

static int is_same(const struct stat *one, const struct stat *other) {
    return one->st_ino == other->st_ino && one->st_size == other->st_size && !memcmp(&one->st_mtim, &other->st_mtim, sizeof one->st_mtim) &&
           !memcmp(&one->st_ctim, &other->st_ctim, sizeof one->st_ctim);
}

static int is_ordinary(const struct lent *lent, const struct stat *found) {
    if (!S_ISREG(found->st_mode) || found->st_nlink != 1 || found->st_dev != lent->device) return 0;
    if (found->st_ctim.tv_sec < 0 || found->st_ctim.tv_sec > INT64_MAX / 1000000000 - 1) return 0;
    if (found->st_mtim.tv_sec < INT64_MIN / 1000000000 + 1 || found->st_mtim.tv_sec > INT64_MAX / 1000000000 - 1) return 0;
    return found->st_ctim.tv_sec * INT64_C(1000000000) + found->st_ctim.tv_nsec <= lent->settled_ns;
}

static int look(const struct lent *lent, const char *name, struct seen *seen) {
    struct stat found;
    if (fstatat(lent->fd, name, &found, AT_SYMLINK_NOFOLLOW)) return errno;
    note(&found, seen);
    return is_ordinary(lent, &found) ? SOURCE_OK : SOURCE_PYTHONS;
}

int source_look(const struct lent *lent, const char *name, struct file *file) {
    count(&source_counts.looks, 1);
    int error = look(lent, name, &file->seen);
    if (!error) file->number = staged_find(&file->seen, &file->checksum);
    return error;
}

static int read_whole(int fd, struct file *file) {
    size_t size = (size_t)file->seen.size;
    for (size_t done = 0; done < size;) {
        ssize_t got = pread(fd, file->data + done, size - done, (off_t)done);
        if (got < 0) return errno;
        if (!got) return SOURCE_PYTHONS; /* it ends before its size says so */
        done += (size_t)got;
    }
    return SOURCE_OK;
}

static int fetch(const struct lent *lent, int fd, struct file *file) {
    struct stat before, after;
    if (fstat(fd, &before)) return errno;
    note(&before, &file->seen);
    if (!is_ordinary(lent, &before)) return SOURCE_PYTHONS;
    file->number = staged_find(&file->seen, &file->checksum);
    if (file->number) return SOURCE_OK;
    if (before.st_size && (uint64_t)before.st_size <= lent->largest) file->data = buffer_take((size_t)before.st_size);
    if (!file->data) return SOURCE_OK;
    count(&source_counts.reads, 1);
    count(&source_counts.bytes, before.st_size);
    int error = read_whole(fd, file);
    if (!error && fstat(fd, &after)) error = errno;
    if (!error && !is_same(&before, &after)) error = SOURCE_PYTHONS;
    if (!error) {
        file->checksum = checksum_of(file->data, (size_t)before.st_size);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* read once: these pages would only push out others */
        return SOURCE_OK;
    }
    buffer_give(file->data, (size_t)before.st_size);
    file->data = NULL;
    return error;
}

int source_fetch(const struct lent *lent, const char *name, struct file *file) {
    file->data = NULL;
    file->number = 0;
    if (lent->careful) { /* the client of a network file system knows it from the look-up, or does at the open */
        int error = look(lent, name, &file->seen);
        if (error) return error;
    }
    count(&source_counts.opens, 1);
    int fd = openat(lent->fd, name, OPEN_TO_READ);
    if (fd < 0) return errno;
    int error = fetch(lent, fd, file);
    close(fd);
    return error;
}
