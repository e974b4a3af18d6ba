/* Requests that are answered at once, without a turn of pyfuse3's event loop. Part of the extension, see _fastpath.c.
 *
 * A request costs pyfuse3 a turn of the event loop, a task switch and a coroutine: some 120 us of the daemon's time,
 * whatever is asked. Most requests need nothing of that: the name is known, the bytes are in memory. So each request of
 * the kinds below is first shown to a plain method of `at_once`. It answers with a value, with an errno, or with None:
 * then the request is kept (_fastpath_kept.c), and pyfuse3, which is told that a request has arrived, is handed just this one.
 */
#include "_fastpath.h"

#include "plane/plane.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DELEGATED (UINT64_C(1) << 62) /* in the number of a handle: mountd/files/handles.py */

#define WATCH_NS 20000  /* looked for without sleeping: on an idle machine the next request comes within this time */
#define LINGER_NS 50000 /* the next request of a reader who has just been answered comes within this time */
#define TURN_NS 2000000 /* after so long the event loop has its turn, however many requests there are */

#define FORGOTTEN_BYTES (48 + 64 * 16) /* of a FORGET of many that is gone through at once: 64 take a millisecond or two */

int yield_fd = -1; /* when this descriptor is readable the event loop has its turn at once: a thread has a result */

/* True if `answer` is a value. If not, it is consumed, and the request answered with an errno or kept. */
static int is_value(PyObject *answer, uint32_t opcode, fuse_req_t req, fuse_ino_t ino, const char *name, size_t size,
                    off_t off, const struct fuse_file_info *fi) {
    if (answer && answer != Py_None && !PyLong_Check(answer)) return 1;
    if (!answer) PyErr_WriteUnraisable(at_once); /* a fault of ours: it goes to the log, and the request its long way */
    if (answer && answer != Py_None)
        fuse_reply_err(req, (int)PyLong_AsLong(answer));
    else
        keep(opcode, req, ino, name, size, off, fi);
    Py_XDECREF(answer);
    return 0;
}

/* Consumes a value. One that is not `right` was not answered with: a fault of ours, and an error for the reader. */
static void finish(PyObject *answer, fuse_req_t req, int right) {
    if (!right) {
        PyErr_WriteUnraisable(at_once);
        fuse_reply_err(req, EIO);
    }
    Py_DECREF(answer);
}

/* Nanoseconds since the epoch, which may be more than 64 bits hold. */
static void split(struct timespec *time, PyObject *nanoseconds) {
    int overflow;
    int64_t ns = PyLong_AsLongLongAndOverflow(nanoseconds, &overflow);
    if (!overflow) {
        time->tv_sec = ns / 1000000000 - (ns % 1000000000 < 0); /* rounded down, also before 1970 */
        time->tv_nsec = ns - time->tv_sec * 1000000000;
        return;
    }
    PyObject *second = PyLong_FromLong(1000000000), *parts = second ? PyNumber_Divmod(nanoseconds, second) : NULL;
    if (parts) {
        time->tv_sec = PyLong_AsLongLong(PyTuple_GET_ITEM(parts, 0));
        time->tv_nsec = PyLong_AsLong(PyTuple_GET_ITEM(parts, 1));
    }
    Py_XDECREF(second);
    Py_XDECREF(parts);
    PyErr_Clear();
}

/* mountd.core.attributes.Attributes, in its order. */
static void fill(struct stat *st, PyObject *attributes, uint64_t number) {
    uint64_t f[9];
    for (int i = 0; i < 9; i++) f[i] = PyLong_AsUnsignedLongLongMask(PyTuple_GET_ITEM(attributes, i));
    memset(st, 0, sizeof *st);
    st->st_mode = f[0];
    st->st_ino = number;
    st->st_nlink = f[2];
    st->st_uid = f[3];
    st->st_gid = f[4];
    st->st_rdev = S_ISREG(f[0]) ? 0 : f[5];
    st->st_size = f[6];
    st->st_blocks = f[7];
    st->st_blksize = f[8] < 512 ? 512 : f[8];
    struct timespec *times[] = {&st->st_atim, &st->st_mtim, &st->st_ctim};
    for (int i = 0; i < 3; i++) split(times[i], PyTuple_GET_ITEM(attributes, 9 + i));
}

static int parse_attributes(PyObject *answer, unsigned long long *node, unsigned long long *shown, PyObject **attributes,
                            double *valid_s) {
    if (!PyArg_ParseTuple(answer, "KKOd", node, shown, attributes, valid_s)) return 0;
    if (*attributes == Py_None || (PyTuple_Check(*attributes) && PyTuple_GET_SIZE(*attributes) >= 12)) return 1;
    PyErr_SetString(PyExc_TypeError, "attributes");
    return 0;
}

static void our_lookup(fuse_req_t req, fuse_ino_t parent, const char *name) {
    if (showing) {
        PyObject *answer = PyObject_CallMethod(at_once, "lookup", "Ky", (unsigned long long)parent, name);
        if (!is_value(answer, LOOKUP, req, parent, name, 0, 0, NULL)) return;
        unsigned long long node, shown;
        PyObject *attributes;
        struct fuse_entry_param entry;
        memset(&entry, 0, sizeof entry);
        int right = parse_attributes(answer, &node, &shown, &attributes, &entry.entry_timeout);
        if (right) {
            entry.ino = node; /* 0: the name does not exist, and the kernel remembers that */
            entry.attr_timeout = entry.entry_timeout;
            if (node) fill(&entry.attr, attributes, shown);
            fuse_reply_entry(req, &entry);
        }
        finish(answer, req, right);
        return;
    }
    keep(LOOKUP, req, parent, name, 0, 0, NULL);
}

static void our_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
    if (showing) {
        PyObject *answer = PyObject_CallMethod(at_once, "getattr", "K", (unsigned long long)ino);
        if (!is_value(answer, GETATTR, req, ino, NULL, 0, 0, fi)) return;
        unsigned long long node, shown;
        PyObject *attributes;
        struct stat st;
        double valid_s;
        int right = parse_attributes(answer, &node, &shown, &attributes, &valid_s);
        if (right) {
            fill(&st, attributes, shown);
            fuse_reply_attr(req, &st, valid_s);
        }
        finish(answer, req, right);
        return;
    }
    keep(GETATTR, req, ino, NULL, 0, 0, fi);
}

static void our_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
    if (showing) {
        const struct fuse_ctx *asker = fuse_req_ctx(req);
        PyObject *answer = PyObject_CallMethod(at_once, "open", "KiiII", (unsigned long long)ino, fi->flags,
                                               (int)asker->pid, (unsigned)asker->uid, (unsigned)asker->gid);
        if (!is_value(answer, OPEN, req, ino, NULL, 0, 0, fi)) return;
        struct fuse_file_info reply = *fi;
        unsigned long long handle;
        int backing_id;
        int right = PyArg_ParseTuple(answer, "Ki", &handle, &backing_id);
        if (right) {
            reply.fh = handle;
            reply.keep_cache = backing_id == 0;
#if HAS_PASSTHROUGH
            reply.backing_id = backing_id;
#endif
            fuse_reply_open(req, &reply);
        }
        finish(answer, req, right);
        return;
    }
    keep(OPEN, req, ino, NULL, 0, 0, fi);
}

static void our_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi) {
    if (showing) {
        int thread_id = fuse_req_ctx(req)->pid;
        PyObject *answer = PyObject_CallMethod(at_once, "read", "KKLni", (unsigned long long)ino,
                                               (unsigned long long)fi->fh, (long long)off, (Py_ssize_t)size, thread_id);
        if (!is_value(answer, READ, req, ino, NULL, size, off, fi)) return;
        Py_buffer bytes;
        int right = PyObject_GetBuffer(answer, &bytes, PyBUF_SIMPLE) == 0;
        if (right) {
            fuse_reply_buf(req, bytes.buf, bytes.len);
            PyBuffer_Release(&bytes);
        }
        finish(answer, req, right);
        return;
    }
    keep(READ, req, ino, NULL, size, off, fi);
}

static void our_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
    if (!showing) {
        theirs.release(req, ino, fi);
        return;
    }
    /* One that is counted (plane/counts.c) is answered first: sent again after a crash it would be counted twice. Of
     * others, which are closed once, the journal must know before. */
    uint64_t handle = fi->fh;
    int counted = (handle & DELEGATED) != 0;
    if (counted) fuse_reply_err(req, 0);
    PyObject *done = PyObject_CallMethod(at_once, "release", "K", (unsigned long long)handle);
    if (!done) PyErr_WriteUnraisable(at_once);
    Py_XDECREF(done);
    if (!counted) fuse_reply_err(req, 0); /* nobody waits for it */
}

/* pyfuse3 knows none. An exchange of a tunnel (mountd/wire/tunnel.py) is answered at once or not at all. */
static void our_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned int cmd, void *arg, struct fuse_file_info *fi, unsigned flags,
                      const void *in_buf, size_t in_bufsz, size_t out_bufsz) {
    if (!showing || cmd != TUNNEL_EXCHANGE || !(flags & FUSE_IOCTL_DIR)) {
        fuse_reply_err(req, ENOTTY);
        return;
    }
    const struct fuse_ctx *asker = fuse_req_ctx(req);
    PyObject *answer = PyObject_CallMethod(at_once, "exchange", "y#iII", in_buf ? in_buf : "", (Py_ssize_t)in_bufsz,
                                           (int)asker->pid, (unsigned)asker->uid, (unsigned)asker->gid);
    const char *bytes;
    Py_ssize_t size;
    if (answer && PyLong_Check(answer)) {
        fuse_reply_err(req, (int)PyLong_AsLong(answer));
    } else if (answer && PyBytes_AsStringAndSize(answer, (char **)&bytes, &size) == 0 && (size_t)size <= out_bufsz) {
        fuse_reply_ioctl(req, 0, bytes, (size_t)size);
    } else { /* a fault of ours */
        if (PyErr_Occurred()) PyErr_WriteUnraisable(at_once);
        fuse_reply_err(req, EIO);
    }
    Py_XDECREF(answer);
}

static void forget_one(fuse_ino_t ino, uint64_t count) {
    PyObject *done =
        PyObject_CallMethod(at_once, "forget", "KK", (unsigned long long)ino, (unsigned long long)count);
    if (!done) PyErr_WriteUnraisable(at_once);
    Py_XDECREF(done);
}

static void our_forget(fuse_req_t req, fuse_ino_t ino, uint64_t count) {
    if (!showing) {
        theirs.forget(req, ino, count);
        return;
    }
    forget_one(ino, count);
    fuse_reply_none(req);
}

static void our_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets) {
    if (!showing) {
        theirs.forget_multi(req, count, forgets);
        return;
    }
    for (size_t i = 0; i < count; i++) forget_one(forgets[i].ino, forgets[i].nlookup);
    fuse_reply_none(req);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Whether a request is there, or comes in a moment, and nothing else has to be done.
 *
 * To be woken costs as much as to answer: small files are opened and read a tenth faster without. But to watch for what
 * does not come is a waste where all cores are busy, so it is done as long as it pays, and else tried now and then.
 */
static int another_comes(int fd) {
    static int pays = 8, turns;
    struct pollfd events[] = {{.fd = fd, .events = POLLIN}, {.fd = yield_fd, .events = POLLIN}};
    struct timespec none = {0}, moment = {.tv_nsec = LINGER_NS};
    int ready = 0;
    if (pays > 0 || ++turns % 32 == 0) {
        for (int64_t end_ns = now_ns() + WATCH_NS; !ready && now_ns() < end_ns;) ready = ppoll(events, 2, &none, NULL);
        if (ready > 0) {
            if (pays < 16) pays++;
            return !events[1].revents;
        }
        if (pays > 0) pays--;
    }
    Py_BEGIN_ALLOW_THREADS
    ready = ppoll(events, 2, &moment, NULL); /* a negative descriptor is ignored */
    Py_END_ALLOW_THREADS
    return ready > 0 && !events[1].revents;
}

/* As libfuse's own, of what the threads of the data plane have read and not answered. */
static int take(struct fuse_session *se, struct fuse_buf *buf) {
    if (!buf->mem) buf->mem = malloc(PLANE_REQUEST_BYTES); /* pyfuse3 frees it */
    if (!buf->mem) return -ENOMEM;
    ssize_t size = queue_take(buf->mem, PLANE_REQUEST_BYTES);
    if (size == 0) fuse_session_exit(se); /* unmounted */
    buf->size = size > 0 ? (size_t)size : 0;
    buf->flags = 0;
    return (int)size;
}

int fuse_session_receive_buf(struct fuse_session *se, struct fuse_buf *buf) {
    static int (*receive)(struct fuse_session *, struct fuse_buf *);
    static void (*process)(struct fuse_session *, const struct fuse_buf *);
    if (kept_goes_on()) return 1;
    if (!receive) receive = real("fuse_session_receive_buf"), process = real("fuse_session_process_buf");
    if (wrapped && queue_event_fd() >= 0) receive = take;
    int64_t end_ns = now_ns() + TURN_NS;
    for (;;) {
        int size = receive(se, buf);
        if (!wrapped) return size; /* not our session: a request that is shown to `at_once` would be lost */
        if (size == -EAGAIN) return -EINTR; /* a request that was there has been taken back */
        request.unique = 0;
        if (size <= 0 || (buf->flags & FUSE_BUF_IS_FD)) return size;
        request.unique = ((const uint64_t *)buf->mem)[1]; /* struct fuse_in_header: length, opcode, unique */
        if (!at_once) return size;
        switch (((const uint32_t *)buf->mem)[1]) {
        case LOOKUP: case FORGET: case GETATTR: case OPEN: case READ: case RELEASE: case IOCTL: break;
        case READLINK: case STATFS: case GETXATTR: case LISTXATTR: case OPENDIR: case READDIR: case READDIRPLUS: case LSEEK: break;
        case BATCH_FORGET:
            if (size <= FORGOTTEN_BYTES) break;
            return size; /* the handler goes through it in slices */
        default: return size;
        }
        showing = 1;
        process(se, buf);
        showing = 0;
        if (kept_for_pyfuse3()) return size;
        if (now_ns() >= end_ns || !another_comes(fuse_session_fd(se))) return -EINTR; /* pyfuse3 comes back */
    }
}

void answer_at_once(struct fuse_lowlevel_ops *ops) {
    ops->lookup = our_lookup;
    ops->forget = our_forget;
    ops->forget_multi = our_forget_multi;
    ops->getattr = our_getattr;
    ops->open = our_open;
    ops->read = our_read;
    ops->release = our_release;
    ops->ioctl = our_ioctl;
}
