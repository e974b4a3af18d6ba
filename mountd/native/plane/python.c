/* What Python may do with the data plane: start and stop its threads, put entries into the table, take them out.
 *
 * A part of the extension, see _fastpath.c, and of the data plane, see plane.h. Where a lock of the table may be held by
 * a thread that answers, the GIL is let go meanwhile.
 */
#include "python.h"

#include "plane.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define MOST_EVENTS 4096 /* taken at a time: some milliseconds of Python */

static PyObject *raise(int error) {
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

PyObject *plane_start(PyObject *self, PyObject *args) {
    (void)self;
    int device, count, error;
    if (!PyArg_ParseTuple(args, "ii", &device, &count)) return NULL;
    if (queue_event_fd() < 0) return raise(ENOMEM);
    queue_reset();
    error = threads_start(device, count);
    if (error) return raise(error);
    Py_RETURN_NONE;
}

PyObject *plane_attach(PyObject *self, PyObject *args) {
    (void)self;
    int fd, error;
    if (!PyArg_ParseTuple(args, "i", &fd)) return NULL;
    error = counts_attach(fd);
    if (error) return raise(error);
    PyObject *found = PyList_New(0);
    for (uint32_t slot = 0; found && slot < COUNTS_SLOTS; slot++) {
        if (!counts_handle(slot)) continue;
        PyObject *item = Py_BuildValue("(KIL)", (unsigned long long)counts_handle(slot), (unsigned)slot,
                                       (long long)counts_open(slot));
        if (!item || PyList_Append(found, item) < 0) Py_CLEAR(found);
        Py_XDECREF(item);
    }
    return found;
}

PyObject *plane_stop(PyObject *self, PyObject *noargs) {
    (void)self, (void)noargs;
    Py_BEGIN_ALLOW_THREADS
    threads_stop();
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyObject *plane_put(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long node, handle, inode, size;
    long long ctime_ns, until_ns;
    unsigned flags;
    int backing_id, object_fd, error;
    if (!PyArg_ParseTuple(args, "KKIiiKKLL", &node, &handle, &flags, &backing_id, &object_fd, &inode, &size, &ctime_ns,
                          &until_ns))
        return NULL;
    struct opens entry = {
        .node = node, .handle = handle, .open_flags = flags, .backing_id = backing_id, .object_fd = -1,
        .stamp = {inode, size, ctime_ns}, .until_ns = until_ns,
    };
    int64_t slot = counts_new(handle);
    if (slot < 0) return raise(ENOSPC);
    entry.slot = (uint32_t)slot;
    error = 0;
    if (object_fd >= 0) {
        entry.object_fd = fcntl(object_fd, F_DUPFD_CLOEXEC, 0);
        if (entry.object_fd < 0) error = errno;
    }
    if (!error) {
        Py_BEGIN_ALLOW_THREADS
        error = opens_put(&entry);
        Py_END_ALLOW_THREADS
    }
    if (!error) return PyLong_FromUnsignedLong(entry.slot);
    counts_free(entry.slot);
    if (entry.object_fd >= 0) close(entry.object_fd);
    return raise(error);
}

PyObject *plane_take(PyObject *self, PyObject *arg) {
    (void)self;
    struct opens taken;
    int there;
    uint64_t node = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    there = opens_take(node, &taken);
    Py_END_ALLOW_THREADS
    if (!there) Py_RETURN_NONE;
    return Py_BuildValue("(LLL)", (long long)counts_open(taken.slot), (long long)taken.counts.opened,
                         (long long)taken.counts.last_ns);
}

static int slot_of(PyObject *arg, uint32_t *slot) {
    unsigned long number = PyLong_AsUnsignedLong(arg);
    if (PyErr_Occurred()) return 0;
    *slot = (uint32_t)number;
    if (number < COUNTS_SLOTS && counts_handle(*slot)) return 1;
    PyErr_SetString(PyExc_ValueError, "nothing is counted there");
    return 0;
}

PyObject *plane_count(PyObject *self, PyObject *arg) {
    (void)self;
    uint32_t slot;
    return slot_of(arg, &slot) ? PyLong_FromLongLong(counts_open(slot)) : NULL;
}

PyObject *plane_closed(PyObject *self, PyObject *arg) {
    (void)self;
    uint32_t slot;
    return slot_of(arg, &slot) ? PyLong_FromLongLong(counts_add(slot, -1)) : NULL;
}

PyObject *plane_free(PyObject *self, PyObject *arg) {
    (void)self;
    uint32_t slot;
    if (!slot_of(arg, &slot)) return NULL;
    counts_free(slot);
    Py_RETURN_NONE;
}

PyObject *plane_events(PyObject *self, PyObject *noargs) {
    (void)self, (void)noargs;
    static struct event found[MOST_EVENTS]; /* with the GIL held */
    uint64_t lost;
    size_t count = events_take(found, MOST_EVENTS, &lost);
    return Py_BuildValue("(y#K)", (const char *)found, (Py_ssize_t)(count * sizeof *found), (unsigned long long)lost);
}

PyObject *plane_figures(PyObject *self, PyObject *noargs) {
    (void)self, (void)noargs;
    return Py_BuildValue("(inLLL)", threads_running(), (Py_ssize_t)opens_count(),
                         (long long)__atomic_load_n(&answered.cached, __ATOMIC_RELAXED),
                         (long long)__atomic_load_n(&answered.passed, __ATOMIC_RELAXED),
                         (long long)__atomic_load_n(&answered.releases, __ATOMIC_RELAXED));
}
