/* What the kernel is told, in its own form, <linux/fuse.h>: replies to its requests, and pages that it keeps.
 *
 * A part of the data plane, see plane.h. Knows none of its tables.
 */
#include "plane.h"

#include <errno.h>
#include <sys/uio.h>

struct open_reply { /* struct fuse_open_out, whose last field is called otherwise before Linux 6.9 */
    uint64_t handle;
    uint32_t open_flags;
    int32_t backing_id;
};

static int write_all(int device, const struct iovec *parts, int count) {
    ssize_t written;
    do written = writev(device, parts, count);
    while (written < 0 && errno == EINTR);
    return written < 0 ? errno : 0;
}

int reply_to(int device, uint64_t unique, int error, const void *body, size_t size) {
    struct fuse_out_header header = {.len = (uint32_t)(sizeof header + size), .error = -error, .unique = unique};
    struct iovec parts[] = {{&header, sizeof header}, {(void *)body, size}};
    return write_all(device, parts, size ? 2 : 1);
}

int reply_opened(int device, uint64_t unique, uint64_t handle, uint32_t open_flags, int32_t backing_id) {
    struct open_reply body = {handle, open_flags, backing_id};
    return reply_to(device, unique, 0, &body, sizeof body);
}

static void fill(struct fuse_attr *attributes, const struct seen *seen) {
    *attributes = (struct fuse_attr){
        .ino = seen->inode, .size = seen->size, .blocks = seen->blocks, .mode = seen->mode, .nlink = seen->nlink,
        .atime = (uint64_t)seen->seconds[0], .mtime = (uint64_t)seen->seconds[1], .ctime = (uint64_t)seen->seconds[2],
        .atimensec = seen->parts[0], .mtimensec = seen->parts[1], .ctimensec = seen->parts[2], .uid = seen->uid,
        .gid = seen->gid, .blksize = seen->block_bytes < 512 ? 512 : seen->block_bytes,
    };
}

static struct fuse_entry_out entry_of(const struct slot *facts) {
    int64_t valid_ns = facts->until_ns - monotonic_ns();
    if (valid_ns < 0) valid_ns = 0;
    if (valid_ns > LONGEST_NS) valid_ns = LONGEST_NS;
    struct fuse_entry_out entry = {.nodeid = facts->id};
    entry.entry_valid = entry.attr_valid = (uint64_t)(valid_ns / 1000000000);
    entry.entry_valid_nsec = entry.attr_valid_nsec = (uint32_t)(valid_ns % 1000000000);
    /* Where it is read without an open, whoever reads it asks first: it may have bytes for all it says. */
    if (!facts->seen.size) entry.attr_valid = entry.attr_valid_nsec = 0;
    fill(&entry.attr, &facts->seen);
    return entry;
}

int reply_entry(int device, uint64_t unique, const struct slot *facts) {
    struct fuse_entry_out body = entry_of(facts);
    return reply_to(device, unique, 0, &body, sizeof body);
}

int reply_attributes(int device, uint64_t unique, const struct slot *facts) {
    struct fuse_entry_out entry = entry_of(facts);
    struct fuse_attr_out body = {.attr_valid = entry.attr_valid, .attr_valid_nsec = entry.attr_valid_nsec};
    body.attr = entry.attr;
    return reply_to(device, unique, 0, &body, sizeof body);
}

int push_pages(int device, uint64_t node, const char *data, size_t size) {
    struct fuse_notify_store_out out = {.nodeid = node, .size = (uint32_t)size};
    struct fuse_out_header header = {.len = (uint32_t)(sizeof header + sizeof out + size), .error = FUSE_NOTIFY_STORE};
    struct iovec parts[] = {{&header, sizeof header}, {&out, sizeof out}, {(void *)data, size}};
    return write_all(device, parts, 3);
}
