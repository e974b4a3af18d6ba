/* Functions of the extension that the data plane brings: in python.c, python_fetch.c, python_slots.c, python_overlay.c. */
#ifndef HFS_PLANE_PYTHON_H
#define HFS_PLANE_PYTHON_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#pragma GCC diagnostic ignored "-Wunused-parameter" /* the signature of a method is CPython's */
#pragma GCC visibility push(hidden)

extern PyMethodDef plane_methods[], plane_fetch_methods[], plane_slots_methods[], plane_overlay_methods[];

#pragma GCC visibility pop

#endif
