/* One small file of the source, in a directory that is held open: looked at, or read whole.
 *
 * All bytes are of one version, which is looked at before and after. Whatever is not an ordinary file that nobody has
 * changed of late is Python's: links, another file system, a young ctime. A large one is only looked at. A part of the
 * pipeline, see fetch.h. Waits for the source as long as that takes; writes nothing there.
 */
#include "fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

/* mountd/source/descriptors.py: OPEN_TO_READ */
#define OPEN_TO_READ (O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)

struct source_counts source_counts;

/* Without the access time: a read makes it unknown to the client of a network file system, and asking for it costs a
 * round trip. */
#define WANTED (STATX_BASIC_STATS & ~STATX_ATIME)
#define IDENTITY (STATX_TYPE | STATX_MTIME | STATX_CTIME | STATX_INO | STATX_SIZE)

static void note(const struct statx *found, struct seen *seen) {
    *seen = (struct seen){
        .mode = found->stx_mode, .nlink = found->stx_nlink, .uid = found->stx_uid, .gid = found->stx_gid,
        .block_bytes = found->stx_blksize, .inode = found->stx_ino, .size = found->stx_size, .blocks = found->stx_blocks,
        .rdev = makedev(found->stx_rdev_major, found->stx_rdev_minor),
        .device = makedev(found->stx_dev_major, found->stx_dev_minor),
    };
    const struct statx_timestamp times[] = {found->stx_atime, found->stx_mtime, found->stx_ctime};
    for (int i = 0; i < 3; i++) seen->seconds[i] = times[i].tv_sec, seen->parts[i] = times[i].tv_nsec;
}

static int is_same(const struct statx *one, const struct statx *other) {
    return S_ISREG(other->stx_mode) && one->stx_ino == other->stx_ino && one->stx_size == other->stx_size &&
           one->stx_mtime.tv_sec == other->stx_mtime.tv_sec && one->stx_mtime.tv_nsec == other->stx_mtime.tv_nsec &&
           one->stx_ctime.tv_sec == other->stx_ctime.tv_sec && one->stx_ctime.tv_nsec == other->stx_ctime.tv_nsec;
}

static struct table distrusted = TABLE;
static int distrusts_all; /* there was no memory to tell which; atomic */

void source_distrusts(uint64_t inode) {
    struct entry *entry = malloc(sizeof *entry);
    if (entry) entry->node = inode;
    int error = entry ? table_put(&distrusted, entry) : ENOMEM;
    if (error) free(entry);
    if (error && error != EEXIST) __atomic_store_n(&distrusts_all, 1, __ATOMIC_RELEASE);
}

static int is_ordinary(const struct delegated *delegated, const struct seen *seen) {
    const int64_t second = 1000000000, *seconds = seen->seconds;
    if (!S_ISREG(seen->mode) || seen->device != delegated->device) return 0;
    if (__atomic_load_n(&distrusts_all, __ATOMIC_ACQUIRE) || (table_count(&distrusted) && table_has(&distrusted, seen->inode))) return 0;
    if (seconds[2] < 0 || seconds[2] > INT64_MAX / second - 1) return 0;
    if (seconds[1] < INT64_MIN / second + 1 || seconds[1] > INT64_MAX / second - 1) return 0;
    return seconds[2] * second + seen->parts[2] <= (seen->parts[2] ? delegated->settled_fine_ns : delegated->settled_ns);
}

static int look(const struct delegated *delegated, const char *name, struct seen *seen) {
    struct statx found;
    if (statx(delegated->fd, name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &found)) return errno;
    note(&found, seen);
    return is_ordinary(delegated, seen) ? SOURCE_OK : SOURCE_PYTHONS;
}

/* An ACL is a part of the version: a change of it moves the ctime. */
static int has_no_acl(int fd) {
    return fgetxattr(fd, "system.posix_acl_access", NULL, 0) < 0 && (errno == ENODATA || errno == EOPNOTSUPP);
}

/* The kernel asks for the ACL where somebody else than the owner opens a file; and in the name of who has made an overlay,
 * of each file that is looked up there. What is known when it is staged is kept with its attributes, for later jobs. */
static int will_be_asked(const struct delegated *delegated, const struct seen *seen) {
    return __atomic_load_n(&delegated->wants_acls, __ATOMIC_RELAXED) || (overlay_is_on() && seen->uid != geteuid());
}

int source_look(struct delegated *delegated, const char *name, struct file *file) {
    count(&source_counts.looks, 1);
    int error = look(delegated, name, &file->seen);
    if (!error && __atomic_load_n(&delegated->wants_acls, __ATOMIC_RELAXED)) {
        int fd = openat(delegated->fd, name, OPEN_TO_READ);
        if (fd >= 0 && has_no_acl(fd)) file->seen.flags = SEEN_NO_ACL;
        if (fd >= 0) close(fd);
    }
    if (!error) file->number = staged_find(&file->seen, &file->checksum);
    __atomic_store_n(&delegated->is_staged, file->number != 0, __ATOMIC_RELAXED);
    return file->number == STAGED_PYTHONS ? SOURCE_PYTHONS : error;
}

/* To its end, wherever that is: a file may have fewer or more bytes than it says. */
static int read_whole(int fd, struct file *file) {
    size_t size = (size_t)file->seen.size, done = 0;
    char behind;
    for (ssize_t got = 1; got && done <= size; done += (size_t)got) {
        struct iovec parts[] = {{file->data + done, size - done}, {&behind, 1}};
        got = size ? preadv(fd, parts, 2, (off_t)done) : pread(fd, &behind, 1, 0);
        if (got < 0) return errno;
    }
    return done == size ? SOURCE_OK : SOURCE_PYTHONS;
}

/* Files with several names that are being read, or stored. Whoever wants another name of one waits until it is known where
 * its bytes are: trees that are linked as wholes were read twice. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t fewer; /* of CLOCK_MONOTONIC */
    uint64_t inodes[FETCH_WORKERS]; /* 0: none */
} linked = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void __attribute__((constructor)) begin(void) { cond_of_monotonic(&linked.fewer); }

static int place_of_linked(uint64_t inode) {
    for (int place = 0; place < FETCH_WORKERS; place++)
        if (linked.inodes[place] == inode) return place;
    return FETCH_WORKERS;
}

static void begin_linked(struct file *file) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until); /* one that is set back would have it wait for hours */
    until.tv_sec++; /* then it is read twice: its reader hangs, perhaps */
    pthread_mutex_lock(&linked.lock);
    while (place_of_linked(file->seen.inode) < FETCH_WORKERS && !pthread_cond_timedwait(&linked.fewer, &linked.lock, &until)) {}
    int place = place_of_linked(0);
    if (place < FETCH_WORKERS) linked.inodes[place] = file->seen.inode, file->linked = &linked.inodes[place];
    pthread_mutex_unlock(&linked.lock);
}

void source_done(struct file *file) {
    if (!file->linked) return;
    pthread_mutex_lock(&linked.lock);
    *file->linked = 0;
    pthread_cond_broadcast(&linked.fewer);
    pthread_mutex_unlock(&linked.lock);
}

static int fetch(const struct delegated *delegated, int fd, struct file *file) {
    struct statx before, after;
    if (statx(fd, "", AT_EMPTY_PATH, WANTED, &before)) return errno;
    note(&before, &file->seen);
    if (!is_ordinary(delegated, &file->seen)) return SOURCE_PYTHONS;
    if (before.stx_nlink > 1) begin_linked(file);
    file->number = staged_find(&file->seen, &file->checksum);
    if (file->number) return file->number == STAGED_PYTHONS ? SOURCE_PYTHONS : SOURCE_OK;
    size_t size = (size_t)file->seen.size;
    if (size && size <= delegated->largest) file->data = buffer_take(size);
    if (size && !file->data) return SOURCE_OK;
    if (size) count(&source_counts.reads, 1), count(&source_counts.bytes, (int64_t)size);
    int error = read_whole(fd, file);
    if (!error && statx(fd, "", AT_EMPTY_PATH, IDENTITY, &after)) error = errno;
    if (!error && !is_same(&before, &after)) error = SOURCE_PYTHONS;
    if (!error && will_be_asked(delegated, &file->seen) && has_no_acl(fd)) file->seen.flags = SEEN_NO_ACL;
    if (error) {
        buffer_give(file->data, size);
        file->data = NULL;
        return error;
    }
    file->is_empty = !size;
    if (size) file->checksum = checksum_of(file->data, size);
    if (size) posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* read once: these pages would only push out others */
    return SOURCE_OK;
}

int source_fetch(struct delegated *delegated, const char *name, struct file *file) {
    file->data = NULL;
    file->number = 0;
    file->is_empty = 0;
    file->linked = NULL;
    if (__atomic_load_n(&delegated->is_staged, __ATOMIC_RELAXED)) { /* a stat costs the source less than an open */
        int error = source_look(delegated, name, file);
        if (error || file->number) return error;
    } else if (delegated->careful) { /* the client of a network file system knows it from the look-up, or does at the open */
        int error = look(delegated, name, &file->seen);
        if (error) return error;
    }
    count(&source_counts.opens, 1);
    int fd = openat(delegated->fd, name, OPEN_TO_READ);
    if (fd < 0) return errno;
    int error = fetch(delegated, fd, file);
    close(fd);
    __atomic_store_n(&delegated->is_staged, file->number != 0, __ATOMIC_RELAXED);
    return error;
}
