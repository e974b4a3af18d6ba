/* Small files, many in one call: read from the source, written to the cache. Optional: `mountd/source/small.py` and
 * `mountd/cache/objects/disk.py` do the same in Python where this was not built.
 *
 * A small file needs five system calls at the source and three at the cache. From Python each of them gives the
 * interpreter's lock away and waits to have it back, among a dozen threads that do the same: measured, 85 futex calls
 * and 0.5 ms of CPU a file. Here the lock is given away once for a batch. Knows no paths of its own, keeps nothing.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MAX_FILES = 256, PAGE = 4096 };

#define OPEN_FLAGS (O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)

/* Without the access time: a read makes it unknown to the client of a network file system, and asking for it costs a
 * round trip. */
#define MNT_ID_UNIQUE 0x4000U /* Linux 6.8; headers are older */
#define WANTED ((STATX_BASIC_STATS & ~STATX_ATIME) | MNT_ID_UNIQUE)
#define IDENTITY (STATX_TYPE | STATX_MTIME | STATX_CTIME | STATX_INO | STATX_SIZE)

enum { WHOLE = 0, ATTRIBUTES_ONLY = -1, CHANGED = -2 }; /* or an errno */

/* What a reader and the thread of a batch know of each other: 8 bytes. */
struct progress {
    int32_t current; /* the file that is being read, -1 before the first */
    int32_t hurry;   /* end after this file */
};

struct one {
    int directory, status, fd;
    const char *name;
    struct statx attributes;
    size_t offset;
};

static int whole(const char *name, size_t bytes) { /* one component of a path */
    return bytes > 0 && strlen(name) == bytes && !strchr(name, '/') && strcmp(name, ".") && strcmp(name, "..");
}

static int same(const struct statx *a, const struct statx *b) {
    return S_ISREG(b->stx_mode) && a->stx_ino == b->stx_ino && a->stx_size == b->stx_size &&
           !memcmp(&a->stx_mtime, &b->stx_mtime, 12) && !memcmp(&a->stx_ctime, &b->stx_ctime, 12);
}

/* Reads one file to `into`. 0: there is no room for it, and nothing has happened. */
static int read_one(struct one *f, char *into, size_t room, size_t limit, int careful) {
    struct statx after;
    if (careful) { /* on a file system with devices: opening one may do something */
        if (statx(f->directory, f->name, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &f->attributes) != 0) return f->status = errno, 1;
        if (!S_ISREG(f->attributes.stx_mode)) return f->status = EINVAL, 1; /* asked for by itself it is told apart */
    }
    f->fd = openat(f->directory, f->name, OPEN_FLAGS);
    if (f->fd < 0) return f->status = errno, 1;
    if (statx(f->fd, "", AT_EMPTY_PATH, WANTED, &f->attributes) != 0) return f->status = errno, 1;
    size_t size = f->attributes.stx_size, done = 0;
    f->status = ATTRIBUTES_ONLY;
    if (!S_ISREG(f->attributes.stx_mode) || size > limit) return 1;
    if (size > room) return 0;
    for (ssize_t got = 1; got && done <= size; done += got) { /* to the end, wherever that is */
        char behind;
        struct iovec parts[] = {{into + done, size - done}, {&behind, 1}};
        if ((got = preadv(f->fd, parts, 2, done)) < 0) return f->status = errno, 1;
    }
    if (done != size) return f->status = CHANGED, 1;
    if (statx(f->fd, "", AT_EMPTY_PATH, IDENTITY, &after) != 0) return f->status = errno, 1;
    f->status = same(&f->attributes, &after) ? WHOLE : CHANGED;
    return 1;
}

static int read_all(struct one *files, int count, char *into, size_t room, size_t limit, int careful,
                    struct progress *progress) {
    size_t used = 0;
    int i;
    for (i = 0; i < count; i++) files[i].fd = -1;
    for (i = 0; i < count; i++) {
        __atomic_store_n(&progress->current, i, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&progress->hurry, __ATOMIC_SEQ_CST)) break;
        files[i].offset = used;
        if (!read_one(&files[i], into + used, room - used, limit, careful)) break;
        if (files[i].status == WHOLE) used += (files[i].attributes.stx_size + PAGE - 1) / PAGE * PAGE;
        if (used > room) used = room;
    }
    /* Who hurries now, while these files are closed and the answer is on its way, must not wait for one not read. */
    __atomic_store_n(&progress->current, i - 1, __ATOMIC_SEQ_CST);
    /* Read once and staged: these pages would only push out others. All at the end, since the first of these calls
     * waits until all processors have let go of pages that were just read, and the others then need not. */
    for (int k = 0; k < count && k <= i; k++) {
        if (files[k].fd < 0) continue;
        if (files[k].status == WHOLE) posix_fadvise(files[k].fd, 0, 0, POSIX_FADV_DONTNEED);
        close(files[k].fd);
    }
    return i;
}

static int64_t ns(struct statx_timestamp time, int *right) {
    if (time.tv_sec > INT64_MAX / 1000000000 - 1 || time.tv_sec < INT64_MIN / 1000000000 + 1) *right = 0;
    return *right ? time.tv_sec * 1000000000 + time.tv_nsec : 0;
}

/* The kernel's number of the mount, which no other ever gets: stx_mnt_id, which older headers call a spare. */
static unsigned long long mount_number(const struct statx *x) {
    uint64_t number = 0;
    if (x->stx_mask & MNT_ID_UNIQUE) memcpy(&number, (const char *)x + 0x90, sizeof number);
    return number;
}

static PyObject *answer(const struct one *f) { /* (status, attributes or None, offset) */
    if (f->status > 0) return Py_BuildValue("iOi", f->status, Py_None, 0);
    const struct statx *x = &f->attributes;
    int right = 1;
    int64_t atime = ns(x->stx_atime, &right), mtime = ns(x->stx_mtime, &right), ctime = ns(x->stx_ctime, &right);
    if (!right) return Py_BuildValue("iOi", EOVERFLOW, Py_None, 0);
    return Py_BuildValue("i(IKIIIKKKILLLKK)n", f->status, (unsigned)x->stx_mode, (unsigned long long)x->stx_ino,
                         x->stx_nlink, x->stx_uid, x->stx_gid,
                         (unsigned long long)makedev(x->stx_rdev_major, x->stx_rdev_minor),
                         (unsigned long long)x->stx_size, (unsigned long long)x->stx_blocks, x->stx_blksize,
                         (long long)atime, (long long)mtime, (long long)ctime,
                         (unsigned long long)makedev(x->stx_dev_major, x->stx_dev_minor), mount_number(x),
                         (Py_ssize_t)f->offset);
}

/* read(directories, names, into, limit_bytes, careful, progress) -> [(status, attributes, offset)], as far as it came */
static PyObject *small_read(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *directories, *names, *found = NULL;
    Py_buffer into, shared;
    Py_ssize_t limit;
    int careful;
    if (!PyArg_ParseTuple(args, "O!O!w*npw*", &PyList_Type, &directories, &PyList_Type, &names, &into, &limit, &careful,
                          &shared))
        return NULL;
    Py_ssize_t count = PyList_GET_SIZE(names);
    struct one *files = PyMem_Calloc(count ? count : 1, sizeof *files);
    if (!files) {
        PyErr_NoMemory();
        goto out;
    }
    if (count > MAX_FILES || PyList_GET_SIZE(directories) != count || shared.len != sizeof(struct progress)) {
        PyErr_SetString(PyExc_ValueError, "so many files, directories and bytes of progress do not go together");
        goto out;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *name = PyList_GET_ITEM(names, i);
        if (!PyBytes_Check(name) || !whole(PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))) {
            PyErr_SetString(PyExc_ValueError, "not a name in a directory");
            goto out;
        }
        files[i].name = PyBytes_AS_STRING(name); /* the list is the caller's own, who is waiting for us */
        files[i].directory = (int)PyLong_AsLong(PyList_GET_ITEM(directories, i));
        if (PyErr_Occurred()) goto out;
    }
    int done;
    Py_BEGIN_ALLOW_THREADS;
    done = read_all(files, (int)count, into.buf, into.len, limit, careful, shared.buf);
    Py_END_ALLOW_THREADS;
    found = PyList_New(done);
    for (int i = 0; found && i < done; i++) {
        PyObject *one = answer(&files[i]);
        if (!one)
            Py_CLEAR(found);
        else
            PyList_SET_ITEM(found, i, one);
    }
out:
    PyMem_Free(files);
    PyBuffer_Release(&into);
    PyBuffer_Release(&shared);
    return found;
}

/* hurry(progress) -> the file that is being read; -1: none, and none will be */
static PyObject *small_hurry(PyObject *self, PyObject *shared) {
    (void)self;
    Py_buffer view;
    if (PyObject_GetBuffer(shared, &view, PyBUF_WRITABLE) != 0) return NULL;
    struct progress *progress = view.buf;
    int current = -1;
    if (view.len == sizeof *progress) {
        __atomic_store_n(&progress->hurry, 1, __ATOMIC_SEQ_CST);
        current = __atomic_load_n(&progress->current, __ATOMIC_SEQ_CST);
    }
    PyBuffer_Release(&view);
    return PyLong_FromLong(current);
}

/* What a new file was left like. */
struct left {
    int number; /* 0 or an errno */
    uint64_t inode;
    int64_t ctime;
};

static struct left write_one(int directory, const char *path, const char *data, size_t size) {
    struct left left = {0, 0, 0};
    struct stat found;
    const int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    int fd = openat(directory, path, flags, 0600);
    const char *slash = strchr(path, '/');
    if (fd < 0 && errno == ENOENT && slash && slash - path < 64) {
        char folder[64] = {0};
        memcpy(folder, path, slash - path);
        if (mkdirat(directory, folder, 0700) != 0 && errno != EEXIST) return left.number = errno, left;
        fd = openat(directory, path, flags, 0600);
    }
    if (fd < 0) return left.number = errno, left;
    size_t done = 0;
    while (done < size && !left.number) {
        ssize_t written = pwrite(fd, data + done, size - done, done);
        if (written <= 0)
            left.number = written ? errno : ENOSPC;
        else
            done += written;
    }
    if (!left.number && fstat(fd, &found) != 0) left.number = errno;
    if (!left.number) {
        left.inode = found.st_ino;
        left.ctime = (int64_t)found.st_ctim.tv_sec * 1000000000 + found.st_ctim.tv_nsec;
    }
    close(fd);
    return left;
}

/* write(directory, paths, data) -> [(0 or errno, inode, ctime in ns)]: new files, the folder of each made when missing;
 * what they were left like tells later whether anybody has changed them */
static PyObject *small_write(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *paths, *data, *found = NULL;
    int directory;
    if (!PyArg_ParseTuple(args, "iO!O!", &directory, &PyList_Type, &paths, &PyList_Type, &data)) return NULL;
    Py_ssize_t count = PyList_GET_SIZE(paths), held = 0;
    Py_buffer *views = PyMem_Calloc(count ? count : 1, sizeof *views);
    const char **names = PyMem_Calloc(count ? count : 1, sizeof *names);
    struct left *left = PyMem_Calloc(count ? count : 1, sizeof *left);
    if (!views || !names || !left) {
        PyErr_NoMemory();
        goto out;
    }
    if (PyList_GET_SIZE(data) != count) {
        PyErr_SetString(PyExc_ValueError, "as many paths as data");
        goto out;
    }
    for (; held < count; held++) {
        names[held] = PyBytes_AsString(PyList_GET_ITEM(paths, held));
        if (!names[held] || PyObject_GetBuffer(PyList_GET_ITEM(data, held), &views[held], PyBUF_SIMPLE) != 0) goto out;
    }
    Py_BEGIN_ALLOW_THREADS;
    for (Py_ssize_t i = 0; i < count; i++) left[i] = write_one(directory, names[i], views[i].buf, views[i].len);
    Py_END_ALLOW_THREADS;
    found = PyList_New(count);
    for (Py_ssize_t i = 0; found && i < count; i++) {
        PyObject *one = Py_BuildValue("iKL", left[i].number, (unsigned long long)left[i].inode, (long long)left[i].ctime);
        if (!one)
            Py_CLEAR(found);
        else
            PyList_SET_ITEM(found, i, one);
    }
out:
    for (Py_ssize_t i = 0; i < held; i++) PyBuffer_Release(&views[i]);
    PyMem_Free(views);
    PyMem_Free(names);
    PyMem_Free(left);
    return found;
}

static PyMethodDef methods[] = {
    {"read", small_read, METH_VARARGS, NULL},
    {"hurry", small_hurry, METH_O, NULL},
    {"write", small_write, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {.m_base = PyModuleDef_HEAD_INIT, .m_name = "_small_files", .m_size = -1,
                                    .m_methods = methods};

PyMODINIT_FUNC PyInit__small_files(void) { return PyModule_Create(&module); }
