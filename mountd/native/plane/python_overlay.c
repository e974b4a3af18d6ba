/* What Python may do with what overlays are told: begin and end it, and hear what was told.
 *
 * A part of the extension, see _fastpath.c, and of the data plane, see plane.h.
 */
#include "python.h"

#include "plane.h"

#include <stdlib.h>

static PyObject *plane_overlay(PyObject *self, PyObject *arg) {
    int on = PyObject_IsTrue(arg);
    if (on < 0) return NULL;
    overlay_begin(on);
    Py_RETURN_NONE;
}

static PyObject *plane_untold(PyObject *self, PyObject *args) {
    Py_buffer numbers;
    int on;
    struct overlay_told told = {0};
    if (!PyArg_ParseTuple(args, "y*p", &numbers, &on)) return NULL;
    size_t count = (size_t)numbers.len / sizeof(uint64_t);
    if (on)
        overlay_stop_telling(numbers.buf, count, &told);
    else
        overlay_tell_again(numbers.buf, count);
    PyBuffer_Release(&numbers);
    Py_ssize_t size = (Py_ssize_t)(told.count * sizeof *told.numbers);
    PyObject *found = Py_BuildValue("(y#O)", size ? (const char *)told.numbers : "", size, told.some_are_lost ? Py_True : Py_False);
    free(told.numbers);
    return found;
}

static PyObject *plane_tellable(PyObject *self, PyObject *arg) {
    char *nodes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(arg, &nodes, &size)) return NULL;
    PyObject *found = PyBytes_FromStringAndSize(NULL, size);
    if (!found) return NULL;
    uint64_t *to = (uint64_t *)PyBytes_AS_STRING(found);
    for (const uint64_t *node = (const uint64_t *)nodes, *end = node + (size_t)size / sizeof *node; node < end; node++)
        if (overlay_may_tell(*node)) *to++ = *node;
    _PyBytes_Resize(&found, (char *)to - PyBytes_AS_STRING(found));
    return found;
}

static PyObject *plane_give_up_looks(PyObject *self, PyObject *arg) {
    long long limit_ns = PyLong_AsLongLong(arg);
    if (PyErr_Occurred()) return NULL;
    looks_give_up(monotonic_ns() - limit_ns); /* its replies wait for nobody */
    Py_RETURN_NONE;
}

PyMethodDef plane_overlay_methods[] = {
    {"plane_overlay", plane_overlay, METH_O, "plane_overlay(on): whether overlays over the mount are told where staged files lie."},
    {"plane_untold", plane_untold, METH_VARARGS,
     "plane_untold(numbers, on) -> (numbers, some_are_lost): whether these objects are told no more, 64 bits each. If so, what was told since the last "
     "such call."},
    {"plane_tellable", plane_tellable, METH_O, "plane_tellable(nodes) -> nodes, 64 bits each: the slots of which an overlay would be told."},
    {"plane_give_up_looks", plane_give_up_looks, METH_O, "plane_give_up_looks(limit_ns): who has waited as long for the cache disk does so no more."},
    {NULL, NULL, 0, NULL},
};
