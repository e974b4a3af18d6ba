/* What Python may do with the pipeline of small files: delegate directories, ask for files ahead, grant numbers and room, and
 * hear what has become of each file.
 *
 * A part of the extension, see _fastpath.c, and of the pipeline, see fetch.h.
 */
#include "python.h"

#include "fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_FETCHED 256 /* told at a time: a millisecond of Python */

static PyObject *raise(int error) {
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *plane_fetch_as(PyObject *self, PyObject *args) {
    unsigned int uid, gid;
    Py_buffer groups;
    int wholly;
    if (!PyArg_ParseTuple(args, "IIy*p", &uid, &gid, &groups, &wholly)) return NULL;
    struct user user = {uid, gid, wholly, (size_t)groups.len / sizeof *user.groups, groups.buf};
    int error = user_set(&user);
    PyBuffer_Release(&groups);
    if (error) return raise(error);
    Py_RETURN_NONE;
}

static PyObject *plane_fetch_start(PyObject *self, PyObject *args) {
    int device, count, ahead_at_most;
    Py_ssize_t ahead_bytes;
    if (!PyArg_ParseTuple(args, "iiin", &device, &count, &ahead_at_most, &ahead_bytes)) return NULL;
    int error = workers_start(device, count, ahead_at_most, (size_t)ahead_bytes);
    if (error) return raise(error);
    Py_RETURN_NONE;
}

static PyObject *plane_fetch_stop(PyObject *self, PyObject *arg) {
    long long patience_ns = PyLong_AsLongLong(arg);
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    store_in(-1, 0);
    staged_at(-1);
    workers_stop(patience_ns);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *plane_fetch_replace(PyObject *self, PyObject *arg) {
    long long limit_ns = PyLong_AsLongLong(arg);
    uint64_t directories[FETCH_WORKERS];
    size_t count;
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    count = workers_replace(monotonic_ns() - limit_ns, directories);
    Py_END_ALLOW_THREADS
    return PyBytes_FromStringAndSize((const char *)directories, (Py_ssize_t)(count * sizeof *directories));
}

static PyObject *plane_delegate(PyObject *self, PyObject *args) {
    unsigned long long directory, generation, device, largest;
    long long settled_ns, settled_fine_ns, until_ns, valid_ns;
    int fd, careful;
    const char *prefix;
    Py_ssize_t prefix_size;
    if (!PyArg_ParseTuple(args, "KKiKK(LL)LLpy#", &directory, &generation, &fd, &device, &largest, &settled_ns, &settled_fine_ns, &until_ns,
                          &valid_ns, &careful, &prefix, &prefix_size))
        return NULL;
    struct delegated delegated = {
        .entry.node = directory, .generation = generation, .fd = fcntl(fd, F_DUPFD_CLOEXEC, 0), .device = device,
        .largest = largest < LARGEST_SMALL ? largest : LARGEST_SMALL, .settled_ns = settled_ns,
        .settled_fine_ns = settled_fine_ns, .until_ns = until_ns, .valid_ns = valid_ns, .careful = careful,
        .prefix_size = (size_t)prefix_size, .prefix = prefix_size ? malloc((size_t)prefix_size) : NULL,
    };
    int error = delegated.fd < 0 ? errno : prefix_size && !delegated.prefix ? ENOMEM : 0;
    if (!error && prefix_size) memcpy(delegated.prefix, prefix, (size_t)prefix_size);
    if (!error && !(error = delegated_put(&delegated))) Py_RETURN_NONE;
    if (delegated.fd >= 0) close(delegated.fd);
    free(delegated.prefix);
    return raise(error);
}

static PyObject *plane_recall_directory(PyObject *self, PyObject *arg) {
    uint64_t directory = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred()) return NULL;
    int64_t slots;
    delegated_take(directory, &slots);
    return PyLong_FromLongLong(slots);
}

static PyObject *plane_delegated_slots(PyObject *self, PyObject *arg) {
    uint64_t directory = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred()) return NULL;
    return PyLong_FromLongLong(delegated_slots(directory));
}

static void unreserve(uint64_t directory, const char *name, size_t size) { reserved_take(name_key(directory, name, size)); }

static int each_name(PyObject *names, void (*tell)(uint64_t, const char *, size_t), uint64_t directory) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(names); i++) {
        char *name;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyList_GET_ITEM(names, i), &name, &size) < 0) return 0;
        tell(directory, name, (size_t)size);
    }
    return 1;
}

static PyObject *plane_reserve(PyObject *self, PyObject *args) {
    unsigned long long directory;
    PyObject *names;
    if (!PyArg_ParseTuple(args, "KO!", &directory, &PyList_Type, &names)) return NULL;
    if (!each_name(names, jobs_reserve, directory)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *plane_try_reserve(PyObject *self, PyObject *args) {
    unsigned long long directory;
    PyObject *names;
    if (!PyArg_ParseTuple(args, "KO!", &directory, &PyList_Type, &names)) return NULL;
    Py_ssize_t count = PyList_GET_SIZE(names);
    PyObject *claimed = PyByteArray_FromStringAndSize(NULL, count);
    for (Py_ssize_t i = 0; claimed && i < count; i++) {
        char *name;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyList_GET_ITEM(names, i), &name, &size) < 0)
            Py_CLEAR(claimed);
        else
            PyByteArray_AS_STRING(claimed)[i] = (char)jobs_try_reserve(directory, name, (size_t)size);
    }
    return claimed;
}

static PyObject *plane_is_busy(PyObject *self, PyObject *args) {
    unsigned long long directory;
    const char *name;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "Ky#", &directory, &name, &size)) return NULL;
    return PyBool_FromLong(jobs_is_busy(directory, name, (size_t)size));
}

static PyObject *plane_unreserve(PyObject *self, PyObject *args) {
    unsigned long long directory;
    PyObject *names;
    if (!PyArg_ParseTuple(args, "KO!", &directory, &PyList_Type, &names)) return NULL;
    if (!each_name(names, unreserve, directory)) return NULL;
    Py_RETURN_NONE;
}

#define MOST_WANTED 64

static PyObject *plane_fetch_ahead(PyObject *self, PyObject *args) {
    PyObject *directories, *names;
    struct wanted wanted[MOST_WANTED];
    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &directories, &PyList_Type, &names)) return NULL;
    Py_ssize_t count = PyList_GET_SIZE(names);
    if (count > MOST_WANTED || PyList_GET_SIZE(directories) != count) {
        PyErr_SetString(PyExc_ValueError, "so many names and directories do not go together");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        char *name;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyList_GET_ITEM(names, i), &name, &size) < 0) return NULL;
        wanted[i] = (struct wanted){PyLong_AsUnsignedLongLong(PyList_GET_ITEM(directories, i)), name, (size_t)size, 0, NULL};
        if (PyErr_Occurred()) return NULL;
    }
    jobs_ahead(wanted, (size_t)count);
    PyObject *errors = PyByteArray_FromStringAndSize(NULL, count);
    for (Py_ssize_t i = 0; errors && i < count; i++) PyByteArray_AS_STRING(errors)[i] = (char)wanted[i].error;
    return errors;
}

static PyObject *plane_fetched(PyObject *self, PyObject *noargs) {
    struct fetched *first = fetched_take(MOST_FETCHED);
    PyObject *found = PyList_New(0);
    for (struct fetched *next; first; first = next) {
        next = first->next;
        PyObject *item = found ? Py_BuildValue("(iiKKy#y#KKLKy#)", (int)first->kind, first->ahead, (unsigned long long)first->directory,
                                               (unsigned long long)first->generation, first->name, (Py_ssize_t)first->name_size, (const char *)&first->seen,
                                               (Py_ssize_t)sizeof first->seen, (unsigned long long)first->stored.number,
                                               (unsigned long long)first->stored.inode, (long long)first->stored.ctime_ns,
                                               (unsigned long long)first->checksum, first->data, (Py_ssize_t)(first->data ? first->seen.size : 0))
                               : NULL;
        if (!item || PyList_Append(found, item) < 0) Py_CLEAR(found);
        Py_XDECREF(item);
        if (first->held) contents_stored(first->held, 0);
        free(first);
    }
    return found;
}

static PyObject *plane_fetch_terms(PyObject *self, PyObject *args) {
    int pushes, passes, stores;
    if (!PyArg_ParseTuple(args, "ppp", &pushes, &passes, &stores)) return NULL;
    pushes_terms(pushes, passes);
    store_by_python(!stores);
    Py_RETURN_NONE;
}

static PyObject *plane_placement(PyObject *self, PyObject *args) {
    Py_buffer owners;
    int own, is_set;
    if (!PyArg_ParseTuple(args, "y*i", &owners, &own)) return NULL;
    int is_whole = !owners.len || owners.len == (Py_ssize_t)(PLACEMENT_SLOTS * sizeof(int32_t));
    is_set = is_whole && placement_set(owners.len ? owners.buf : NULL, own);
    PyBuffer_Release(&owners);
    if (is_set) Py_RETURN_NONE;
    return is_whole ? raise(ENOMEM) : raise(EINVAL);
}

static PyObject *plane_trim(PyObject *self, PyObject *noargs) {
    Py_BEGIN_ALLOW_THREADS
    staged_settle();
    contents_trim(contents_unstored());
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *plane_distrust(PyObject *self, PyObject *arg) {
    uint64_t inode = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred()) return NULL;
    source_distrusts(inode);
    Py_RETURN_NONE;
}

static PyObject *plane_store_in(PyObject *self, PyObject *args) {
    int fd;
    unsigned long long overhead_bytes;
    if (!PyArg_ParseTuple(args, "iK", &fd, &overhead_bytes)) return NULL;
    store_in(fd, overhead_bytes);
    staged_at(fd);
    Py_RETURN_NONE;
}

static PyObject *plane_grant(PyObject *self, PyObject *args) {
    unsigned long long first, end;
    if (!PyArg_ParseTuple(args, "KK", &first, &end)) return NULL;
    uint64_t from = first, to = end;
    store_grant(&from, &to);
    return Py_BuildValue("(KK)", (unsigned long long)from, (unsigned long long)to);
}

static PyObject *plane_grant_room(PyObject *self, PyObject *arg) {
    uint64_t bytes = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred()) return NULL;
    store_grant_room(bytes);
    Py_RETURN_NONE;
}

static PyObject *plane_granted(PyObject *self, PyObject *noargs) {
    uint64_t numbers, bytes;
    store_left(&numbers, &bytes);
    return Py_BuildValue("(KK)", (unsigned long long)numbers, (unsigned long long)bytes);
}

static PyObject *plane_put_versions(PyObject *self, PyObject *args) {
    Py_buffer rows;
    if (!PyArg_ParseTuple(args, "y*", &rows)) return NULL;
    const struct row {
        uint64_t number, inode, checksum, file_inode, size;
        int64_t ctime_ns, file_mtime_ns, file_ctime_ns, is_pythons;
    } *each = rows.buf;
    Py_ssize_t count = rows.len / (Py_ssize_t)sizeof *each;
    int error = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count && !error; i++) {
        struct staged_object object = {
            .number = each[i].number, .inode = each[i].inode, .size = each[i].size, .checksum = each[i].checksum,
            .ctime_ns = each[i].ctime_ns, .has_version = 1, .is_committed = !each[i].is_pythons, .is_pythons = each[i].is_pythons != 0,
            .version = {each[i].file_inode, each[i].size, each[i].file_mtime_ns, each[i].file_ctime_ns},
        };
        error = staged_put(&object);
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&rows);
    if (error) return raise(error);
    Py_RETURN_NONE;
}

static PyObject *plane_slot(PyObject *self, PyObject *arg) {
    struct slot_place place;
    uint64_t id = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred()) return NULL;
    if (!slots_place(id, 0, &place)) Py_RETURN_NONE;
    return Py_BuildValue("(Ky#K)", (unsigned long long)place.directory, place.name, (Py_ssize_t)place.name_size,
                         (unsigned long long)place.seen.size);
}

static PyObject *plane_fetch_ahead_at_most(PyObject *self, PyObject *arg) {
    size_t count = PyLong_AsSize_t(arg);
    if (PyErr_Occurred()) return NULL;
    jobs_ahead_at_most(count);
    Py_RETURN_NONE;
}

static PyObject *plane_store_at_once(PyObject *self, PyObject *arg) {
    int at_once = PyObject_IsTrue(arg);
    if (at_once < 0) return NULL;
    store_at_once(at_once);
    Py_RETURN_NONE;
}

static PyObject *plane_reader_waits(PyObject *self, PyObject *noargs) {
    return Py_BuildValue("(LLL)", (long long)__atomic_load_n(&reader_waits.count, __ATOMIC_RELAXED),
                         (long long)__atomic_load_n(&reader_waits.ns, __ATOMIC_RELAXED),
                         (long long)__atomic_load_n(&reader_waits.waiting, __ATOMIC_RELAXED));
}

static PyObject *plane_fetch_figures(PyObject *self, PyObject *noargs) {
    return Py_BuildValue("(nnnnnnLLLLL)", (Py_ssize_t)jobs_under_way(), (Py_ssize_t)contents_count(), (Py_ssize_t)delegated_count(),
                         (Py_ssize_t)staged_versions(), (Py_ssize_t)buffers_out(), (Py_ssize_t)workers_unstored(),
                         (long long)__atomic_load_n(&source_counts.looks, __ATOMIC_RELAXED),
                         (long long)__atomic_load_n(&source_counts.opens, __ATOMIC_RELAXED),
                         (long long)__atomic_load_n(&source_counts.reads, __ATOMIC_RELAXED),
                         (long long)__atomic_load_n(&source_counts.bytes, __ATOMIC_RELAXED),
                         (long long)__atomic_load_n(&waited_ns, __ATOMIC_RELAXED));
}

PyMethodDef plane_fetch_methods[] = {
    {"plane_fetch_as", plane_fetch_as, METH_VARARGS, "plane_fetch_as(uid, gid, groups, wholly): threads that are started from now on ask the source as this user; `groups`:"
     " native 32-bit numbers. Raises OSError."},
    {"plane_fetch_start", plane_fetch_start, METH_VARARGS, "plane_fetch_start(device, count, ahead_at_most, ahead_bytes): so many threads fetch small files of delegated directories; so many"
     " of them ahead, with so much memory. Raises OSError, ENOSYS where it was built without xxhash.h."},
    {"plane_fetch_stop", plane_fetch_stop, METH_O, "plane_fetch_stop(patience_ns): they end; those that the source does not answer are waited for so long."},
    {"plane_fetch_replace", plane_fetch_replace, METH_O, "plane_fetch_replace(limit_ns) -> bytes: threads that wait for the source for longer are given up, and files that wait"
     " for a thread; what waits for them is Python's. The directories (uint64) of the first."},
    {"plane_delegate", plane_delegate, METH_VARARGS, "plane_delegate(directory, generation, fd, device, largest, (settled_ns, settled_fine_ns), until_ns, valid_ns, careful, prefix): its small files, whose paths begin with `prefix`, are fetched here until then."},
    {"plane_recall_directory", plane_recall_directory, METH_O, "plane_recall_directory(directory) -> int: they are Python's from now on; as plane_delegated_slots."},
    {"plane_delegated_slots", plane_delegated_slots, METH_O, "plane_delegated_slots(directory) -> int: slots that were put there since the last call."},
    {"plane_reserve", plane_reserve, METH_VARARGS, "plane_reserve(directory, names): these are Python's; when it returns no slot is made of them any more."},
    {"plane_try_reserve", plane_try_reserve, METH_VARARGS, "plane_try_reserve(directory, names) -> bytearray: as plane_reserve, of those of which it says 1; the others are fetched here, or were."},
    {"plane_is_busy", plane_is_busy, METH_VARARGS, "plane_is_busy(directory, name) -> bool: it is being looked at, fetched or stored."},
    {"plane_unreserve", plane_unreserve, METH_VARARGS, "plane_unreserve(directory, names): Python has forgotten these."},
    {"plane_fetch_ahead", plane_fetch_ahead, METH_VARARGS, "plane_fetch_ahead(directories, names) -> bytearray: of each name in its directory, at most 64: 0, it is fetched; or an"
     " errno: EEXIST, EPERM, ENOENT, EAGAIN."},
    {"plane_fetched", plane_fetched, METH_NOARGS, "plane_fetched() -> [(kind, ahead, directory, generation, name, seen, number, inode, ctime_ns, checksum, data)]: what has become of"
     " files; `data`: bytes that Python is to store, else None."},
    {"plane_fetch_terms", plane_fetch_terms, METH_VARARGS, "plane_fetch_terms(pushes, passes, stores): whether opens put bytes into the page cache; whether those of objects without"
     " pages there are Python's; whether objects are made here, or bytes given to Python."},
    {"plane_placement", plane_placement, METH_VARARGS, "plane_placement(owners, own): the node (int32) that owns each slot, and this one; empty: there is no other."},
    {"plane_trim", plane_trim, METH_NOARGS, "plane_trim(): bytes that objects have as well are kept in memory no longer."},
    {"plane_distrust", plane_distrust, METH_O, "plane_distrust(inode): files with this number are Python's."},
    {"plane_store_in", plane_store_in, METH_VARARGS, "plane_store_in(fd, overhead_bytes): objects are made and read in this directory; -1: not any more."},
    {"plane_grant", plane_grant, METH_VARARGS, "plane_grant(first, end) -> (first, end): numbers of new objects; those that were not used."},
    {"plane_grant_room", plane_grant_room, METH_O, "plane_grant_room(bytes): so much more room for them."},
    {"plane_granted", plane_granted, METH_NOARGS, "plane_granted() -> (numbers, bytes): what is left of it."},
    {"plane_put_versions", plane_put_versions, METH_VARARGS, "plane_put_versions(rows): objects of the index, 9 x 64 bits each: number, inode, checksum, inode of the file, size, ctime_ns,"
     " mtime_ns and ctime_ns of the file, and whether Python alone can read it."},
    {"plane_slot", plane_slot, METH_O, "plane_slot(id) -> (directory, name, size) or None."},
    {"plane_fetch_ahead_at_most", plane_fetch_ahead_at_most, METH_O, "plane_fetch_ahead_at_most(count): so many threads fetch ahead from now on."},
    {"plane_store_at_once", plane_store_at_once, METH_O, "plane_store_at_once(at_once): whether what is fetched ahead is written to the disk at once from now on."},
    {"plane_reader_waits", plane_reader_waits, METH_NOARGS, "plane_reader_waits() -> (count, ns, waiting): how those have waited who wanted something of the source."},
    {"plane_fetch_figures", plane_fetch_figures, METH_NOARGS, "plane_fetch_figures() -> (jobs, contents, delegated, versions, buffer_bytes, unstored_bytes, looks, opens, reads, read_bytes, wait_ns)."},
    {NULL, NULL, 0, NULL},
};
