/* The data plane: requests of the kernel that are answered without Python, on every core.
 *
 *   threads.c   read requests from the one descriptor of the connection; what they cannot answer goes to the queue
 *   queue.c     requests on their way to Python, in order
 *   counts.c    who has the handles open that were given out here, for the next daemon too
 *   opens.c     the table: nodes whose opens are answered here, and how
 *   events.c    which opens were answered, for those in Python who must hear of them
 *   answers.c   one request in, its reply out, or "ask Python"
 *   python.c    what Python may do with all that
 *
 * Python decides, C answers: the table says only what Python has put there, and Python takes an entry out before the
 * truth changes. Nothing here waits for a disk or a source, opens a path, or knows libfuse; only python.c knows Python.
 */
#ifndef HFS_PLANE_H
#define HFS_PLANE_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <linux/fuse.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifndef FOPEN_PASSTHROUGH
#define FOPEN_PASSTHROUGH (1 << 7) /* Linux 6.9 */
#endif

/* The largest request: FUSE_MIN_READ_BUFFER and what INIT agreed on for writes, which nobody makes here. libfuse's own
 * buffers are as large. */
#define PLANE_REQUEST_BYTES ((1 << 20) + 4096)

/* Loaded with RTLD_GLOBAL: only what stands in front of libfuse may be seen from outside. */
#pragma GCC visibility push(hidden)

/* ---- queue.c ------------------------------------------------------------------------------------------------------ */

int queue_open(void);                              /* 0, or an errno; once, before anything else */
int queue_event_fd(void);                          /* readable while there is a request, or the end; -1: not open */
void queue_reset(void);                            /* empty, and not ended: for another mount */
void queue_put(const void *request, size_t size);  /* waits while the queue is full, and nobody ends it */
ssize_t queue_take(void *buffer, size_t room);     /* its size; -EAGAIN: there is none; 0: the connection is gone */
void queue_end(int connection_gone);               /* lets go who waits in queue_put; what is queued is dropped there */

/* ---- counts.c ----------------------------------------------------------------------------------------------------- */

#define COUNTS_SLOTS 65536

int counts_attach(int fd);                      /* 0, or an errno; -1: nobody comes after us. Slots in use stay so */
int64_t counts_new(uint64_t handle);            /* a slot, with nobody who has it open; -1: there is none */
void counts_free(uint32_t slot);
int64_t counts_add(uint32_t slot, int64_t more); /* how many it are now */
int64_t counts_open(uint32_t slot);
uint64_t counts_handle(uint32_t slot);          /* 0: it is free */

/* ---- opens.c ------------------------------------------------------------------------------------------------------ */

/* How opens of one node are answered. */
struct opens {
    uint64_t node;
    uint64_t handle;        /* all of them get this one */
    uint32_t open_flags;    /* FOPEN_... */
    int32_t backing_id;     /* with FOPEN_PASSTHROUGH */
    int object_fd;          /* what the kernel reads then; -1: nothing is looked at */
    struct stat_stamp {     /* what it must still be like at each open */
        uint64_t inode, size;
        int64_t ctime_ns; /* every change of a file gives it another one */
    } stamp;
    int64_t until_ns;       /* CLOCK_MONOTONIC; later ones are Python's */

    uint32_t slot;          /* where it is counted how many have the handle open; see counts.c */
    struct opens_counts {   /* 0 at first; atomic */
        int64_t opened;     /* since it was put here */
        int64_t last_ns;    /* CLOCK_MONOTONIC of the last open; 0: none */
    } counts;
    struct opens *next;
};

int opens_put(const struct opens *entry);                     /* 0, or an errno; EEXIST: it is there. object_fd becomes ours */
int opens_take(uint64_t node, struct opens *taken); /* 1: it was there, and nobody answers with it any more */
int opens_open(uint64_t node, int64_t now_ns, int (*reply)(const struct opens *, void *), void *context);
int opens_release(uint64_t node, uint64_t handle, void (*reply)(void *), void *context); /* 1: done */
size_t opens_count(void);

/* ---- events.c ----------------------------------------------------------------------------------------------------- */

struct event { /* an open that was answered */
    uint64_t node;
    uint64_t thread_id; /* who has opened; 0: in a pid namespace that we do not see */
};

void events_add(uint64_t node, uint64_t thread_id);
size_t events_take(struct event *events, size_t most, uint64_t *lost); /* the oldest; how many were lost before them */

/* ---- answers.c ---------------------------------------------------------------------------------------------------- */

/* 1: `request` was answered on `device`; 0: it is Python's. */
int answer(int device, const void *request, size_t size);

extern struct answered { /* atomic */
    int64_t cached, passed, releases;
} answered;

int64_t monotonic_ns(void);

/* ---- threads.c ---------------------------------------------------------------------------------------------------- */

int threads_start(int device, int count); /* 0, or an errno, and then none runs */
void threads_stop(void);                  /* returns when none runs any more; requests that were read are in the queue */
int threads_running(void);

#pragma GCC visibility pop

#endif
