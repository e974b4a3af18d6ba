/* Functions of the extension that the data plane brings: see python.c, and _fastpath.c for what they are called. */
#ifndef HFS_PLANE_PYTHON_H
#define HFS_PLANE_PYTHON_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#pragma GCC visibility push(hidden)

PyObject *plane_start(PyObject *self, PyObject *args);
PyObject *plane_stop(PyObject *self, PyObject *noargs);
PyObject *plane_put(PyObject *self, PyObject *args);
PyObject *plane_take(PyObject *self, PyObject *arg);
PyObject *plane_attach(PyObject *self, PyObject *args);
PyObject *plane_put_reads(PyObject *self, PyObject *args);
PyObject *plane_take_reads(PyObject *self, PyObject *arg);
PyObject *plane_served(PyObject *self, PyObject *noargs);
PyObject *plane_count(PyObject *self, PyObject *arg);
PyObject *plane_closed(PyObject *self, PyObject *arg);
PyObject *plane_free(PyObject *self, PyObject *arg);
PyObject *plane_events(PyObject *self, PyObject *noargs);
PyObject *plane_news_fd(PyObject *self, PyObject *arg);
PyObject *plane_news_tell(PyObject *self, PyObject *arg);
PyObject *plane_news_heard(PyObject *self, PyObject *arg);
PyObject *plane_leaves_begin(PyObject *self, PyObject *args); /* these in python_leaves.c */
PyObject *plane_progress(PyObject *self, PyObject *arg);
PyObject *plane_put_object(PyObject *self, PyObject *args);
PyObject *plane_take_object(PyObject *self, PyObject *arg);
PyObject *plane_staged_in(PyObject *self, PyObject *arg);
PyObject *plane_root_without_acl(PyObject *self, PyObject *arg);
PyObject *plane_leaves_end(PyObject *self, PyObject *noargs);
PyObject *plane_leaves_put(PyObject *self, PyObject *args);
PyObject *plane_leaves_take(PyObject *self, PyObject *args);
PyObject *plane_leaves_take_id(PyObject *self, PyObject *arg);
PyObject *plane_leaves_unknown(PyObject *self, PyObject *args);
PyObject *plane_leaves_sweep(PyObject *self, PyObject *args);
PyObject *plane_leaves_figures(PyObject *self, PyObject *noargs);
PyObject *plane_figures(PyObject *self, PyObject *noargs);
extern PyMethodDef plane_fetch_methods[]; /* in python_fetch.c */
extern PyMethodDef plane_leaves_methods[]; /* in python_leaves.c, with those above */
extern PyMethodDef plane_overlay_methods[]; /* in python_overlay.c */

#pragma GCC visibility pop

#endif
