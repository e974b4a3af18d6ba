/* The data plane: requests of the kernel that are answered without Python, on every core.
 *
 *   threads.c   read requests from the one descriptor of the connection; what they cannot answer goes to the queue
 *   queue.c     requests on their way to Python, in order
 *   counts.c    who has the handles open that were given out here, for the next daemon too
 *   slot_memory.c     the memory of the files that only this plane remembers, for the next daemon too
 *   table.c     entries by node id, each with who answers from it
 *   opens.c     nodes whose opens are answered here, and how
 *   reads.c     nodes whose reads are
 *   slots.c    files that only this plane remembers: names, attributes, how often the kernel has looked them up
 *   names.c     runs of names, for Python
 *   object.c    what both are answered with: where it lies, its checksum
 *   splice.c    replies to large reads that are copied once
 *   events.c    which opens were answered, for those in Python who must hear of them
 *   overlay.c   where an overlay over the mount finds what is staged
 *   looks.c     whether it is as it was left, where the disk has to be asked
 *   detached.c  threads that nobody waits for
 *   reply.c     replies in the kernel's own form
 *   answers.c   one request in, its reply out, or "ask Python"
 *   python.c    what Python may do with all that
 *
 * Python decides, C answers: the table says only what Python has put there, and Python takes an entry out before the
 * truth changes. Nothing here waits for a disk (but looks.c) or a source, opens a path of theirs, or knows libfuse; only
 * python*.c know Python.
 */
#ifndef HFS_PLANE_H
#define HFS_PLANE_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "../seen.h"

#include <linux/fuse.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/types.h>
#include <time.h>

#ifndef FOPEN_PASSTHROUGH
#define FOPEN_PASSTHROUGH (1 << 7) /* Linux 6.9 */
#endif

/* The largest request: FUSE_MIN_READ_BUFFER and what INIT agreed on for writes, which nobody makes here. libfuse's own
 * buffers are as large. */
#define PLANE_REQUEST_BYTES ((1 << 20) + 4096)

/* The one ioctl that is Python's, of a directory: EXCHANGE in mountd/wire/tunnel.py. */
#define TUNNEL_EXCHANGE _IOWR(0xF5, 1, char[16376])

/* Loaded with RTLD_GLOBAL: only what stands in front of libfuse may be seen from outside. */
#pragma GCC visibility push(hidden)

static inline int64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

#define LONGEST_NS (INT64_C(86400) * 1000000000) /* what the kernel is told where nothing goes out of date */

/* ---- queue.c ------------------------------------------------------------------------------------------------------ */

int queue_open(void);                              /* 0, or an errno; once, before anything else */
int queue_event_fd(void);                          /* readable while there is a request, or the end; -1: not open */
void queue_wake(void);                             /* it is readable once more, though there may be none */
void queue_reset(void);                            /* empty, and not ended: for another mount */
void queue_put(const void *request, size_t size);  /* waits while the queue is full, and nobody ends it */
ssize_t queue_take(void *buffer, size_t room);     /* its size; -EAGAIN: there is none; 0: the connection is gone */
void queue_end(int connection_gone);               /* lets go who waits in queue_put; what is queued is dropped there */

/* ---- counts.c ----------------------------------------------------------------------------------------------------- */

#define COUNTS_AT_MOST 65536
#define COUNTS_BYTES ((off_t)(COUNTS_AT_MOST * 2 * sizeof(uint64_t)))

int counts_attach(int fd);                      /* 0, or an errno; -1: nobody comes after us. Slots in use stay so */
int64_t counts_new(uint64_t handle);            /* a counter, with nobody who has it open; -1: there is none */
void counts_free(uint32_t counter);
int64_t counts_add(uint32_t counter, int64_t more); /* how many it are now */
int64_t counts_open(uint32_t counter);
uint64_t counts_handle(uint32_t counter);          /* 0: it is free */

/* ---- slot_memory.c ------------------------------------------------------------------------------------------------------ */

struct slot { /* one file; see slot_memory.c for the order in which it is written, and for its size */
    uint64_t id; /* the kernel's; 0: free */
    uint64_t directory, object; /* `object`: the number of what is staged of it; 0: of none, as far as is known here */
    int64_t until_ns; /* CLOCK_MONOTONIC: until when name and attributes are good */
    struct seen seen;
    uint32_t lookups; /* that the kernel holds; atomic */
    uint32_t opens;   /* handles that are open, all with the id for a number; atomic */
    uint32_t checksum, segment;
    struct slot *next_by_name, *next_by_id; /* of the process that has it attached */
    uint8_t name_size;
    char name[];
};

/* The memory behind the counts in `fd`; -1: memory of our own. 0, or an errno. `terms`: where those of before were others nothing
 * is known to be good any more but ids, versions, look-ups and opens. `found` is told of each slot that is in use, and
 * returns whether it stays so. */
int slot_memory_attach(int fd, uint64_t terms, void (*expected)(size_t at_most), int (*found)(struct slot *));
struct slot *slot_new(size_t name_size);            /* all zero, to be filled in and published; NULL: no memory */
void slot_publish(struct slot *slot, uint64_t id);  /* where it is and its version are not changed any more */
int seen_have_one_version(const struct seen *one, const struct seen *other);
void slot_free(struct slot *slot);
uint32_t slot_number(const struct slot *slot);      /* as long as the memory is attached */
struct slot *slot_at(uint32_t number);              /* of one that slot_number has given */

/* ---- table.c ------------------------------------------------------------------------------------------------------ */

#define TABLE_SHARDS 64 /* threads that answer at a time are few */

struct entry { /* the beginning of what is put in */
    uint64_t node;
    struct entry *next;
};

struct shard {
    pthread_rwlock_t lock;
    struct entry **buckets;
    size_t bucket_count, count;
};

struct table { /* static, and begun with TABLE */
    struct shard shards[TABLE_SHARDS];
};

/* Who takes an entry out holds up Python, and with it everybody: it waits for answers under way, not for later ones. */
#define TABLE {.shards = {[0 ... TABLE_SHARDS - 1] = {.lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP}}}

void lock_to_answer(pthread_rwlock_t *lock); /* for reading; what it waits is counted */
extern int64_t lock_wait_ns;                 /* so long threads that answer have waited for locks; atomic */
/* Changing it waits for answers under way. */
int table_put(struct table *table, struct entry *entry);                    /* 0, or an errno; EEXIST */
int table_take(struct table *table, uint64_t node, struct entry **taken);   /* 0, or an errno; ENOENT */
struct entry *table_hold(struct table *table, uint64_t node, struct shard **held);    /* NULL: nothing is held */
void table_let_go(struct shard *held);
int table_has(struct table *table, uint64_t node);
size_t table_count(struct table *table);

/* ---- object.c ----------------------------------------------------------------------------------------------------- */

#define OBJECT_NAME_BYTES 32

struct object { /* a staged file, and what it must still be like */
    int fd;     /* of the file, or, with a name, of the directory that the name begins at; -1: there is none */
    char name[OBJECT_NAME_BYTES];
    uint64_t inode, size;
    int64_t ctime_ns; /* every change of a file gives it another one */
};

void object_name(uint64_t number, char *name); /* below the directory of all objects, in OBJECT_NAME_BYTES */
int checksum_is_available(void); /* 0: built without */
uint64_t checksum_of(const char *data, size_t size); /* xxh3_64 */
int is_as_left(const struct object *object);
int is_as_left_now(const struct object *object); /* of one with a name; -1: the disk would have to be asked */

/* ---- splice.c ----------------------------------------------------------------------------------------------------- */

/* Reply with these bytes, which lie before its end. 0: nothing was done. */
int splice_reply(int device, uint64_t unique, const struct object *object, uint64_t offset, size_t size);

/* ---- opens.c ------------------------------------------------------------------------------------------------------ */

/* How opens of one node are answered. */
struct opens {
    struct entry entry;
    uint64_t handle;        /* all of them get this one */
    uint32_t open_flags;    /* FOPEN_... */
    int32_t backing_id;     /* with FOPEN_PASSTHROUGH */
    struct object object;   /* what the kernel reads then */
    int64_t until_ns;       /* CLOCK_MONOTONIC; later ones are Python's */
    uint32_t counter;       /* where it is counted how many have the handle open; see counts.c */
    int64_t opened;         /* since it was put here; atomic */
    int64_t last_ns;        /* CLOCK_MONOTONIC of the last open; 0: none; atomic */
};

int opens_put(const struct opens *opens);           /* as table_put */
int opens_take(uint64_t node, struct opens *taken); /* as table_take: nobody answers with it any more */
/* 1: answered; `reply` returns 0 if the kernel has taken the handle. */
int opens_open(uint64_t node, int64_t now_ns, int (*reply)(const struct opens *, void *), void *context);
int opens_release(uint64_t node, uint64_t handle, void (*reply)(void *), void *context); /* 1: done */
size_t opens_count(void);

/* ---- reads.c ------------------------------------------------------------------------------------------------------ */

struct reads { /* a node that is read from this object */
    struct entry entry;
    struct object object;
    uint64_t end;   /* of the last read that was answered; atomic */
    uint64_t bytes; /* that were given to reads that did not begin where the one before ended; atomic */
};

int reads_put(const struct reads *reads); /* as table_put; the descriptor becomes ours */
int reads_take(uint64_t node);            /* as table_take */
/* The bytes of a read, fewer at the end of the file; -EAGAIN: they are not in memory, or not ours to give. */
ssize_t reads_read(uint64_t node, uint64_t offset, size_t size, char *buffer);
/* The same as a reply by splice; 0: nothing was done. */
size_t reads_splice(uint64_t node, uint64_t offset, size_t size, int device, uint64_t unique);
/* As in struct reads. 0: nobody answers reads of this node. */
int reads_progress(uint64_t node, uint64_t *bytes, uint64_t *end);
size_t reads_count(void);

/* ---- slots.c ----------------------------------------------------------------------------------------------------- */

void slots_begin(uint64_t first_id); /* none is there; ids from here on are theirs; 0: nothing may be put */
/* As slot_memory_attach, after slots_begin; what is found there is what there is. `note` is told of the directory of each, and returns
 * whether it stays. */
int slots_attach(int fd, uint64_t terms, int (*note)(uint64_t directory));
void slots_become_stateless(void); /* opens do not reach us any more */
/* 0: a new one; EEXIST: it was there, and is good for longer now; ESTALE: another version was there, and is still; or
 * EINVAL, ENOMEM. `object`: the number of what is staged of it, 0: none. `id`:
 * of the one that is there. */
int slots_put(uint64_t directory, const char *name, size_t size, const struct seen *seen, uint64_t object, int64_t until_ns,
               uint64_t *id);
struct slot_place { /* where it is, and what it is */
    uint64_t directory, object;
    struct seen seen;
    uint32_t opens;
    uint8_t name_size;
    char name[UINT8_MAX + 1];
};

uint64_t name_key(uint64_t directory, const char *name, size_t size); /* of the name, be it a slot's or not */
uint64_t slots_id(uint64_t directory, const char *name, size_t size); /* 0: there is none */
int slots_place(uint64_t id, int64_t now_ns, struct slot_place *place); /* 1: it is there, and not past its time */
/* Nobody finds it any more, and it is the caller's to free: until then the next daemon would find it. NULL: it is not there. */
struct slot *slots_take(uint64_t directory, const char *name, size_t size);
struct slot *slots_take_id(uint64_t id);
/* The same of one shard of 1024, in turn: of those that the kernel does not hold, if they are past their time or too many. */
size_t slots_sweep(int64_t now_ns, size_t unheld_at_most, struct slot **taken, size_t room);
void slots_free(struct slot *slot);  /* of one that was taken, and whose contents were */
void slots_opened(struct slot *slot, int more); /* 1: one more has it open, -1: one fewer; until it is freed */
int slots_release(uint64_t id, void (*reply)(void *), void *context); /* 1: done: one fewer has it open */
struct slot *slots_find(uint64_t id); /* NULL: it is not there. Good until it is taken, of which contents_take is told */
size_t slots_count(void);
int slots_are_stateless(void);
size_t slots_held(void); /* by the kernel */
size_t slots_open(void); /* that somebody has open */
int slots_is_id(uint64_t id); /* whether it is, or was, one of theirs */
/* 1: it is there, and not past its time. `seen`: may be NULL. */
int slots_seen(uint64_t directory, const char *name, size_t size, int64_t now_ns, struct seen *seen);
#define SLOT_SHARDS 1024

/* In names.c: */
struct name_run { /* each behind the node id of its directory (8 bytes) and its length (1 byte) */
    char *bytes;  /* from malloc */
    size_t size, room;
};

int names_add(struct name_run *run, uint64_t directory, const char *name, uint8_t name_size); /* 0, or ENOMEM */
int ids_have(const uint64_t *ascending, size_t count, uint64_t id);

/* Those of one shard in these directories, which ascend, are past their time from now on. `held`: and of these the names
 * that the kernel holds. 0, or ENOMEM: some names are missing there. */
int slots_expire(unsigned shard, const uint64_t *directories, size_t count, struct name_run *held);
/* 1: answered. Of a look-up one more is counted, if `reply` returns 0. */
int slots_look_up(uint64_t directory, const char *name, size_t size, int64_t now_ns,
                   int (*reply)(const struct slot *, void *), void *context);
int slots_attributes(uint64_t id, int64_t now_ns, int (*reply)(const struct slot *, void *), void *context);
int slots_forget(uint64_t id, uint64_t count, int *is_held); /* 1: done; whether the kernel holds it still */

/* ---- overlay.c ---------------------------------------------------------------------------------------------------- */

void overlay_begin(int on); /* whether it is told from now on where staged files lie */
int overlay_is_on(void);

struct overlay_told { /* numbers of objects, some of them more than once */
    uint64_t *numbers; /* from malloc */
    size_t count, room;
    int some_are_lost;
};

/* Nobody is told of these any more; those that were told since the last call. */
void overlay_stop_telling(const uint64_t *numbers, size_t count, struct overlay_told *told);
void overlay_tell_again(const uint64_t *numbers, size_t count);
/* 1: answered. `name` ends with a zero; the value may have `value_room` bytes, 0: only its length is asked for. */
int overlay_may_tell(uint64_t node); /* of a slot, if its object is as it was left */
int overlay_answer(int device, const struct fuse_in_header *header, const char *name, size_t value_room);

/* ---- looks.c ------------------------------------------------------------------------------------------------------ */

struct look { /* a request for which an object is to be looked at */
    struct look *next;
    void (*looked)(const struct look *look, int is_left); /* answers */
    int device, is_redirect;
    uint64_t unique, node, number;
    size_t value_room;
    struct object object;
    int64_t since_ns;
};

int looks_add(const struct look *look);      /* 1: it will be answered, by its `looked` */
void looks_give_up(int64_t before_ns);       /* those that have waited since before */
void looks_begin(void);
void looks_end(void); /* nothing is answered any more when it returns */

/* ---- detached.c --------------------------------------------------------------------------------------------------- */

int detached_start(void *(*run)(void *), int number, size_t stack_bytes); /* 0, or an errno; `run` gets the number */

/* ---- events.c ----------------------------------------------------------------------------------------------------- */

struct event { /* an open that was answered */
    uint64_t node;
    uint64_t thread_id; /* who has opened; 0: in a pid namespace that we do not see */
    uint64_t object;    /* whose use is to be noted; 0: none */
    int64_t at_ns;      /* CLOCK_MONOTONIC */
};

enum news { NEWS_OPENS, NEWS_FETCHED, NEWS }; /* what Python waits for, each by an eventfd */
int news_fd(enum news of);     /* -1: there can be none; see errno */
void news_tell(enum news of);  /* there is something to take, or will be nothing more to wait for */
void news_read(enum news of); /* all that is there is taken next */
void events_add(uint64_t node, uint64_t thread_id, uint64_t object);
size_t events_take(struct event *events, size_t most, uint64_t *lost); /* the oldest; how many were lost before them */

#define SERVED_READERS 1024

struct served { /* a thread whose reads were answered */
    uint64_t thread_id;
    int64_t reads, bytes;
};

void served(uint64_t thread_id, ssize_t bytes); /* one read */
size_t served_take(struct served *found); /* at most SERVED_READERS; they begin at 0 again */

/* Who opens a file of at most so many bytes is taken to read all of it. WHOLE_BYTES of policies/traffic.py. */
#define WHOLE_BYTES ((uint64_t)8 << 20)

extern struct answered { /* atomic */
    int64_t cached, passed, releases, reads, read_bytes, spliced, look_ups, attributes;
    int64_t cached_bytes, passed_bytes; /* of such files, once for each open */
    int64_t overlay_look_ups, overlay_look_up_bytes; /* of which an overlay was told */
    int64_t large_passed, large_read_bytes; /* of larger ones: opens that were passed through, and bytes of reads */
} answered;

void opened_file(uint64_t size, int is_passed);  /* an open of a file of so many bytes is answered */
void read_file(uint64_t file_size, size_t size); /* a read of such a file, of a node in reads.c */

/* ---- reply.c ------------------------------------------------------------------------------------------------------ */

/* 0, or an errno: ENOENT of a request that was interrupted, or whose connection is gone. */
int reply_to(int device, uint64_t unique, int error, const void *body, size_t size);
int reply_opened(int device, uint64_t unique, uint64_t handle, uint32_t open_flags, int32_t backing_id);
int reply_entry(int device, uint64_t unique, const struct slot *facts);
int reply_attributes(int device, uint64_t unique, const struct slot *facts);
int push_pages(int device, uint64_t node, const char *data, size_t size);

/* ---- answers.c ---------------------------------------------------------------------------------------------------- */

#define ANSWER_BYTES ((size_t)1 << 20) /* the largest READ: max_read of the mount */

/* 1: `request` was answered on `device`; 0: what is left of it is Python's. `buffer`: of ANSWER_BYTES, the thread's own. */
int answer(int device, void *request, size_t *size, char *buffer);
/* What is left of it, and what it interrupts if that waits here. May wait for Python, which `answer` never does. */
void hand_to_python(void *request, size_t size);

void root_without_acl(int64_t until_ns); /* CLOCK_MONOTONIC: the root of the mount has none */
void opens_of_slots_are_asked(int are); /* of the source, by Python, as the user who opens */

/* ---- threads.c ---------------------------------------------------------------------------------------------------- */

/* How the event loop (the first) and each thread that reads requests are, for the keeper, in memory that it has given us:
 * mountd/supervisor/pulse.py, which knows this struct too. */
struct beat {
    uint64_t turns;  /* another number whenever it goes on; a BEAT_... in the last two bits. 0: it is not there */
    uint64_t unique; /* of the request that it is about to answer; 0: of none */
    uint64_t unused[6];
};

#define BEAT_SLEEPS 0 /* until there is something to do */
#define BEAT_WORKS 1
#define BEAT_WAITS 2 /* for Python, while the queue is full */
#define BEAT_STEP 4

int threads_beat_in(int fd);              /* a memfd for one beat more than MOST_THREADS; before any runs. 0, or an errno */
int threads_start(int device, int count); /* 0, or an errno, and then none runs */
void threads_stop(void);                  /* returns when none runs any more; requests that were read are in the queue */
int threads_running(void);

#pragma GCC visibility pop

#endif
