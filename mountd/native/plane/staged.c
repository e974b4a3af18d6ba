/* Reads of leaves that have the number of an object: it is opened, read as far as it is in memory, and closed.
 *
 * Only in a mount where opens do not reach us, of sources that never change: so the id that the kernel reads by stands
 * for its object, whatever has become of the leaf. Which objects are right is said by Python, which takes one out before
 * that changes or goes. A part of the data plane, see plane.h. Keeps no descriptors, and waits for no disk.
 */
#include "plane.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

struct staged {
    struct entry entry; /* by the number of the object */
    uint64_t inode, size;
    int64_t ctime_ns;
};

static struct table table;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int objects_fd = -1; /* atomic */

static void make(void) { table_init(&table); }

static struct table *all(void) {
    pthread_once(&once, make);
    return &table;
}

void staged_in(int directory_fd) { __atomic_store_n(&objects_fd, directory_fd, __ATOMIC_RELEASE); }

int staged_put(uint64_t number, uint64_t inode, uint64_t size, int64_t ctime_ns, int wait) {
    struct staged *staged = malloc(sizeof *staged);
    if (!staged) return ENOMEM;
    *staged = (struct staged){.entry.node = number, .inode = inode, .size = size, .ctime_ns = ctime_ns};
    int error = table_put(all(), &staged->entry, wait);
    if (error == EEXIST && !(error = staged_take(number, wait))) error = table_put(all(), &staged->entry, wait);
    if (error) free(staged);
    return error;
}

int staged_take(uint64_t number, int wait) {
    struct entry *entry;
    int error = table_take(all(), number, wait, &entry);
    if (!error) free(entry);
    return error;
}

static int open_object(int directory, uint64_t number) {
    char name[OBJECT_NAME_BYTES];
    snprintf(name, sizeof name, "%02x/%llu", (unsigned)(number & 0xff), (unsigned long long)number);
    struct open_how how = {.flags = O_RDONLY | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS | RESOLVE_CACHED};
    return (int)syscall(SYS_openat2, directory, name, &how, sizeof how);
}

static ssize_t read_object(int directory, const struct staged *staged, uint64_t offset, size_t size, char *buffer) {
    struct object object = {.inode = staged->inode, .size = staged->size, .ctime_ns = staged->ctime_ns};
    if (offset >= object.size) return 0;
    object.fd = open_object(directory, staged->entry.node);
    if (object.fd < 0) return -EAGAIN;
    size_t wanted = size < object.size - offset ? size : (size_t)(object.size - offset);
    struct iovec part = {buffer, wanted};
    ssize_t got = preadv2(object.fd, &part, 1, (off_t)offset, RWF_NOWAIT);
    int is_right = got == (ssize_t)wanted && is_as_left(&object); /* afterwards: so it was before */
    close(object.fd);
    return is_right ? got : -EAGAIN;
}

ssize_t staged_read(uint64_t node, uint64_t offset, size_t size, char *buffer) {
    int directory = __atomic_load_n(&objects_fd, __ATOMIC_ACQUIRE);
    uint64_t number = leaves_object(node);
    struct shard *held;
    struct staged *staged = directory >= 0 && number ? (struct staged *)table_hold(all(), number, &held) : NULL;
    if (!staged) return -EAGAIN;
    ssize_t got = read_object(directory, staged, offset, size, buffer);
    table_let_go(held);
    return got;
}

size_t staged_count(void) { return table_count(all()); }
