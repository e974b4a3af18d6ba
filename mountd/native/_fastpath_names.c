/* Directory entries without nodes: of such a name the kernel keeps inode number and type only, and nothing is to be
 * forgotten later.
 *
 * Where pyfuse3 means to add one entry to a reply, as many of the names told just before are added as fit: one by one,
 * 100 000 names took 0.12 s of Python. A part of the extension, see _fastpath.c. Knows no request and keeps nothing.
 */
#include "_fastpath.h"

#include <dirent.h>
#include <string.h>

static struct {
    const char *records; /* of getdents64(2) */
    const uint32_t *starts;
    Py_ssize_t begin, end;
    off_t next_id;
    int plain;
    Py_ssize_t taken; /* how many were added */
} names;

/* The returned length is that of all that was added: pyfuse3 takes it for one long entry. */
size_t fuse_add_direntry_plus(fuse_req_t req, char *buf, size_t bufsize, const char *name,
                              const struct fuse_entry_param *e, off_t off) {
    static size_t (*next)(fuse_req_t, char *, size_t, const char *, const struct fuse_entry_param *, off_t);
    if (!next) next = real("fuse_add_direntry_plus");
    if (e->generation != NAME_ONLY) {
        struct fuse_entry_param whole = *e;
        show_inode(e->ino, &whole.attr);
        return next(req, buf, bufsize, name, &whole, off);
    }
    struct fuse_entry_param only; /* node id 0: of the attributes the kernel takes number and type */
    memset(&only, 0, sizeof only);
    size_t used = 0;
    for (Py_ssize_t i = names.begin; i < names.end; i++) {
        const struct dirent64 *record = (const void *)(names.records + names.starts[i]);
        only.attr.st_ino = record->d_ino;
        only.attr.st_mode = (mode_t)record->d_type << 12; /* DTTOIF; what is unknown stays so: readers then stat */
        off_t id = names.next_id + names.taken;
        size_t length = names.plain ? fuse_add_direntry(req, buf + used, bufsize - used, record->d_name, &only.attr, id)
                                    : next(req, buf + used, bufsize - used, record->d_name, &only, id);
        if (length > bufsize - used) break;
        used += length;
        names.taken++;
    }
    names.begin = names.end = 0;
    return names.taken ? used : bufsize + 1;
}

PyObject *fastpath_names(PyObject *self, PyObject *args) {
    (void)self;
    Py_buffer records, starts;
    Py_ssize_t begin, end;
    unsigned long long next_id;
    int plain;
    if (!PyArg_ParseTuple(args, "y*y*nnKp", &records, &starts, &begin, &end, &next_id, &plain)) return NULL;
    /* The caller holds both until the entry is added, which is the next that it does: our own hold may go. */
    names.records = records.buf, names.starts = starts.buf;
    names.begin = begin, names.end = end, names.next_id = (off_t)next_id;
    names.plain = plain, names.taken = 0;
    int inside = begin >= 0 && begin <= end && end <= starts.len / (Py_ssize_t)sizeof *names.starts;
    PyBuffer_Release(&records);
    PyBuffer_Release(&starts);
    if (inside) Py_RETURN_NONE;
    names.begin = names.end = 0;
    PyErr_SetString(PyExc_ValueError, "there are not so many names");
    return NULL;
}

PyObject *fastpath_taken(PyObject *self, PyObject *noargs) {
    (void)self, (void)noargs;
    return PyLong_FromSsize_t(names.taken);
}
