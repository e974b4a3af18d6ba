/* Objects of the cache that are answered with: where they lie, what their bytes
 * come to, and whether one is still as it was left.
 *
 * Every change of a file gives it another ctime, which no program can set (mountd/cache/objects/changes.py). A part of the
 * data plane, see plane.h.
 */
#include "plane.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if __has_include(<xxhash.h>)
#define XXH_INLINE_ALL
#include <xxhash.h>
int checksum_is_available(void) { return 1; }
uint64_t checksum_of(const char *data, size_t size) { return XXH3_64bits(data, size); }
#else
int checksum_is_available(void) { return 0; }
uint64_t checksum_of(const char *data, size_t size) { return (void)data, (void)size, 0; }
#endif

void object_name(uint64_t number, char *name) {
    snprintf(name, OBJECT_NAME_BYTES, "%02x/%llu", (unsigned)(number & 0xff), (unsigned long long)number);
}

static int is_it(const struct object *object, const struct stat *now) {
    return now->st_ino == object->inode && (uint64_t)now->st_size == object->size &&
           now->st_ctim.tv_sec * INT64_C(1000000000) + now->st_ctim.tv_nsec == object->ctime_ns;
}

int is_as_left(const struct object *object) {
    struct stat now;
    int failed = object->name[0] ? fstatat(object->fd, object->name, &now, AT_SYMLINK_NOFOLLOW) : fstat(object->fd, &now);
    return !failed && is_it(object, &now);
}

int is_as_left_now(const struct object *object) {
    struct stat now;
    struct open_how how = {.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS | RESOLVE_CACHED};
    int fd = (int)syscall(SYS_openat2, object->fd, object->name, &how, sizeof how);
    if (fd < 0) return errno == ENOENT ? 0 : -1;
    int is_left = !fstat(fd, &now) && is_it(object, &now);
    close(fd);
    return is_left;
}
