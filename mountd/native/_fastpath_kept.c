/* Requests that were not answered at once: kept for pyfuse3, which is handed just this one, or put off while their user has
 * as many under way as is his. Part of the extension, see _fastpath.c.
 *
 * pyfuse3 has a task for each request that waits, and a bounded number of them: one user whose readers all wait for a source
 * that hangs would keep everybody out. Who has room is Python's to say, and when a request goes on that was put off
 * (mountd/fuse/boundary.py). Meanwhile it is libfuse's, as any that waits, and can be interrupted.
 */
#include "_fastpath.h"

#include "plane/plane.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct kept {
    uint32_t opcode; /* 0: none */
    fuse_req_t req;
    uint64_t unique;
    fuse_ino_t ino;
    const char *name;
    size_t size;
    off_t off;
    int has_fi;
    struct fuse_file_info fi;
};

struct put_off { /* Python's, until it goes on or ends */
    struct put_off *next;
    struct kept kept;
    char name[];
};

int showing;

static struct kept kept;
static struct put_off *ready, **ready_end = &ready; /* they go on, the oldest first */

static void hand_on(void) {
    struct kept one = kept;
    struct fuse_file_info *fi = one.has_fi ? &one.fi : NULL;
    kept.opcode = 0;
    begin(one.req);
    request.unique = one.unique;
    request.node = one.ino; /* pyfuse3's handler gets the handle alone, which is 0 if the kernel opened without us */
    request.plain = one.opcode == READDIR;
    switch (one.opcode) {
    case LOOKUP: theirs.lookup(one.req, one.ino, one.name); break;
    case GETATTR: theirs.getattr(one.req, one.ino, fi); break;
    case READLINK: theirs.readlink(one.req, one.ino); break;
    case OPEN: theirs.open(one.req, one.ino, fi); break;
    case LSEEK: /* pyfuse3 knows none. Its answer is eight bytes, an offset, and a READ is answered with bytes */
    case READ: theirs.read(one.req, one.ino, one.size, one.off, fi); break;
    case STATFS: theirs.statfs(one.req, one.ino); break;
    case GETXATTR: theirs.getxattr(one.req, one.ino, one.name, one.size); break;
    case LISTXATTR: theirs.listxattr(one.req, one.ino, one.size); break;
    case OPENDIR: theirs.opendir(one.req, one.ino, fi); break;
    case READDIR: case READDIRPLUS: theirs.readdirplus(one.req, one.ino, one.size, one.off, fi); break;
    }
}

void keep(uint32_t opcode, fuse_req_t req, fuse_ino_t ino, const char *name, size_t size, off_t off,
          const struct fuse_file_info *fi) {
    kept = (struct kept){.opcode = opcode, .req = req, .unique = request.unique, .ino = ino, .name = name, .size = size, .off = off};
    kept.has_fi = fi != NULL;
    if (fi) kept.fi = *fi;
    if (!showing) hand_on();
}

/* Those that are never answered at once. */
#define KEPT(operation, opcode, parameters, ...) \
    static void kept_##operation parameters { keep(opcode, req, __VA_ARGS__); }

KEPT(readlink, READLINK, (fuse_req_t req, fuse_ino_t ino), ino, NULL, 0, 0, NULL)
KEPT(opendir, OPENDIR, (fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi), ino, NULL, 0, 0, fi)
KEPT(readdir, READDIR, (fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi), ino, NULL, size, off, fi)
KEPT(readdirplus, READDIRPLUS, (fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi), ino, NULL,
     size, off, fi)
KEPT(statfs, STATFS, (fuse_req_t req, fuse_ino_t ino), ino, NULL, 0, 0, NULL)
KEPT(getxattr, GETXATTR, (fuse_req_t req, fuse_ino_t ino, const char *name, size_t size), ino, name, size, 0, NULL)
KEPT(listxattr, LISTXATTR, (fuse_req_t req, fuse_ino_t ino, size_t size), ino, NULL, size, 0, NULL)
KEPT(lseek, LSEEK, (fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi), ino, NULL,
     SEEK + (size_t)whence, off, fi)

void keep_for_pyfuse3(struct fuse_lowlevel_ops *ops) {
    ops->readlink = kept_readlink;
    ops->opendir = kept_opendir;
    ops->readdir = kept_readdir;
    ops->readdirplus = kept_readdirplus;
    ops->statfs = kept_statfs;
    ops->getxattr = kept_getxattr;
    ops->listxattr = kept_listxattr;
    ops->lseek = kept_lseek;
}

/* Whether the user of the kept request has no room for it now. */
static int is_put_off(void) {
    const struct fuse_ctx *asker = fuse_req_ctx(kept.req);
    if (!asker->uid || asker->uid == geteuid() || queue_event_fd() < 0) return 0;
    size_t name_bytes = kept.name ? strlen(kept.name) + 1 : 0;
    struct put_off *off = malloc(sizeof *off + name_bytes);
    if (!off) return 0;
    off->next = NULL;
    off->kept = kept;
    if (name_bytes) off->kept.name = memcpy(off->name, kept.name, name_bytes);
    begin(kept.req); /* whoever is killed meanwhile is let go */
    PyObject *answer = PyObject_CallMethod(at_once, "puts_off", "KIKi", (unsigned long long)(uintptr_t)off, (unsigned)asker->uid,
                                           (unsigned long long)request.token, (int)asker->pid);
    if (!answer) PyErr_WriteUnraisable(at_once); /* a fault of ours: it goes to the log, and the request on */
    int is_off = answer == Py_True;
    Py_XDECREF(answer);
    if (is_off)
        kept.opcode = 0;
    else
        free(off);
    return is_off;
}

int kept_for_pyfuse3(void) { return kept.opcode && !is_put_off(); }

int kept_goes_on(void) {
    static struct put_off *latest; /* has the name, which pyfuse3 copies when its handler begins */
    if (!ready) return 0;
    free(latest);
    latest = ready;
    ready = latest->next;
    if (!ready) ready_end = &ready;
    kept = latest->kept;
    return 1;
}

void fuse_session_process_buf(struct fuse_session *se, const struct fuse_buf *buf) {
    static void (*process)(struct fuse_session *, const struct fuse_buf *);
    if (!process) process = real("fuse_session_process_buf");
    if (kept.opcode)
        hand_on();
    else
        process(se, buf);
}

/* ---- for mountd/kernel/fastpath.py ---------------------------------------------------------------------------------- */

PyObject *fastpath_go_on(PyObject *self, PyObject *which) {
    struct put_off *off = PyLong_AsVoidPtr(which);
    if (!off) return NULL;
    off->next = NULL;
    *ready_end = off;
    ready_end = &off->next;
    queue_wake();
    Py_RETURN_NONE;
}

PyObject *fastpath_give_up(PyObject *self, PyObject *args) {
    unsigned long long which;
    int error;
    if (!PyArg_ParseTuple(args, "Ki", &which, &error)) return NULL;
    struct put_off *off = (void *)(uintptr_t)which;
    fuse_reply_err(off->kept.req, error);
    free(off);
    Py_RETURN_NONE;
}
