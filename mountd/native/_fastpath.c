/* What libfuse offers and pyfuse3 does not pass on.
 *
 * Loaded by mountd/native/extension.py with RTLD_GLOBAL before pyfuse3, so that functions of libfuse that pyfuse3 calls are found
 * here first; each does its part and goes on to the real one. Public libfuse API only.
 *
 *   fuse_session_new          wraps the operations: `init` asks for passthrough and more background requests; those that
 *                             may wait for the source remember who asked, and hear when the kernel interrupts a request;
 *                             `readdir` is there besides `readdirplus`
 *   fuse_reply_open           answers with a backing file where the daemon named one just before
 *   fuse_add_direntry_plus    gives names without nodes (_fastpath_names.c)
 *   fuse_session_fd           what pyfuse3 waits for: the queue of the data plane (plane/plane.h), whose threads read
 *   fuse_session_receive_buf  the next request of that queue; answers at once what needs no waiting (_fastpath_at_once.c)
 *   fuse_session_process_buf  hands what does need it to pyfuse3 (_fastpath_kept.c)
 *   fuse_session_mount        gives a session on the keeper's connection the INIT request that the keeper has read
 *
 * Everything here runs in the daemon's one event loop thread, with the GIL held: no locks. Decides nothing.
 */
#include "_fastpath.h"

#include "plane/plane.h"
#include "plane/python.h"

#include <dlfcn.h>
#include <string.h>

#define FUSE_INIT_BYTES 4096 /* the kernel's is some hundred bytes long */

struct fuse_lowlevel_ops theirs;
struct request request;
PyObject *at_once;
int wrapped;

static struct { /* what the daemon wants, before the mount */
    unsigned max_background, stack_depth;
} wanted;

static struct { /* what came of it */
    int kernel_has_passthrough, passthrough;
} found;

static struct { /* the next open is answered so */
    uint64_t handle;
    int backing_id;
} backing;

static struct { /* the node that is about to be answered with, and the inode number that stat(2) shows of it */
    fuse_ino_t node;
    uint64_t inode;
} shown;

static PyObject *on_interrupt; /* called with a token */

void *real(const char *name) {
    void *symbol = dlsym(RTLD_NEXT, name);
    if (!symbol) Py_FatalError(name);
    return symbol;
}

/* ---- who asks, and who gives up ---------------------------------------------------------------------------------- */

static void interrupted(fuse_req_t req, void *token) {
    PyGILState_STATE gil = PyGILState_Ensure();
    if (on_interrupt) {
        PyObject *done = PyObject_CallFunction(on_interrupt, "K", (unsigned long long)(uintptr_t)token);
        if (!done) PyErr_WriteUnraisable(on_interrupt);
        Py_XDECREF(done);
    }
    PyGILState_Release(gil);
}

/* pyfuse3 calls the handler in the same thread before anything else happens, so one `request` is enough. */
void begin(fuse_req_t req) {
    request.token++;
    request.plain = 0;
    request.pid = fuse_req_ctx(req)->pid;
    request.uid = fuse_req_ctx(req)->uid;
    fuse_req_interrupt_func(req, interrupted, (void *)(uintptr_t)request.token);
}

/* ---- the session -------------------------------------------------------------------------------------------------- */

static void init(void *userdata, struct fuse_conn_info *conn) {
    theirs.init(userdata, conn);
    /* A request is read with one system call, not with two splices and a read: none of ours carries pages. */
    conn->want &= ~FUSE_CAP_SPLICE_READ;
    /* A node has one version: the kernel need not compare sizes and times before a read from its page cache. */
    conn->want &= ~FUSE_CAP_AUTO_INVAL_DATA;
    /* Every listing could take attributes: whether it gets them is for us to say. Left to decide by itself the kernel asks
     * for them at the start of a directory only, and `find -size` looks up all the rest: 65 us a name instead of 10. What
     * wants names alone pays with four times as many requests, 0.6 us a name. A kernel that an earlier daemon has told
     * otherwise decides all the same: see READDIR in _fastpath_kept.c. */
    conn->want &= ~FUSE_CAP_READDIRPLUS_AUTO;
    /* A read past the page cache is a request of its own, which the kernel interrupts. As asynchronous requests, which
     * read(2) then waits for, it would not: the reader of a source that hangs could not be killed. */
    conn->want &= ~FUSE_CAP_ASYNC_DIO;
    /* A look-up that hangs holds neither the other look-ups of its directory nor its listings. Ioctls of directories: our_ioctl. */
    conn->want |= conn->capable & (FUSE_CAP_PARALLEL_DIROPS | FUSE_CAP_IOCTL_DIR);
    if (wanted.max_background) {
        conn->max_background = wanted.max_background;
        conn->congestion_threshold = wanted.max_background / 4 * 3;
    }
#if HAS_PASSTHROUGH
    found.kernel_has_passthrough = (conn->capable & FUSE_CAP_PASSTHROUGH) != 0;
    if (found.kernel_has_passthrough) {
        conn->want |= FUSE_CAP_PASSTHROUGH;
        conn->max_backing_stack_depth = wanted.stack_depth;
        found.passthrough = 1;
    }
#endif
}

static const struct fuse_lowlevel_ops *wrap(const struct fuse_lowlevel_ops *op, size_t op_size) {
    static struct fuse_lowlevel_ops ours;
    memset(&theirs, 0, sizeof theirs);
    memcpy(&theirs, op, op_size < sizeof theirs ? op_size : sizeof theirs);
    ours = theirs;
    ours.init = init;
    answer_at_once(&ours);
    keep_for_pyfuse3(&ours);
    wrapped = 1;
    return &ours;
}

#if HAS_PASSTHROUGH
struct fuse_session *fuse_session_new_versioned(struct fuse_args *args, const struct fuse_lowlevel_ops *op,
                                                size_t op_size, struct libfuse_version *version, void *userdata) {
    struct fuse_session *(*next)(struct fuse_args *, const struct fuse_lowlevel_ops *, size_t, struct libfuse_version *,
                                 void *) = real("fuse_session_new_versioned");
    return next(args, wrap(op, op_size), op_size, version, userdata);
}
#else
struct fuse_session *fuse_session_new(struct fuse_args *args, const struct fuse_lowlevel_ops *op, size_t op_size,
                                      void *userdata) {
    struct fuse_session *(*next)(struct fuse_args *, const struct fuse_lowlevel_ops *, size_t, void *) =
        real("fuse_session_new");
    return next(args, wrap(op, op_size), op_size, userdata);
}
#endif

/* Asked once a session, before the first request. */
int fuse_session_fd(struct fuse_session *se) {
    static int (*next)(struct fuse_session *);
    if (!next) next = real("fuse_session_fd");
    return wrapped && queue_event_fd() >= 0 ? queue_event_fd() : next(se);
}

static struct { /* INIT, as the keeper of the mount has read it from the connection */
    char request[FUSE_INIT_BYTES];
    size_t size;
} fed;

/* The kernel sends INIT once; each daemon needs it to know what was agreed on. The kernel refuses a second answer
 * (ENOENT), which libfuse takes for a request that was interrupted. */
int fuse_session_mount(struct fuse_session *se, const char *mountpoint) {
    int (*next)(struct fuse_session *, const char *) = real("fuse_session_mount");
    void (*process)(struct fuse_session *, const struct fuse_buf *) = real("fuse_session_process_buf");
    int result = next(se, mountpoint);
    if (result || !fed.size) return result;
    struct fuse_buf request = {.size = fed.size, .mem = fed.request};
    process(se, &request);
    return fuse_session_exited(se) ? -1 : 0;
}

/* ---- replies ------------------------------------------------------------------------------------------------------ */

/* pyfuse3 knows one number of a node. Where two nodes stand for one inode (two versions of it, or two I/O modes), people
 * shall see the inode's own. */
void show_inode(fuse_ino_t node, struct stat *st) {
    if (shown.node && shown.node == node) st->st_ino = shown.inode, shown.node = 0;
}

int fuse_reply_entry(fuse_req_t req, const struct fuse_entry_param *e) {
    static int (*next)(fuse_req_t, const struct fuse_entry_param *);
    if (!next) next = real("fuse_reply_entry");
    struct fuse_entry_param reply = *e;
    show_inode(e->ino, &reply.attr);
    return next(req, &reply);
}

int fuse_reply_attr(fuse_req_t req, const struct stat *attr, double attr_timeout) {
    static int (*next)(fuse_req_t, const struct stat *, double);
    if (!next) next = real("fuse_reply_attr");
    struct stat reply = *attr;
    show_inode(attr->st_ino, &reply);
    return next(req, &reply, attr_timeout);
}

int fuse_reply_open(fuse_req_t req, const struct fuse_file_info *fi) {
    static int (*next)(fuse_req_t, const struct fuse_file_info *);
    if (!next) next = real("fuse_reply_open");
#if HAS_PASSTHROUGH
    if (backing.backing_id && backing.handle == fi->fh) {
        struct fuse_file_info reply = *fi;
        reply.backing_id = backing.backing_id;
        backing.backing_id = 0;
        return next(req, &reply);
    }
#endif
    return next(req, fi);
}

/* ---- for mountd/kernel/fastpath.py --------------------------------------------------------------------------------------- */

static PyObject *py_want(PyObject *self, PyObject *args) {
    PyObject *callback, *answers;
    if (!PyArg_ParseTuple(args, "IIOOi", &wanted.max_background, &wanted.stack_depth, &callback, &answers, &yield_fd))
        return NULL;
    Py_XSETREF(on_interrupt, Py_NewRef(callback));
    Py_XSETREF(at_once, Py_NewRef(answers));
    memset(&found, 0, sizeof found);
    wrapped = 0;
    queue_open(); /* without it pyfuse3 reads the connection by itself, and the threads do not start */
    Py_RETURN_NONE;
}

static PyObject *py_found(PyObject *self, PyObject *noargs) {
    return Py_BuildValue("(iii)", wrapped, found.kernel_has_passthrough, found.passthrough);
}

static PyObject *py_feed(PyObject *self, PyObject *args) {
    Py_buffer init;
    if (!PyArg_ParseTuple(args, "y*", &init)) return NULL;
    int fits = (size_t)init.len <= sizeof fed.request;
    fed.size = fits ? (size_t)init.len : 0;
    if (fits) memcpy(fed.request, init.buf, fed.size);
    PyBuffer_Release(&init);
    if (fits) Py_RETURN_NONE;
    PyErr_SetString(PyExc_ValueError, "too long for an INIT request");
    return NULL;
}

static PyObject *py_request(PyObject *self, PyObject *noargs) {
    return Py_BuildValue("(KiIKKO)", (unsigned long long)request.token, (int)request.pid, (unsigned)request.uid,
                         (unsigned long long)request.node, (unsigned long long)request.unique, request.plain ? Py_True : Py_False);
}

static PyObject *py_show(PyObject *self, PyObject *args) {
    unsigned long long node, inode;
    if (!PyArg_ParseTuple(args, "KK", &node, &inode)) return NULL;
    shown.node = node;
    shown.inode = inode;
    Py_RETURN_NONE;
}

static PyObject *py_back(PyObject *self, PyObject *args) {
    unsigned long long handle;
    if (!PyArg_ParseTuple(args, "Ki", &handle, &backing.backing_id)) return NULL;
    backing.handle = handle;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"want", py_want, METH_VARARGS,
     "want(max_background, stack_depth, on_interrupt, at_once, yield_fd): before the mount. on_interrupt(token) is "
     "called when the kernel interrupts a request; at_once has lookup, forget, getattr, open, read, release, "
     "exchange and puts_off, which do not wait; while yield_fd is readable the event loop has its turn."},
    {"found", py_found, METH_NOARGS,
     "found() -> (wrapped, kernel_has_passthrough, passthrough): what holds for the session, once INIT was answered."},
    {"feed", py_feed, METH_VARARGS,
     "feed(init): the session that is mounted next processes this INIT request; empty: it reads one by itself."},
    {"request", py_request, METH_NOARGS,
     "request() -> (token, pid, uid, node, unique, plain): of the request whose handler runs; good until its first await."},
    {"go_on", fastpath_go_on, METH_O, "go_on(which): a request that was put off is handed to its handler."},
    {"give_up", fastpath_give_up, METH_VARARGS, "give_up(which, errno): it is answered so."},
    {"show", py_show, METH_VARARGS, "show(node, inode): the next answer with the attributes of `node` shows this inode."},
    {"back", py_back, METH_VARARGS, "back(handle, backing_id): the open that is answered with `handle` next is passed on."},
    {"names", fastpath_names, METH_VARARGS,
     "names(records, starts, begin, end, next_id, directory, how): the next entry with the generation NAME_ONLY stands for "
     "the names [begin, end) of `records` (getdents64), which begin at `starts` (uint32). `next_id`: the offset after "
     "the first. `how`: 0: the request wants names only; 1: slots go in whole; 2: and the first that is none is the end."},
    {"taken", fastpath_taken, METH_NOARGS, "taken() -> int: how many of these names the reply had room for."},
    {"look", fastpath_look, METH_VARARGS,
     "look(directory_fd, names, device) -> (seen, plain, seconds, nanoseconds): a struct seen (see seen.h) for each of these "
     "names, no symlink is followed; a byte for each, 1 for a regular file on this device; the newest ctime of "
     "those."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "hfs.mountd.native._fastpath", "See _fastpath.c; used by mountd/kernel/fastpath.py only.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__fastpath(void) {
    PyObject *self = PyModule_Create(&module);
    PyMethodDef *const more[] = {plane_methods, plane_fetch_methods, plane_slots_methods, plane_overlay_methods};
    for (size_t i = 0; self && i < sizeof more / sizeof *more; i++)
        if (PyModule_AddFunctions(self, more[i]) < 0) Py_CLEAR(self);
    if (self && (PyModule_AddIntConstant(self, "HAS_PASSTHROUGH", HAS_PASSTHROUGH) < 0 ||
                 PyModule_AddStringConstant(self, "LIBFUSE", fuse_pkgversion()) < 0 ||
                 PyModule_AddObjectRef(self, "NAME_ONLY", PyLong_FromUnsignedLongLong(NAME_ONLY)) < 0)) {
        Py_CLEAR(self);
    }
    return self;
}
