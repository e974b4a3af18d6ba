/* One request in, its reply out: what the table knows is answered, everything else is Python's.
 *
 * Requests and replies have the kernel's own form, <linux/fuse.h>. A part of the data plane, see plane.h. Keeps nothing
 * of a request.
 */
#include "fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define RESENT (UINT64_C(1) << 63) /* in `unique`: an earlier daemon may have answered it */

struct question {
    int device;
    uint64_t unique;
};

static int reply_open(const struct opens *entry, void *context) {
    const struct question *question = context;
    opened_file(entry->object.size, entry->backing_id != 0);
    return reply_opened(question->device, question->unique, entry->handle, entry->open_flags, entry->backing_id);
}

static int opens_are_asked; /* as the user who opens; atomic */

void opens_of_slots_are_asked(int are) { __atomic_store_n(&opens_are_asked, are, __ATOMIC_RELEASE); }

/* A slot that is past its time is Python's: it asks the source. */
static int answer_open_of_slot(int device, const struct fuse_in_header *header, size_t size) {
    struct slot_place place;
    if (slots_are_stateless() || __atomic_load_n(&opens_are_asked, __ATOMIC_ACQUIRE) || !slots_place(header->nodeid, monotonic_ns(), &place)) return 0;
    if (!contents_has(header->nodeid) && !contents_find(header->nodeid, &place)) return jobs_fetch(header, size, monotonic_ns());
    int answered = contents_open(device, header->nodeid, header, size, NULL);
    return answered < 0 ? jobs_fetch(header, size, monotonic_ns()) : answered;
}

static int answer_open(int device, const struct fuse_in_header *header, const struct fuse_open_in *in, size_t size) {
    if ((in->flags & O_ACCMODE) != O_RDONLY || in->flags & O_TRUNC) return 0;
    if (slots_is_id(header->nodeid) && answer_open_of_slot(device, header, size)) return 1;
    struct question question = {device, header->unique};
    if (!opens_open(header->nodeid, monotonic_ns(), reply_open, &question)) return 0;
    events_add(header->nodeid, header->pid, 0);
    return 1;
}

static void reply_released(void *context) {
    const struct question *question = context;
    reply_to(question->device, question->unique, 0, NULL, 0); /* nobody waits for it */
}

static int answer_release(int device, const struct fuse_in_header *header, const struct fuse_release_in *in) {
    struct question question = {device, header->unique};
    int is_slot = in->fh == header->nodeid && slots_is_id(in->fh);
    if (!(is_slot ? contents_release(in->fh, reply_released, &question) :
                    opens_release(header->nodeid, in->fh, reply_released, &question)))
        return 0;
    __atomic_add_fetch(&answered.releases, 1, __ATOMIC_RELAXED);
    return 1;
}

static int answer_read_of_slot(int device, const struct fuse_in_header *header, size_t request_size, char *buffer) {
    int error = reply_read_of_slot(device, header, buffer);
    int found = error == EAGAIN ? contents_find_opened(header->nodeid) : -1;
    if (found >= 0) error = found ? reply_read_of_slot(device, header, buffer) : ENODATA;
    return !error || (error == ENODATA && jobs_fetch(header, request_size, 0));
}

static int answer_read(int device, const struct fuse_in_header *header, size_t request_size, char *buffer) {
    const struct fuse_read_in *in = (const void *)(header + 1);
    if (in->size > ANSWER_BYTES) return 0;
    if (in->fh == header->nodeid && slots_is_id(in->fh)) return answer_read_of_slot(device, header, request_size, buffer);
    ssize_t size = in->flags & O_DIRECT ? 0 : (ssize_t)reads_splice(header->nodeid, in->offset, in->size, device, header->unique);
    if (size) {
        __atomic_add_fetch(&answered.spliced, 1, __ATOMIC_RELAXED);
    } else {
        size = reads_read(header->nodeid, in->offset, in->size, buffer);
        struct slot_place place;
        if (size < 0 && !in->fh && slots_place(header->nodeid, 0, &place)) size = staged_read(place.object, in->offset, in->size, buffer);
        if (size < 0) return 0;
        reply_to(device, header->unique, 0, buffer, (size_t)size);
    }
    served(header->pid, size);
    return 1;
}

/* ---- names and attributes ----------------------------------------------------------------------------------------- */

static int answer_lookup(int device, const struct fuse_in_header *header, const char *name, size_t room, size_t request_size) {
    size_t size = strnlen(name, room);
    if (size == room) return 0;
    return reply_looked_up(device, header, name, size) || jobs_look_up(header, name, size, request_size);
}

/* Until when the root is known to have no ACL. Its node is older than what was agreed on about them, so the kernel keeps
 * none of it, and asks twice at each look-up of a path by whoever does not own it. CLOCK_MONOTONIC; atomic. */
static int64_t root_without_acl_ns;

void root_without_acl(int64_t until_ns) { __atomic_store_n(&root_without_acl_ns, until_ns, __ATOMIC_RELEASE); }

/* Asked by the kernel itself where somebody else than its owner opens a file. Only that there is none is said here. */
static int answer_getxattr(int device, const struct fuse_in_header *header, const struct fuse_getxattr_in *in, size_t room) {
    static const char acl[] = "system.posix_acl_access";
    const char *name = (const char *)(in + 1);
    struct slot_place place;
    if (strnlen(name, room) == room) return 0;
    if (overlay_answer(device, header, name, in->size)) return 1;
    if (room < sizeof acl || memcmp(name, acl, sizeof acl)) return 0;
    if (header->nodeid == FUSE_ROOT_ID && monotonic_ns() < __atomic_load_n(&root_without_acl_ns, __ATOMIC_ACQUIRE)) {
        reply_to(device, header->unique, ENODATA, NULL, 0);
        return 1;
    }
    if (!slots_place(header->nodeid, monotonic_ns(), &place)) return 0;
    if (!(place.seen.flags & SEEN_NO_ACL)) return delegated_wants_acls(place.directory), 0;
    reply_to(device, header->unique, ENODATA, NULL, 0);
    return 1;
}

/* Python's open() asks each file whether it is a terminal: answered by Python that cost 100 us an open. It is said what
 * libfuse would say; only an exchange of a tunnel is for Python. */
static int answer_ioctl(int device, const struct fuse_in_header *header, const struct fuse_ioctl_in *in, size_t in_size) {
    if (in_size >= sizeof *in && in->cmd == TUNNEL_EXCHANGE && in->flags & FUSE_IOCTL_DIR) return 0;
    reply_to(device, header->unique, ENOSYS, NULL, 0); /* the caller gets ENOTTY */
    return 1;
}

/* Those of others stay in the request. 1: there are none. */
static int answer_batch_forget(struct fuse_in_header *header, struct fuse_batch_forget_in *in, size_t *size) {
    struct fuse_forget_one *each = (void *)(in + 1);
    size_t fixed = sizeof *header + sizeof *in, count = in->count, left = 0;
    if (count > (*size - fixed) / sizeof *each) return 0;
    for (size_t i = 0; i < count; i++)
        if (!contents_forget(each[i].nodeid, each[i].nlookup)) each[left++] = each[i];
    in->count = (uint32_t)left;
    *size = header->len = (uint32_t)(fixed + left * sizeof *each);
    return !left;
}

int answer(int device, void *request, size_t *size, char *buffer) {
    struct fuse_in_header *header = request;
    void *in = header + 1;
    if (*size < sizeof *header || header->unique & RESENT) return 0;
    size_t in_size = *size - sizeof *header;
    switch (header->opcode) {
    case FUSE_LOOKUP: return answer_lookup(device, header, in, in_size, *size);
    case FUSE_GETATTR: return reply_attributes_of_slot(device, header);
    case FUSE_FORGET:
        return in_size >= sizeof(struct fuse_forget_in) &&
               contents_forget(header->nodeid, ((struct fuse_forget_in *)in)->nlookup);
    case FUSE_BATCH_FORGET:
        return in_size >= sizeof(struct fuse_batch_forget_in) && answer_batch_forget(header, in, size);
    case FUSE_GETXATTR:
        return in_size > sizeof(struct fuse_getxattr_in) &&
               answer_getxattr(device, header, in, in_size - sizeof(struct fuse_getxattr_in));
    case FUSE_OPEN: return in_size >= sizeof(struct fuse_open_in) && answer_open(device, header, in, *size);
    case FUSE_READ: return in_size >= sizeof(struct fuse_read_in) && answer_read(device, header, *size, buffer);
    case FUSE_RELEASE: return in_size >= sizeof(struct fuse_release_in) && answer_release(device, header, in);
    case FUSE_IOCTL: return answer_ioctl(device, header, in, in_size);
    default: return 0;
    }
}

void hand_to_python(void *request, size_t size) {
    struct fuse_in_header *header = request;
    if (header->opcode == FUSE_INTERRUPT && size >= sizeof *header + sizeof(struct fuse_interrupt_in))
        jobs_interrupt(((struct fuse_interrupt_in *)(header + 1))->unique);
    queue_put(request, size);
}
