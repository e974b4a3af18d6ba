/* What Python may do with slots: put them in, many at a time, and take over those that it needs a node of.
 *
 * A part of the extension, see _fastpath.c, and of the data plane, see plane.h.
 */
#include "python.h"

#include "fetch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SWEPT_AT_MOST 4096 /* slots of one shard: a millisecond */

static PyObject *plane_slots_begin(PyObject *self, PyObject *args) {
    unsigned long long first;
    if (!PyArg_ParseTuple(args, "K", &first)) return NULL;
    slots_begin(first);
    Py_RETURN_NONE;
}

static PyObject *plane_slots_are_asked_for(PyObject *self, PyObject *arg) {
    int are = PyObject_IsTrue(arg);
    if (are < 0) return NULL;
    opens_of_slots_are_asked(are);
    Py_RETURN_NONE;
}

static PyObject *plane_slots_become_stateless(PyObject *self, PyObject *noargs) {
    slots_become_stateless();
    Py_RETURN_NONE;
}

static PyObject *plane_slots_put(PyObject *self, PyObject *args) {
    unsigned long long directory;
    long long valid_ns;
    PyObject *names, *left;
    Py_buffer seen, skip, objects;
    if (!PyArg_ParseTuple(args, "KO!y*y*y*L", &directory, &PyList_Type, &names, &seen, &skip, &objects, &valid_ns)) return NULL;
    Py_ssize_t count = PyList_GET_SIZE(names), added = 0;
    const struct seen *each = seen.buf;
    const uint64_t *numbers = objects.len ? objects.buf : NULL;
    int64_t until_ns = monotonic_ns() + valid_ns;
    left = NULL;
    if (seen.len != count * (Py_ssize_t)sizeof *each || skip.len != count ||
        (numbers && objects.len != count * (Py_ssize_t)sizeof *numbers))
        PyErr_SetString(PyExc_ValueError, "as many names as were seen");
    else
        left = PyByteArray_FromStringAndSize(NULL, count);
    for (Py_ssize_t i = 0; left && i < count; i++) {
        char *name;
        Py_ssize_t size;
        int error = EINVAL;
        PyObject *item = PyList_GET_ITEM(names, i);
        uint64_t id;
        if (PyBytes_Check(item) && !((const char *)skip.buf)[i] && !PyBytes_AsStringAndSize(item, &name, &size))
            error = slots_put(directory, name, (size_t)size, &each[i], numbers ? numbers[i] : 0, until_ns, &id);
        if (!error) added++;
        PyByteArray_AS_STRING(left)[i] = (char)(error && error != EEXIST); /* no call that may fail: slots are counted */
    }
    PyBuffer_Release(&seen);
    PyBuffer_Release(&skip);
    PyBuffer_Release(&objects);
    return left ? Py_BuildValue("(nN)", added, left) : NULL;
}

/* One that somebody has open, or may have, stays where the next daemon finds it until Python has written down whose it is. */
static PyObject *taken_as(struct slot *slot) {
    if (!slot) Py_RETURN_NONE;
    int may_be_open = slot->opens || (slots_are_stateless() && slot->lookups);
    contents_take(slot->id);
    PyObject *taken = Py_BuildValue("(KKy#ILy#IL)", (unsigned long long)slot->id, (unsigned long long)slot->directory, slot->name,
                                    (Py_ssize_t)slot->name_size, (unsigned)slot->lookups, (long long)(slot->until_ns - monotonic_ns()),
                                    (const char *)&slot->seen, (Py_ssize_t)sizeof slot->seen, (unsigned)slot->opens, may_be_open ? (long long)slot_number(slot) : -1);
    if (!taken || !may_be_open) slots_free(slot);
    return taken;
}

static PyObject *plane_slots_written_down(PyObject *self, PyObject *arg) {
    unsigned long number = PyLong_AsUnsignedLong(arg);
    if (PyErr_Occurred()) return NULL;
    slots_free(slot_at((uint32_t)number));
    Py_RETURN_NONE;
}

static PyObject *plane_slots_take(PyObject *self, PyObject *args) {
    unsigned long long directory;
    const char *name;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "Ky#", &directory, &name, &size)) return NULL;
    return taken_as(slots_take(directory, name, (size_t)size));
}

static PyObject *plane_slots_take_id(PyObject *self, PyObject *arg) {
    uint64_t id = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred()) return NULL;
    return taken_as(slots_take_id(id));
}

static PyObject *plane_slots_unknown(PyObject *self, PyObject *args) {
    unsigned long long directory;
    PyObject *names;
    if (!PyArg_ParseTuple(args, "KO!", &directory, &PyList_Type, &names)) return NULL;
    PyObject *unknown = PyList_New(0);
    int64_t now_ns = monotonic_ns();
    for (Py_ssize_t i = 0; unknown && i < PyList_GET_SIZE(names); i++) {
        PyObject *name = PyList_GET_ITEM(names, i);
        char *text;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(name, &text, &size) < 0 ||
            (!slots_seen(directory, text, (size_t)size, now_ns, NULL) && PyList_Append(unknown, name) < 0))
            Py_CLEAR(unknown);
    }
    return unknown;
}

static PyObject *plane_slots_seen(PyObject *self, PyObject *args) {
    unsigned long long directory;
    PyObject *names;
    if (!PyArg_ParseTuple(args, "KO!", &directory, &PyList_Type, &names)) return NULL;
    Py_ssize_t count = PyList_GET_SIZE(names);
    struct seen none = {.error = ENOENT};
    PyObject *found = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof none);
    int64_t now_ns = monotonic_ns();
    for (Py_ssize_t i = 0; found && i < count; i++) {
        char *text;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyList_GET_ITEM(names, i), &text, &size) < 0) {
            Py_CLEAR(found);
            break;
        }
        struct seen seen;
        if (!slots_seen(directory, text, (size_t)size, now_ns, &seen)) seen = none;
        memcpy(PyBytes_AS_STRING(found) + i * (Py_ssize_t)sizeof seen, &seen, sizeof seen);
    }
    return found;
}

static PyObject *plane_slots_expire(PyObject *self, PyObject *args) {
    unsigned shard;
    Py_buffer directories;
    if (!PyArg_ParseTuple(args, "Iy*", &shard, &directories)) return NULL;
    struct name_run held = {0};
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = slots_expire(shard % SLOT_SHARDS, directories.buf, (size_t)directories.len / sizeof(uint64_t), &held);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&directories);
    PyObject *found = error ? PyErr_NoMemory() : PyBytes_FromStringAndSize(held.bytes, (Py_ssize_t)held.size);
    free(held.bytes);
    return found;
}

static PyObject *plane_slots_sweep(PyObject *self, PyObject *args) {
    static struct slot *taken[SWEPT_AT_MOST]; /* with the GIL held */
    static uint64_t directories[SWEPT_AT_MOST];
    Py_ssize_t at_most;
    if (!PyArg_ParseTuple(args, "n", &at_most)) return NULL;
    size_t count = slots_sweep(monotonic_ns(), (size_t)at_most, taken, SWEPT_AT_MOST);
    for (size_t i = 0; i < count; i++) {
        directories[i] = taken[i]->directory;
        contents_take(taken[i]->id); /* with the GIL held, so nobody has put one with this id since */
        slots_free(taken[i]);
    }
    return PyBytes_FromStringAndSize((const char *)directories, (Py_ssize_t)(count * sizeof *directories));
}

static PyObject *plane_slots_figures(PyObject *self, PyObject *noargs) {
    return Py_BuildValue("(nnnLL)", (Py_ssize_t)slots_count(), (Py_ssize_t)slots_held(), (Py_ssize_t)slots_open(),
                         (long long)__atomic_load_n(&answered.look_ups, __ATOMIC_RELAXED),
                         (long long)__atomic_load_n(&answered.attributes, __ATOMIC_RELAXED));
}

PyMethodDef plane_slots_methods[] = {
    {"plane_slots_begin", plane_slots_begin, METH_VARARGS,
     "plane_slots_begin(first_id): there are no slots; ids from here on are theirs."},
    {"plane_slots_are_asked_for", plane_slots_are_asked_for, METH_O, "plane_slots_are_asked_for(are): opens of slots are Python's."},
    {"plane_slots_become_stateless", plane_slots_become_stateless, METH_NOARGS,
     "plane_slots_become_stateless(): opens do not reach us any more; look-ups of empty slots come to Python."},
    {"plane_slots_put", plane_slots_put, METH_VARARGS,
     "plane_slots_put(directory, names, seen, skip, objects, valid_ns) -> (added, left): each name, unless its byte of `skip` is "
     "set, is a slot of this directory, as `seen` (see seen.h). `left`: a byte for each, 1 for those that are none. `objects`: empty, or a number (uint64) for each."},
    {"plane_slots_take", plane_slots_take, METH_VARARGS,
     "plane_slots_take(directory, name) -> (id, directory, name, lookups, left_ns, seen, opens, number) or None: it is Python's now. One with opens "
     "is to be written down."},
    {"plane_slots_take_id", plane_slots_take_id, METH_O, "plane_slots_take_id(id): the same."},
    {"plane_slots_written_down", plane_slots_written_down, METH_O,
     "plane_slots_written_down(number): the next daemon would find this one, that was taken, elsewhere by now."},
    {"plane_slots_unknown", plane_slots_unknown, METH_VARARGS,
     "plane_slots_unknown(directory, names) -> list: those that are not slots, or past their time."},
    {"plane_slots_sweep", plane_slots_sweep, METH_VARARGS,
     "plane_slots_sweep(at_most) -> bytes: of a 1024th of the slots those go that the kernel does not hold and that are "
     "past their time or too many; the directory of each (uint64)."},
    {"plane_slots_figures", plane_slots_figures, METH_NOARGS,
     "plane_slots_figures() -> (slots, held, open, look_ups, attributes): that are there; that the kernel holds; that are open; "
     "answered since."},
    {"plane_slots_seen", plane_slots_seen, METH_VARARGS, "plane_slots_seen(directory, names) -> bytes: a struct seen of each; ENOENT of those that are not slots, or past their time."},
    {"plane_slots_expire", plane_slots_expire, METH_VARARGS, "plane_slots_expire(shard, directories) -> bytes: slots in these (uint64, ascending) are past their time from now on, those"
     " of one of 1024 shards; names that the kernel holds, each behind its directory (uint64) and its length (uint8)."},
    {NULL, NULL, 0, NULL},
};
