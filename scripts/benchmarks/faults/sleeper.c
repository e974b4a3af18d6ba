/* A thread that reads requests sleeps in the kernel: with LD_PRELOAD, in the daemon of one test.
 *
 * Before its reply it takes one of the links $MOUNT_TEST_SLEEP/reply-1, 2, ... away, before it takes a request take-1, 2, ...,
 * and writes to the file that this leads to, on a file system that the test has frozen: not even SIGKILL ends that.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

static void sleep_in_the_kernel(const char *before) {
    const char *links = getenv("MOUNT_TEST_SLEEP");
    char name[16] = "", link[PATH_MAX], target[PATH_MAX];
    if (!links || prctl(PR_GET_NAME, name) || strncmp(name, "hfs-plane-", 10)) return;
    for (int number = 1; number <= 9; number++) {
        snprintf(link, sizeof link, "%s/%s-%d", links, before, number);
        ssize_t size = readlink(link, target, sizeof target - 1);
        if (size < 0 || unlink(link)) continue;
        target[size] = 0;
        int fd = open(target, O_WRONLY | O_CLOEXEC);
        if (fd >= 0 && write(fd, "x", 1) >= 0) close(fd);
        return;
    }
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    static ssize_t (*real)(int, const struct iovec *, int);
    if (!real) real = (ssize_t(*)(int, const struct iovec *, int))dlsym(RTLD_NEXT, "writev");
    sleep_in_the_kernel("reply");
    return real(fd, parts, count);
}

ssize_t read(int fd, void *buffer, size_t size) {
    static ssize_t (*real)(int, void *, size_t);
    if (!real) real = (ssize_t(*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
    sleep_in_the_kernel("take");
    return real(fd, buffer, size);
}
