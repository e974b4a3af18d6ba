/* Reads of leaves: the object is opened by its number, read as far as it is in memory, and closed.
 *
 * Only in a mount where opens do not reach us, of sources that never change: so a leaf stands for its object as long as
 * that is as it was left. A part of the data plane, see plane.h. Keeps no descriptors.
 */
#include "plane.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/uio.h>
#include <unistd.h>

static int objects_fd = -1; /* atomic */

void staged_in(int directory_fd) { __atomic_store_n(&objects_fd, directory_fd, __ATOMIC_RELEASE); }

ssize_t staged_read(uint64_t node, uint64_t offset, size_t size, char *buffer) {
    int directory = __atomic_load_n(&objects_fd, __ATOMIC_ACQUIRE);
    struct object object = {.fd = -1};
    uint64_t number;
    if (directory < 0 || !leaves_find_object(node, &number, &object.inode, &object.size, &object.ctime_ns)) return -EAGAIN;
    if (offset >= object.size) return 0;
    char name[OBJECT_NAME_BYTES];
    snprintf(name, sizeof name, "%02x/%llu", (unsigned)(number & 0xff), (unsigned long long)number);
    object.fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (object.fd < 0) return -EAGAIN;
    size_t wanted = size < object.size - offset ? size : (size_t)(object.size - offset);
    struct iovec part = {buffer, wanted};
    ssize_t got = is_as_left(&object) ? preadv2(object.fd, &part, 1, (off_t)offset, RWF_NOWAIT) : -1;
    close(object.fd);
    return got == (ssize_t)wanted ? got : -EAGAIN;
}
