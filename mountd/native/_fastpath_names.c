/* Directory entries without nodes, and those of slots (plane/slots.c). Of a mere name the kernel keeps inode number and
 * type only, and nothing is to be forgotten later; of a slot, which goes in whole, one look-up more.
 *
 * Where pyfuse3 means to add one entry to a reply, as many of the names told just before are added as fit: one by one,
 * 100 000 names took 0.12 s of Python. A part of the extension, see _fastpath.c. Knows no request and keeps nothing.
 */
#include "_fastpath.h"

#include "plane/fetch.h"

#include <dirent.h>
#include <string.h>

static struct {
    const char *records; /* of getdents64(2) */
    const uint32_t *starts;
    Py_ssize_t begin, end;
    off_t next_id;
    uint64_t directory;
    enum { NAMES, SLOTS_WHOLE, SLOTS_ONLY } how;
    Py_ssize_t taken; /* how many were added */
} names;

typedef size_t (*add_plus)(fuse_req_t, char *, size_t, const char *, const struct fuse_entry_param *, off_t);

static int copy_facts(const struct slot *facts, void *into) {
    *(struct slot *)into = *facts;
    return 0;
}

/* Its length, more than `room` if it does not fit; 0: there is no such slot. */
static size_t add_slot(add_plus add, fuse_req_t req, char *buffer, size_t room, const char *name, off_t id) {
    struct slot facts;
    int64_t now_ns = monotonic_ns();
    if (!slots_look_up(names.directory, name, strlen(name), now_ns, copy_facts, &facts)) return 0;
    const struct seen *seen = &facts.seen;
    int64_t valid_ns = facts.until_ns - now_ns;
    struct fuse_entry_param entry = {.ino = facts.id, .entry_timeout = (double)(valid_ns < LONGEST_NS ? valid_ns : LONGEST_NS) / 1e9};
    entry.attr_timeout = entry.entry_timeout;
    entry.attr = (struct stat){.st_ino = seen->inode, .st_mode = seen->mode, .st_nlink = seen->nlink, .st_uid = seen->uid,
                               .st_gid = seen->gid, .st_size = (off_t)seen->size, .st_blocks = (blkcnt_t)seen->blocks,
                               .st_blksize = seen->block_bytes < 512 ? 512 : seen->block_bytes};
    struct timespec *times[] = {&entry.attr.st_atim, &entry.attr.st_mtim, &entry.attr.st_ctim};
    for (int i = 0; i < 3; i++) *times[i] = (struct timespec){seen->seconds[i], seen->parts[i]};
    size_t length = add(req, buffer, room, name, &entry, id);
    if (length > room) contents_forget(facts.id, 1); /* the kernel has not seen it */
    return length;
}

/* The returned length is that of all that was added: pyfuse3 takes it for one long entry. */
size_t fuse_add_direntry_plus(fuse_req_t req, char *buf, size_t bufsize, const char *name,
                              const struct fuse_entry_param *e, off_t off) {
    static add_plus next;
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
        size_t room = bufsize - used, length = 0;
        if (names.how == NAMES)
            length = fuse_add_direntry(req, buf + used, room, record->d_name, &only.attr, id);
        else
            length = add_slot(next, req, buf + used, room, record->d_name, id);
        if (!length && names.how == SLOTS_WHOLE) length = next(req, buf + used, room, record->d_name, &only, id);
        if (!length || length > room) break;
        used += length;
        names.taken++;
    }
    names.begin = names.end = 0;
    return names.taken ? used : bufsize + 1;
}

PyObject *fastpath_names(PyObject *self, PyObject *args) {
    Py_buffer records, starts;
    Py_ssize_t begin, end;
    unsigned long long next_id, directory;
    int how;
    if (!PyArg_ParseTuple(args, "y*y*nnKKi", &records, &starts, &begin, &end, &next_id, &directory, &how)) return NULL;
    /* The caller holds both until the entry is added, which is the next that it does: our own hold may go. */
    names.records = records.buf, names.starts = starts.buf;
    names.begin = begin, names.end = end, names.next_id = (off_t)next_id;
    names.directory = directory, names.how = how, names.taken = 0;
    int inside = begin >= 0 && begin <= end && end <= starts.len / (Py_ssize_t)sizeof *names.starts;
    PyBuffer_Release(&records);
    PyBuffer_Release(&starts);
    if (inside) Py_RETURN_NONE;
    names.begin = names.end = 0;
    PyErr_SetString(PyExc_ValueError, "there are not so many names");
    return NULL;
}

PyObject *fastpath_taken(PyObject *self, PyObject *noargs) {
    return PyLong_FromSsize_t(names.taken);
}
