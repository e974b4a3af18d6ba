/* Records what a process does to the files below one directory, with the bytes, in the order in which it does it.
 *
 * Preloaded (LD_PRELOAD) into tests/power/child.py. RECORD_BELOW: the directory, RECORD_LOG: the file of the records,
 * which tests/power/replay.py reads. Syncs are recorded and not carried out: they cost milliseconds, and what they
 * promise is replayed. Mapped writes are not seen; SQLite maps only its -shm, which means nothing after a crash.
 * For one thread: two at once would be recorded in an order of their own.
 *
 * A record: kind (1), two file numbers or offsets (8, 8), lengths of two texts (4, 4), the texts. Native byte order.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int log_fd = -1;
static char below[4096];
static size_t below_len;

__attribute__((constructor)) static void begin(void) {
    const char *directory = getenv("RECORD_BELOW"), *path = getenv("RECORD_LOG");
    if (!directory || !path) return;
    snprintf(below, sizeof below, "%s", directory);
    below_len = strlen(below);
    log_fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static void put(char kind, uint64_t a, uint64_t b, const char *one, uint32_t one_len, const struct iovec *parts,
                int count, uint32_t two_len) {
    char head[25];
    struct iovec all[1 + 1 + 64] = {{head, sizeof head}, {(void *)one, one_len}};
    head[0] = kind;
    memcpy(head + 1, &a, 8);
    memcpy(head + 9, &b, 8);
    memcpy(head + 17, &one_len, 4);
    memcpy(head + 21, &two_len, 4);
    if (count > 64) abort();
    if (count > 0) memcpy(all + 2, parts, count * sizeof *parts);
    /* The parts may hold more than was written. */
    size_t left = two_len;
    for (int i = 0; i < count; i++) {
        if (all[2 + i].iov_len > left) all[2 + i].iov_len = left;
        left -= all[2 + i].iov_len;
    }
    ssize_t want = (ssize_t)sizeof head + one_len + two_len;
    if (syscall(SYS_writev, log_fd, all, 2 + count) != want) abort();
}

static void put_names(char kind, uint64_t a, const char *one, const char *two) {
    struct iovec part = {(void *)two, two ? strlen(two) : 0};
    put(kind, a, 0, one, strlen(one), &part, two ? 1 : 0, part.iov_len);
}

static int is_below(const char *path) {
    return log_fd >= 0 && !strncmp(path, below, below_len) && (path[below_len] == '/' || !path[below_len]);
}

/* The path of a name, in `into`; 0 if it does not lie below. */
static int found(int directory, const char *name, char into[8192]) {
    if (log_fd < 0) return 0;
    if (name[0] == '/') {
        snprintf(into, 8192, "%s", name);
    } else {
        char link[64], base[4096];
        if (directory == AT_FDCWD)
            snprintf(link, sizeof link, "/proc/self/cwd");
        else
            snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, base, sizeof base - 1);
        if (size < 0) return 0;
        base[size] = 0;
        snprintf(into, 8192, "%s/%s", base, name);
    }
    return is_below(into);
}

/* The inode of a descriptor of something below; 0: it is none. `mode` of the file. */
static uint64_t inode_of(int fd, mode_t *mode) {
    char link[64], path[8192];
    struct stat s;
    if (log_fd < 0 || fd == log_fd) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    if (!is_below(path) || fstat(fd, &s) != 0) return 0;
    if (mode) *mode = s.st_mode;
    return s.st_ino;
}

void record_note(const char *text) {
    if (log_fd >= 0) put_names('N', 0, text, NULL);
}

static int open_any(int directory, const char *name, int flags, mode_t mode) {
    char path[8192];
    int recorded = found(directory, name, path), created = 0;
    if (recorded && flags & O_CREAT) created = syscall(SYS_faccessat, AT_FDCWD, path, F_OK) != 0;
    int fd = syscall(SYS_openat, directory, name, flags, mode);
    if (fd < 0 || !recorded) return fd;
    int saved = errno;
    uint64_t inode = inode_of(fd, NULL);
    if (created) put_names('C', inode, path, NULL);
    if (flags & O_TRUNC) put('T', inode, 0, NULL, 0, NULL, 0, 0);
    errno = saved;
    return fd;
}

#define MODE(flags)                                     \
    mode_t mode = 0;                                    \
    if ((flags) & (O_CREAT | O_TMPFILE)) {              \
        va_list arguments;                              \
        va_start(arguments, flags);                     \
        mode = va_arg(arguments, mode_t);               \
        va_end(arguments);                              \
    }
int open(const char *name, int flags, ...) { MODE(flags) return open_any(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE(flags) return open_any(AT_FDCWD, name, flags, mode); }
int openat(int directory, const char *name, int flags, ...) { MODE(flags) return open_any(directory, name, flags, mode); }
int openat64(int directory, const char *name, int flags, ...) { MODE(flags) return open_any(directory, name, flags, mode); }
int __open_2(const char *name, int flags) { return open_any(AT_FDCWD, name, flags, 0); }
int __open64_2(const char *name, int flags) { return open_any(AT_FDCWD, name, flags, 0); }
int __openat_2(int directory, const char *name, int flags) { return open_any(directory, name, flags, 0); }
int __openat64_2(int directory, const char *name, int flags) { return open_any(directory, name, flags, 0); }

static ssize_t written(int fd, ssize_t done, off_t offset, const struct iovec *parts, int count) {
    int saved = errno;
    uint64_t inode = done > 0 ? inode_of(fd, NULL) : 0;
    if (inode) put('W', inode, offset, NULL, 0, parts, count, done);
    errno = saved;
    return done;
}

static ssize_t pwrite_any(int fd, const void *data, size_t size, off_t offset) {
    struct iovec part = {(void *)data, size};
    return written(fd, syscall(SYS_pwrite64, fd, data, size, offset), offset, &part, 1);
}

static ssize_t pwritev_any(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    return written(fd, syscall(SYS_pwritev2, fd, parts, count, offset, 0, flags), offset, parts, count);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return pwrite_any(fd, data, size, offset); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) { return pwrite_any(fd, data, size, offset); }
ssize_t pwritev(int fd, const struct iovec *p, int n, off_t offset) { return pwritev_any(fd, p, n, offset, 0); }
ssize_t pwritev64(int fd, const struct iovec *p, int n, off64_t offset) { return pwritev_any(fd, p, n, offset, 0); }
ssize_t pwritev2(int fd, const struct iovec *p, int n, off_t o, int flags) { return pwritev_any(fd, p, n, o, flags); }
ssize_t pwritev64v2(int fd, const struct iovec *p, int n, off64_t o, int flags) { return pwritev_any(fd, p, n, o, flags); }

ssize_t write(int fd, const void *data, size_t size) {
    off_t offset = log_fd >= 0 ? syscall(SYS_lseek, fd, 0, SEEK_CUR) : -1;
    struct iovec part = {(void *)data, size};
    ssize_t done = syscall(SYS_write, fd, data, size);
    return offset < 0 ? done : written(fd, done, offset, &part, 1);
}

static int truncate_any(int fd, off_t size) {
    int failed = syscall(SYS_ftruncate, fd, size);
    uint64_t inode = failed ? 0 : inode_of(fd, NULL);
    if (inode) put('T', inode, size, NULL, 0, NULL, 0, 0);
    return failed;
}

int ftruncate(int fd, off_t size) { return truncate_any(fd, size); }
int ftruncate64(int fd, off64_t size) { return truncate_any(fd, size); }

static int fallocate_any(int fd, int mode, off_t offset, off_t size) {
    int failed = syscall(SYS_fallocate, fd, mode, offset, size);
    uint64_t inode = failed ? 0 : inode_of(fd, NULL);
    if (inode && !(mode & FALLOC_FL_PUNCH_HOLE)) abort(); /* nothing here does */
    uint64_t length = size;
    struct iovec part = {&length, 8};
    if (inode) put('P', inode, offset, NULL, 0, &part, 1, 8);
    return failed;
}

int fallocate(int fd, int mode, off_t offset, off_t size) { return fallocate_any(fd, mode, offset, size); }
int fallocate64(int fd, int mode, off64_t offset, off64_t size) { return fallocate_any(fd, mode, offset, size); }

static int sync_any(int fd, long number) {
    mode_t mode = 0;
    uint64_t inode = inode_of(fd, &mode);
    if (!inode) return syscall(number, fd);
    put(number == SYS_syncfs ? 'A' : S_ISDIR(mode) ? 'D' : 'F', inode, 0, NULL, 0, NULL, 0, 0);
    return 0;
}

int fsync(int fd) { return sync_any(fd, SYS_fsync); }
int fdatasync(int fd) { return sync_any(fd, SYS_fdatasync); }
int syncfs(int fd) { return sync_any(fd, SYS_syncfs); }

static int unlink_any(int directory, const char *name, int flags) {
    char path[8192];
    int recorded = found(directory, name, path);
    int failed = syscall(SYS_unlinkat, directory, name, flags);
    if (!failed && recorded) put_names('U', 0, path, NULL);
    return failed;
}

int unlink(const char *name) { return unlink_any(AT_FDCWD, name, 0); }
int unlinkat(int directory, const char *name, int flags) { return unlink_any(directory, name, flags); }
int rmdir(const char *name) { return unlink_any(AT_FDCWD, name, AT_REMOVEDIR); }

static int mkdir_any(int directory, const char *name, mode_t mode) {
    char path[8192];
    int recorded = found(directory, name, path);
    int failed = syscall(SYS_mkdirat, directory, name, mode);
    if (!failed && recorded) put_names('M', 0, path, NULL);
    return failed;
}

int mkdir(const char *name, mode_t mode) { return mkdir_any(AT_FDCWD, name, mode); }
int mkdirat(int directory, const char *name, mode_t mode) { return mkdir_any(directory, name, mode); }

static int rename_any(int from, const char *old, int to, const char *new) {
    char before[8192], after[8192];
    int recorded = found(from, old, before) | found(to, new, after);
    int failed = syscall(SYS_renameat2, from, old, to, new, 0);
    if (!failed && recorded) put_names('R', 0, before, after);
    return failed;
}

int rename(const char *old, const char *new) { return rename_any(AT_FDCWD, old, AT_FDCWD, new); }
int renameat(int from, const char *old, int to, const char *new) { return rename_any(from, old, to, new); }
