/* Loaded before libc (LD_PRELOAD): the Nth I/O call of a process on the source or on the cache fails, once or from then on.
 *
 *   FAULTS_CONTROL   a file of sizeof(struct control), mapped and shared: the benchmark arms it while the process runs
 *   FAULTS_SOURCE    calls on what lies below this directory are of the source
 *   FAULTS_CACHE     ... of the cache
 *
 * A call belongs to where its path or its descriptor leads. Not armed, nothing is counted and nothing fails. Reads of
 * the source fail with EIO, of the cache too; what would write fails with ENOSPC, as a full disk does.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { SOURCE = 1, CACHE = 2 };

struct control {
    _Atomic int64_t at; /* which call fails; 0: not armed */
    _Atomic int64_t for_ever, where; /* `where`: SOURCE, CACHE */
    _Atomic int64_t count, failed; /* since the benchmark put 0 there */
    char first[64]; /* the name of the first call that failed */
};

static struct control *control;
static char source[PATH_MAX], cache[PATH_MAX];
static long (*real_syscall)(long, ...);

__attribute__((constructor)) static void start(void) {
    const char *file = getenv("FAULTS_CONTROL"), *below_source = getenv("FAULTS_SOURCE"), *below_cache = getenv("FAULTS_CACHE");
    *(void **)&real_syscall = dlsym(RTLD_NEXT, "syscall");
    if (!file || !below_source || !below_cache) return;
    snprintf(source, sizeof source, "%s", below_source);
    snprintf(cache, sizeof cache, "%s", below_cache);
    int fd = (int)real_syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) return;
    void *memory = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    real_syscall(SYS_close, fd);
    if (memory != MAP_FAILED) control = memory;
}

static int below(const char *path, const char *root) {
    size_t size = strlen(root);
    return size && !strncmp(path, root, size) && (path[size] == '/' || !path[size] || path[size] == ' ');
}

static int of_path(const char *path) {
    return below(path, source) ? SOURCE : below(path, cache) ? CACHE : 0;
}

static int of_fd(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long size = real_syscall(SYS_readlink, link, path, sizeof path - 1);
    if (size <= 0) return 0;
    path[size] = 0;
    return of_path(path);
}

static int of(int fd, const char *path) {
    int number;
    if (path && sscanf(path, "/proc/self/fd/%d", &number) == 1) return of_fd(number);
    if (path && path[0] == '/') return of_path(path);
    return fd == AT_FDCWD ? 0 : of_fd(fd);
}

/* True if this call is to fail; errno is set. */
static int fails(int where, int writes, const char *name) {
    int64_t at = control ? atomic_load(&control->at) : 0;
    if (!at || !(where & atomic_load(&control->where))) return 0;
    int64_t count = atomic_fetch_add(&control->count, 1) + 1;
    if (count != at && !(atomic_load(&control->for_ever) && count > at)) return 0;
    if (!atomic_fetch_add(&control->failed, 1)) snprintf(control->first, sizeof control->first, "%s", name);
    errno = writes && where == CACHE ? ENOSPC : EIO;
    return 1;
}

#define ARMED (control && atomic_load(&control->at))

/* CALL(result, name, parameters, arguments, where, writes): one function of libc. */
#define CALL(result, name, parameters, arguments, where, writes)                                                       \
    result name parameters {                                                                                           \
        static result(*next) parameters;                                                                               \
        if (!next) *(void **)&next = dlsym(RTLD_NEXT, #name);                                                          \
        if (ARMED && fails(where, writes, #name)) return (result)-1;                                                   \
        return next arguments;                                                                                         \
    }

#define OPENS(name)                                                                                                    \
    int name(const char *path, int flags, ...) {                                                                       \
        static int (*next)(const char *, int, ...);                                                                    \
        if (!next) *(void **)&next = dlsym(RTLD_NEXT, #name);                                                          \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                                        \
        va_end(more);                                                                                                  \
        if (ARMED && fails(of(AT_FDCWD, path), flags & O_CREAT, #name)) return -1;                                     \
        return next(path, flags, mode);                                                                                \
    }
#define OPENS_AT(name)                                                                                                 \
    int name(int fd, const char *path, int flags, ...) {                                                               \
        static int (*next)(int, const char *, int, ...);                                                               \
        if (!next) *(void **)&next = dlsym(RTLD_NEXT, #name);                                                          \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                                        \
        va_end(more);                                                                                                  \
        if (ARMED && fails(of(fd, path), flags & O_CREAT, #name)) return -1;                                           \
        return next(fd, path, flags, mode);                                                                            \
    }
OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)

CALL(ssize_t, read, (int fd, void *b, size_t n), (fd, b, n), of_fd(fd), 0)
CALL(ssize_t, pread, (int fd, void *b, size_t n, off_t o), (fd, b, n, o), of_fd(fd), 0)
CALL(ssize_t, pread64, (int fd, void *b, size_t n, off64_t o), (fd, b, n, o), of_fd(fd), 0)
CALL(ssize_t, preadv, (int fd, const struct iovec *v, int n, off_t o), (fd, v, n, o), of_fd(fd), 0)
CALL(ssize_t, preadv64, (int fd, const struct iovec *v, int n, off64_t o), (fd, v, n, o), of_fd(fd), 0)
CALL(ssize_t, preadv2, (int fd, const struct iovec *v, int n, off_t o, int f), (fd, v, n, o, f), of_fd(fd), 0)
CALL(ssize_t, preadv64v2, (int fd, const struct iovec *v, int n, off64_t o, int f), (fd, v, n, o, f), of_fd(fd), 0)
CALL(ssize_t, write, (int fd, const void *b, size_t n), (fd, b, n), of_fd(fd), 1)
CALL(ssize_t, pwrite, (int fd, const void *b, size_t n, off_t o), (fd, b, n, o), of_fd(fd), 1)
CALL(ssize_t, pwrite64, (int fd, const void *b, size_t n, off64_t o), (fd, b, n, o), of_fd(fd), 1)
CALL(ssize_t, pwritev, (int fd, const struct iovec *v, int n, off_t o), (fd, v, n, o), of_fd(fd), 1)
CALL(ssize_t, pwritev64, (int fd, const struct iovec *v, int n, off64_t o), (fd, v, n, o), of_fd(fd), 1)
CALL(ssize_t, pwritev64v2, (int fd, const struct iovec *v, int n, off64_t o, int f), (fd, v, n, o, f), of_fd(fd), 1)
CALL(int, fsync, (int fd), (fd), of_fd(fd), 0)
CALL(int, fdatasync, (int fd), (fd), of_fd(fd), 0)
CALL(int, syncfs, (int fd), (fd), of_fd(fd), 0)
CALL(int, ftruncate, (int fd, off_t n), (fd, n), of_fd(fd), 1)
CALL(int, ftruncate64, (int fd, off64_t n), (fd, n), of_fd(fd), 1)
CALL(int, fallocate, (int fd, int m, off_t o, off_t n), (fd, m, o, n), of_fd(fd), 1)
CALL(int, fallocate64, (int fd, int m, off64_t o, off64_t n), (fd, m, o, n), of_fd(fd), 1)
CALL(int, unlink, (const char *p), (p), of(AT_FDCWD, p), 0)
CALL(int, unlinkat, (int fd, const char *p, int f), (fd, p, f), of(fd, p), 0)
CALL(int, mkdir, (const char *p, mode_t m), (p, m), of(AT_FDCWD, p), 1)
CALL(int, mkdirat, (int fd, const char *p, mode_t m), (fd, p, m), of(fd, p), 1)
CALL(int, rename, (const char *p, const char *q), (p, q), of(AT_FDCWD, p), 1)
CALL(int, renameat, (int a, const char *p, int b, const char *q), (a, p, b, q), of(a, p), 1)
CALL(int, fstat, (int fd, struct stat *s), (fd, s), of_fd(fd), 0)
CALL(int, fstat64, (int fd, struct stat64 *s), (fd, s), of_fd(fd), 0)
CALL(int, stat, (const char *p, struct stat *s), (p, s), of(AT_FDCWD, p), 0)
CALL(int, stat64, (const char *p, struct stat64 *s), (p, s), of(AT_FDCWD, p), 0)
CALL(int, lstat, (const char *p, struct stat *s), (p, s), of(AT_FDCWD, p), 0)
CALL(int, lstat64, (const char *p, struct stat64 *s), (p, s), of(AT_FDCWD, p), 0)
CALL(int, fstatat, (int fd, const char *p, struct stat *s, int f), (fd, p, s, f), of(fd, p), 0)
CALL(int, fstatat64, (int fd, const char *p, struct stat64 *s, int f), (fd, p, s, f), of(fd, p), 0)
CALL(int, fstatvfs, (int fd, struct statvfs *s), (fd, s), of_fd(fd), 0)
CALL(int, fstatvfs64, (int fd, struct statvfs64 *s), (fd, s), of_fd(fd), 0)
CALL(int, statvfs, (const char *p, struct statvfs *s), (p, s), of(AT_FDCWD, p), 0)
CALL(int, statvfs64, (const char *p, struct statvfs64 *s), (p, s), of(AT_FDCWD, p), 0)
CALL(int, statx, (int fd, const char *restrict p, int f, unsigned m, struct statx *restrict s), (fd, p, f, m, s), of(fd, p), 0)
CALL(ssize_t, getdents64, (int fd, void *b, size_t n), (fd, b, n), of_fd(fd), 0)
CALL(ssize_t, readlink, (const char *p, char *b, size_t n), (p, b, n), of(AT_FDCWD, p), 0)
CALL(ssize_t, readlinkat, (int fd, const char *p, char *b, size_t n), (fd, p, b, n), of(fd, p), 0)
CALL(ssize_t, lgetxattr, (const char *p, const char *a, void *b, size_t n), (p, a, b, n), of(AT_FDCWD, p), 0)
CALL(ssize_t, getxattr, (const char *p, const char *a, void *b, size_t n), (p, a, b, n), of(AT_FDCWD, p), 0)
CALL(ssize_t, fgetxattr, (int fd, const char *a, void *b, size_t n), (fd, a, b, n), of_fd(fd), 0)

/* openat2 and others that libc has no function for. */
long syscall(long number, ...) {
    long a[6];
    va_list more;
    va_start(more, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(more, long);
    va_end(more);
    if (!real_syscall) *(void **)&real_syscall = dlsym(RTLD_NEXT, "syscall");
    if (ARMED && (number == SYS_openat2 || number == SYS_statx) && fails(of((int)a[0], (const char *)a[1]), 0, "syscall"))
        return -1;
    return real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
