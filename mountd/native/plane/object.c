/* Objects of the cache that are answered with: whether one is still as it was left.
 *
 * Every change of a file gives it another ctime, which no program can set (mountd/cache/objects/stamps.py). A part of the
 * data plane, see plane.h.
 */
#include "plane.h"

#include <fcntl.h>
#include <sys/stat.h>

int is_as_left(const struct object *object) {
    struct stat now;
    int failed = object->name[0] ? fstatat(object->fd, object->name, &now, AT_SYMLINK_NOFOLLOW) : fstat(object->fd, &now);
    if (failed) return 0;
    return now.st_ino == object->inode && (uint64_t)now.st_size == object->size &&
           now.st_ctim.tv_sec * INT64_C(1000000000) + now.st_ctim.tv_nsec == object->ctime_ns;
}
