/* What the files of the extension share; see _fastpath.c. */
#ifndef HFS_FASTPATH_H
#define HFS_FASTPATH_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>
#include <stdint.h>

#pragma GCC diagnostic ignored "-Wunused-parameter" /* the signatures are those of CPython and libfuse */

#define HAS_PASSTHROUGH (FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17))

/* An entry with this generation stands for the names told just before. pyfuse3 lets the generation be set alone. */
#define NAME_ONLY UINT64_MAX

#define SEEK ((size_t)1 << 30) /* a READ of so many bytes, which is none: mountd/kernel/fastpath.py */

enum { /* <linux/fuse.h> */
    LOOKUP = 1, FORGET = 2, GETATTR = 3, READLINK = 5, OPEN = 14, READ = 15, STATFS = 17, RELEASE = 18, GETXATTR = 22,
    LISTXATTR = 23, OPENDIR = 27, READDIR = 28, IOCTL = 39, BATCH_FORGET = 42, READDIRPLUS = 44, LSEEK = 46
};

/* Loaded with RTLD_GLOBAL: only what stands in front of libfuse may be seen from outside. */
#pragma GCC visibility push(hidden)

extern struct fuse_lowlevel_ops theirs; /* pyfuse3's operations */
extern PyObject *at_once;               /* mountd/fuse/fast_handlers.py; NULL: everything goes to pyfuse3 */

extern int yield_fd;                 /* a descriptor; see _fastpath_at_once.c */
extern int wrapped;                     /* the session has our operations; if not, nothing here has a part in it */

extern struct request { /* the request that is being handed to pyfuse3 */
    uint64_t token;
    uint64_t unique; /* the kernel's number of it, also while it is shown to `at_once` */
    pid_t pid;
    uid_t uid;
    fuse_ino_t node; /* of a read or a seek */
    int plain;       /* a READDIR, which pyfuse3 takes for a READDIRPLUS */
} request;

void show_inode(fuse_ino_t node, struct stat *st); /* the number that was asked for, if any, in place of the node id */
void *real(const char *name);  /* libfuse's own function of this name */
void begin(fuse_req_t req);    /* `req` is handed to pyfuse3 now */
void answer_at_once(struct fuse_lowlevel_ops *ops); /* puts the operations of _fastpath_at_once.c in */

/* In _fastpath_kept.c. */
extern int showing; /* requests are only shown: what is kept is handed on later, else at once */
void keep_for_pyfuse3(struct fuse_lowlevel_ops *ops); /* puts its operations in */
void keep(uint32_t opcode, fuse_req_t req, fuse_ino_t ino, const char *name, size_t size, off_t off,
          const struct fuse_file_info *fi);
int kept_for_pyfuse3(void); /* a request is kept, and not put off */
int kept_goes_on(void);     /* one that was put off is kept again */

PyObject *fastpath_go_on(PyObject *self, PyObject *which); /* methods of the extension */
PyObject *fastpath_give_up(PyObject *self, PyObject *args);

PyObject *fastpath_names(PyObject *self, PyObject *args); /* methods of the extension, in _fastpath_names.c */
PyObject *fastpath_taken(PyObject *self, PyObject *noargs);
PyObject *fastpath_look(PyObject *self, PyObject *args); /* in _fastpath_attributes.c */

#pragma GCC visibility pop

#endif
