/* What Python may do with the data plane: start and stop its threads, put entries into the table, take them out.
 *
 * A part of the extension, see _fastpath.c, and of the data plane, see plane.h. Where a lock of the table may be held by
 * a thread that answers, the GIL is let go meanwhile.
 */
#include "python.h"

#include "fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_EVENTS 512 /* taken at a time: some milliseconds of Python */

static PyObject *raise(int error) {
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *plane_start(PyObject *self, PyObject *args) {
    int device, count, beats_fd = -1, error = 0;
    if (!PyArg_ParseTuple(args, "ii|i", &device, &count, &beats_fd)) return NULL;
    if (queue_event_fd() < 0) return raise(ENOMEM);
    queue_reset();
    if (beats_fd >= 0) error = threads_beat_in(beats_fd);
    looks_begin();
    if (!error) error = threads_start(device, count);
    if (error) return raise(error);
    Py_RETURN_NONE;
}

static struct { /* of the one thread that attaches */
    struct directory_run { /* slots of one directory that lie in memory one behind the other */
        uint64_t directory, count;
    } *runs;
    size_t count, room;
} attached;

static int note_directory(uint64_t directory) {
    if (!attached.count || attached.runs[attached.count - 1].directory != directory) {
        if (attached.count == attached.room) {
            struct directory_run *runs = realloc(attached.runs, (attached.room * 2 + 64) * sizeof *runs);
            if (!runs) return 0;
            attached.runs = runs;
            attached.room = attached.room * 2 + 64;
        }
        attached.runs[attached.count++] = (struct directory_run){directory, 0};
    }
    attached.runs[attached.count - 1].count++;
    return 1;
}

static PyObject *plane_attach(PyObject *self, PyObject *args) {
    int fd, error;
    unsigned long long terms;
    if (!PyArg_ParseTuple(args, "iK", &fd, &terms)) return NULL;
    attached.count = 0;
    error = counts_attach(fd);
    Py_BEGIN_ALLOW_THREADS
    if (!error) error = slots_attach(fd, terms, note_directory);
    Py_END_ALLOW_THREADS
    PyObject *found = error ? raise(error) : PyList_New(0);
    for (uint32_t counter = 0; found && counter < COUNTS_AT_MOST; counter++) {
        if (!counts_handle(counter)) continue;
        PyObject *item = Py_BuildValue("(KIL)", (unsigned long long)counts_handle(counter), (unsigned)counter,
                                       (long long)counts_open(counter));
        if (!item || PyList_Append(found, item) < 0) Py_CLEAR(found);
        Py_XDECREF(item);
    }
    const char *runs = attached.count ? (const char *)attached.runs : "";
    return found ? Py_BuildValue("(Ny#)", found, runs, (Py_ssize_t)(attached.count * sizeof *attached.runs)) : NULL;
}

static PyObject *plane_stop(PyObject *self, PyObject *noargs) {
    Py_BEGIN_ALLOW_THREADS
    threads_stop();
    looks_end();
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *plane_put(PyObject *self, PyObject *args) {
    unsigned long long node, handle, inode, size;
    long long ctime_ns, until_ns;
    unsigned flags;
    int backing_id, directory_fd, error;
    const char *name;
    Py_ssize_t name_size;
    if (!PyArg_ParseTuple(args, "KKIiis#KKLL", &node, &handle, &flags, &backing_id, &directory_fd, &name, &name_size,
                          &inode, &size, &ctime_ns, &until_ns))
        return NULL;
    struct opens entry = {
        .entry.node = node, .handle = handle, .open_flags = flags, .backing_id = backing_id, .until_ns = until_ns,
        .object = {.fd = directory_fd, .inode = inode, .size = size, .ctime_ns = ctime_ns},
    };
    if (name_size >= OBJECT_NAME_BYTES) return raise(ENAMETOOLONG);
    memcpy(entry.object.name, name, (size_t)name_size);
    int64_t counter = counts_new(handle);
    if (counter < 0) return raise(ENOSPC);
    entry.counter = (uint32_t)counter;
    error = opens_put(&entry);
    if (!error) return PyLong_FromUnsignedLong(entry.counter);
    counts_free(entry.counter);
    return raise(error);
}

static PyObject *plane_take(PyObject *self, PyObject *arg) {
    struct opens taken;
    int error;
    uint64_t node = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred()) return NULL;
    if (opens_take(node, &taken)) Py_RETURN_NONE;
    return Py_BuildValue("(LLL)", (long long)counts_open(taken.counter), (long long)taken.opened,
                         (long long)taken.last_ns);
}

static PyObject *plane_put_reads(PyObject *self, PyObject *args) {
    unsigned long long node, inode, size;
    long long ctime_ns;
    int object_fd, error;
    if (!PyArg_ParseTuple(args, "KiKKL", &node, &object_fd, &inode, &size, &ctime_ns)) return NULL;
    struct reads entry = {.entry.node = node, .object = {.inode = inode, .size = size}};
    entry.object.ctime_ns = ctime_ns;
    entry.object.fd = fcntl(object_fd, F_DUPFD_CLOEXEC, 0);
    if (entry.object.fd < 0) return raise(errno);
    error = reads_put(&entry);
    if (!error) Py_RETURN_NONE;
    close(entry.object.fd);
    return raise(error);
}

static PyObject *plane_take_reads(PyObject *self, PyObject *arg) {
    int error;
    uint64_t node = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred()) return NULL;
    return PyBool_FromLong(!reads_take(node));
}

static PyObject *plane_progress(PyObject *self, PyObject *arg) {
    uint64_t bytes, end, node = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred()) return NULL;
    if (!reads_progress(node, &bytes, &end)) Py_RETURN_NONE;
    return Py_BuildValue("(KK)", (unsigned long long)bytes, (unsigned long long)end);
}

static PyObject *plane_staged_in(PyObject *self, PyObject *arg) {
    long fd = PyLong_AsLong(arg);
    if (PyErr_Occurred()) return NULL;
    staged_in((int)fd);
    Py_RETURN_NONE;
}

static PyObject *plane_root_without_acl(PyObject *self, PyObject *arg) {
    long long valid_ns = PyLong_AsLongLong(arg);
    if (PyErr_Occurred()) return NULL;
    root_without_acl(valid_ns > 0 ? monotonic_ns() + (valid_ns < LONGEST_NS ? valid_ns : LONGEST_NS) : 0);
    Py_RETURN_NONE;
}

static PyObject *plane_put_object(PyObject *self, PyObject *args) {
    unsigned long long number, inode, size;
    long long ctime_ns;
    if (!PyArg_ParseTuple(args, "KKLK", &number, &inode, &ctime_ns, &size)) return NULL;
    struct staged_object object = {.number = number, .inode = inode, .size = size, .ctime_ns = ctime_ns, .is_right = 1};
    return PyBool_FromLong(!staged_put(&object));
}

static PyObject *plane_take_object(PyObject *self, PyObject *arg) {
    uint64_t number = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred()) return NULL;
    return PyBool_FromLong(!staged_take(number));
}

static PyObject *plane_served(PyObject *self, PyObject *noargs) {
    static struct served found[SERVED_READERS]; /* with the GIL held */
    return PyBytes_FromStringAndSize((const char *)found, (Py_ssize_t)(served_take(found) * sizeof *found));
}

static int counter_of(PyObject *arg, uint32_t *counter) {
    unsigned long number = PyLong_AsUnsignedLong(arg);
    if (PyErr_Occurred()) return 0;
    *counter = (uint32_t)number;
    if (number < COUNTS_AT_MOST && counts_handle(*counter)) return 1;
    PyErr_SetString(PyExc_ValueError, "nothing is counted there");
    return 0;
}

static PyObject *plane_new_count(PyObject *self, PyObject *args) {
    unsigned long long handle;
    long long open;
    if (!PyArg_ParseTuple(args, "KL", &handle, &open)) return NULL;
    int64_t counter = counts_new(handle);
    if (counter >= 0) counts_add((uint32_t)counter, open);
    return PyLong_FromLongLong(counter);
}

static PyObject *plane_count(PyObject *self, PyObject *arg) {
    uint32_t counter;
    return counter_of(arg, &counter) ? PyLong_FromLongLong(counts_open(counter)) : NULL;
}

static PyObject *plane_closed(PyObject *self, PyObject *arg) {
    uint32_t counter;
    return counter_of(arg, &counter) ? PyLong_FromLongLong(counts_add(counter, -1)) : NULL;
}

static PyObject *plane_free(PyObject *self, PyObject *arg) {
    uint32_t counter;
    if (!counter_of(arg, &counter)) return NULL;
    counts_free(counter);
    Py_RETURN_NONE;
}

static int kind_of_news(PyObject *arg, enum news *of) {
    long number = PyLong_AsLong(arg);
    if (PyErr_Occurred()) return 0;
    *of = (enum news)number;
    if (number >= 0 && number < NEWS) return 1;
    PyErr_SetString(PyExc_ValueError, "no such news");
    return 0;
}

static PyObject *plane_news_fd(PyObject *self, PyObject *arg) {
    enum news of;
    if (!kind_of_news(arg, &of)) return NULL;
    int fd = news_fd(of);
    return fd < 0 ? raise(errno) : PyLong_FromLong(fd);
}

static PyObject *with_news(PyObject *arg, void (*act)(enum news)) {
    enum news of;
    if (!kind_of_news(arg, &of)) return NULL;
    act(of);
    Py_RETURN_NONE;
}

static PyObject *plane_news_tell(PyObject *self, PyObject *arg) { return with_news(arg, news_tell); }

static PyObject *plane_news_read(PyObject *self, PyObject *arg) { return with_news(arg, news_read); }

static PyObject *plane_events(PyObject *self, PyObject *noargs) {
    static struct event found[MOST_EVENTS]; /* with the GIL held */
    uint64_t lost;
    size_t count = events_take(found, MOST_EVENTS, &lost);
    return Py_BuildValue("(y#K)", (const char *)found, (Py_ssize_t)(count * sizeof *found), (unsigned long long)lost);
}

static PyObject *plane_figures(PyObject *self, PyObject *noargs) {
    return Py_BuildValue("(innLLLLLLLLLLLLL)", threads_running(), (Py_ssize_t)opens_count(), (Py_ssize_t)(reads_count() + staged_count()),
                         (long long)__atomic_load_n(&answered.cached, __ATOMIC_RELAXED),
                         (long long)__atomic_load_n(&answered.passed, __ATOMIC_RELAXED),
                         (long long)__atomic_load_n(&answered.releases, __ATOMIC_RELAXED),
                         (long long)__atomic_load_n(&answered.reads, __ATOMIC_RELAXED),
                         (long long)__atomic_load_n(&answered.read_bytes, __ATOMIC_RELAXED),
                         (long long)__atomic_load_n(&answered.spliced, __ATOMIC_RELAXED),
                         (long long)__atomic_load_n(&lock_wait_ns, __ATOMIC_RELAXED),
                         (long long)__atomic_load_n(&answered.cached_bytes, __ATOMIC_RELAXED),
                         (long long)__atomic_load_n(&answered.passed_bytes, __ATOMIC_RELAXED),
                         (long long)__atomic_load_n(&answered.large_passed, __ATOMIC_RELAXED),
                         (long long)__atomic_load_n(&answered.large_read_bytes, __ATOMIC_RELAXED),
                         (long long)__atomic_load_n(&answered.overlay_look_ups, __ATOMIC_RELAXED),
                         (long long)__atomic_load_n(&answered.overlay_look_up_bytes, __ATOMIC_RELAXED));
}

PyMethodDef plane_methods[] = {
    {"plane_progress", plane_progress, METH_O,
     "plane_progress(node) -> (bytes, end) or None: given to reads of it in no order, if they are answered; the end of the last."},
    {"plane_put_object", plane_put_object, METH_VARARGS,
     "plane_put_object(number, inode, ctime_ns, size) -> bool: reads of slots that were put with this number may be answered "
     "from the object, as long as it has these."},
    {"plane_take_object", plane_take_object, METH_O, "plane_take_object(number) -> bool: they come to Python from now on."},
    {"plane_root_without_acl", plane_root_without_acl, METH_O, "plane_root_without_acl(valid_ns): so long it has none; 0: ask."},
    {"plane_staged_in", plane_staged_in, METH_O, "plane_staged_in(fd): such objects lie in this directory; -1: not any more."},
    {"plane_start", plane_start, METH_VARARGS,
     "plane_start(device, count, beats_fd=-1): so many threads read requests, and beat there. Raises OSError."},
    {"plane_stop", plane_stop, METH_NOARGS, "plane_stop(): none of them runs any more when it returns."},
    {"plane_attach", plane_attach, METH_VARARGS,
     "plane_attach(fd, terms) -> ([(handle, counter, open)], directories): handles are counted in this memfd (-1: in memory of our own), "
     "and leaves lie there; what an earlier daemon has left, of leaves the directory and how many (64 bits each), in any order. "
     "Before anything is put. Raises OSError."},
    {"plane_put", plane_put, METH_VARARGS,
     "plane_put(node, handle, open_flags, backing_id, directory_fd, name, inode, size, ctime_ns, until_ns) -> counter: opens of "
     "`node` are answered without Python until CLOCK_MONOTONIC is until_ns, as long as the object (directory_fd -1: none) "
     "is as described. Raises OSError, EEXIST among others."},
    {"plane_take", plane_take, METH_O,
     "plane_take(node) -> (open, opened, last_ns) or None: they are answered by Python from now on; the counter stays."},
    {"plane_put_reads", plane_put_reads, METH_VARARGS,
     "plane_put_reads(node, object_fd, inode, size, ctime_ns): reads of `node` are answered without Python, from this "
     "object as long as it is as described, and as far as it is in memory. Raises OSError, EEXIST among others."},
    {"plane_take_reads", plane_take_reads, METH_O, "plane_take_reads(node) -> bool: they come to Python from now on."},
    {"plane_served", plane_served, METH_NOARGS,
     "plane_served() -> bytes: thread id, reads and bytes (64 bits each) of those whose reads were answered since the last "
     "call."},
    {"plane_new_count", plane_new_count, METH_VARARGS, "plane_new_count(handle, open) -> counter: so many have it open; -1: there is no counter."},
    {"plane_count", plane_count, METH_O, "plane_count(counter) -> int: how many have its handle open."},
    {"plane_closed", plane_closed, METH_O, "plane_closed(counter) -> int: one of them has closed it; how many have not."},
    {"plane_free", plane_free, METH_O, "plane_free(counter): nobody has its handle open, and nobody will."},
    {"plane_figures", plane_figures, METH_NOARGS,
     "plane_figures() -> the figures of `PlaneFigures` in mountd/kernel/plane.py, in its order: threads that run, nodes in "
     "the tables, and what was answered since the start."},
    {"plane_news_fd", plane_news_fd, METH_O,
     "plane_news_fd(kind) -> an eventfd that is readable when there is something to take: 0, opens and reads; 1, what has "
     "become of files. It stays open. Raises OSError."},
    {"plane_news_tell", plane_news_tell, METH_O, "plane_news_tell(kind): have whoever waits for it look."},
    {"plane_news_read", plane_news_read, METH_O, "plane_news_read(kind): all of it is taken next; what comes later is told anew."},
    {"plane_events", plane_events, METH_NOARGS,
     "plane_events() -> (bytes, lost): node, thread id, object and time (64 bits each) of opens that were answered, the oldest first; how many "
     "were lost before them."},
    {NULL, NULL, 0, NULL},
};
