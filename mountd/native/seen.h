/* What a stat has said of one name: written by _fastpath_attributes.c, handed on by Python as bytes, kept by plane/slots.c.
 * mountd/core/attributes.py has the same layout. */
#ifndef HFS_SEEN_H
#define HFS_SEEN_H
#include <stdint.h>

struct seen {
    int32_t error; /* 0, or an errno, and nothing else holds */
    uint32_t mode, nlink, uid, gid, block_bytes;
    uint64_t inode, size, blocks, rdev, device;
    int64_t seconds[3]; /* atime, mtime, ctime */
    uint32_t parts[3];  /* nanoseconds */
    uint32_t flags;     /* SEEN_... */
};

#define SEEN_NO_ACL 1 /* mode bits say all: it has no POSIX ACL of its own */

_Static_assert(sizeof(struct seen) == 104, "mountd/core/attributes.py");

#endif
