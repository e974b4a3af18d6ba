/* The pipeline of small files: looked at, fetched, stored and answered without Python.
 *
 *   delegated.c      directories that Python has delegated: whose small files may be fetched here
 *   jobs.c      names that are being looked at or fetched, and the requests that wait for them
 *   waiters.c   requests that are answered later
 *   file_replies.c  what the tables say of a file, to who has just asked and to who has waited
 *   workers.c   the threads that do it; they answer no other requests
 *   placement.c which of them other nodes own
 *   source.c    one file of the source: opened, looked at, read, looked at again
 *   user.c      as whom that is done, if not as the daemon's own user
 *   contents.c  slots whose bytes are here: opened, pushed, read, closed
 *   staged.c    objects of the cache, by number and by version: which are right, and their bytes as far as they are in memory
 *   pushes.c    contents that are to be pushed for somebody who opens them
 *   store.c     new objects in the cache, from numbers and room that Python has granted
 *   buffers.c   memory for their bytes
 *   follows.c   which threads open what they look up
 *   python_fetch.c  what Python may do with all that
 *
 * A part of the data plane, see plane.h. Python decides which directories, how many bytes, what is evicted; what ails a
 * file, or is out of the ordinary, is left to Python, request and all.
 *
 * Locks, in this order: jobs, a shard of slots, a table, one content; none is held while the source or a disk is
 * waited for, or the kernel's page cache.
 */
#ifndef HFS_PLANE_FETCH_H
#define HFS_PLANE_FETCH_H
#include "plane.h"

#pragma GCC visibility push(hidden)

static inline void count(int64_t *counter, int64_t more) { __atomic_add_fetch(counter, more, __ATOMIC_RELAXED); }

/* ---- staged.c ----------------------------------------------------------------------------------------------------- */

struct staged_version { /* of a file of the source, on the file system of its root */
    uint64_t inode, size;
    int64_t mtime_ns, ctime_ns;
};

struct staged_object { /* what an object is as long as it has these */
    uint64_t number, inode, size, checksum;
    int64_t ctime_ns;
    int is_committed; /* it is in the index, and stays over a crash */
    int is_right; /* its bytes were found to be as the checksum says; else they are compared at first use */
    int is_pythons;  /* it holds them in another form, which Python alone can read */
    int has_version;
    struct staged_version version; /* of which it holds all bytes */
};

void staged_in(int directory_fd); /* objects lie there; -1: nobody reads by their numbers */
void staged_at(int directory_fd); /* and there, for all others */
int staged_put(const struct staged_object *object); /* as table_put; another one of this number goes */
int staged_take(uint64_t number); /* as table_take */
size_t staged_count(void);
int staged_is_new(uint64_t number); /* it was made since the start, or the last: */
void staged_settle(void);           /* what was made up to now is not about to be read */
int staged_knows(uint64_t number); /* with its checksum */
int staged_committed(uint64_t number, struct object *object); /* 1: it is, and known with its version; what it is to be like */
size_t staged_versions(void); /* how many have a version */
struct staged_version staged_version_of(const struct seen *seen);
#define STAGED_PYTHONS UINT64_MAX /* there is an object, which Python alone can read; 0: there is none */
uint64_t staged_find(const struct seen *seen, uint64_t *checksum);
/* As reads_read, of the object with this number. */
ssize_t staged_read(uint64_t number, uint64_t offset, size_t size, char *buffer);
/* The same of an object of `end` bytes. */
ssize_t staged_part(uint64_t number, uint64_t end, uint64_t offset, size_t size, char *buffer);
int staged_whole(uint64_t number, size_t size, char *buffer); /* 1: all its bytes; 0: they are not in memory, or not right */

/* ---- buffers.c ---------------------------------------------------------------------------------------------------- */

#define LARGEST_SMALL ((size_t)1 << 20) /* bytes of a file that may be fetched here: one ANSWER_BYTES */

char *buffer_take(size_t size);             /* for so many bytes; NULL: no memory */
void buffer_give(char *buffer, size_t size); /* of the same size */
size_t buffers_out(void);                   /* bytes that are taken */

/* ---- delegated.c ------------------------------------------------------------------------------------------------------- */

struct delegated { /* a directory, and what holds for the files in it */
    struct entry entry; /* by its node id */
    uint64_t generation; /* what was begun in one that was called back is not entered in the next */
    int fd;
    uint64_t device;
    uint64_t largest;    /* bytes of a file that is fetched here */
    int64_t settled_ns, settled_fine_ns; /* the newest ctime that no further change can have: of whole seconds; of others */
    int64_t until_ns;    /* CLOCK_MONOTONIC; later requests are Python's */
    int64_t valid_ns;    /* how long an answer is good */
    int careful;         /* opening a name could do something: look first */
    int is_staged;       /* the last file that was looked at was: most likely the next one is too; atomic */
    int wants_acls;      /* somebody was asked for the ACL of a file in it; atomic */
    int users;           /* atomic; the table is one */
    int64_t slots;      /* that were put here and Python has not been told of; atomic */
    size_t prefix_size;  /* of the paths of its files, with its slash */
    char *prefix;        /* from malloc; NULL: it is the root */
};

int delegated_put(const struct delegated *delegated); /* 0, or an errno; the descriptor and the prefix are ours then. Another one goes */
/* 0, or ENOENT; its files are Python's from now on. `slots`: as of delegated_slots. */
int delegated_take(uint64_t directory, int64_t *slots);
/* `put` puts a slot there, and returns 0, or an errno; its is returned, or ENOENT: the directory was called back since. */
int delegated_enter(const struct delegated *delegated, int (*put)(void *), void *context);
uint64_t delegated_generation(uint64_t directory); /* 0: it is not delegated */
struct delegated *delegated_hold(uint64_t directory, int64_t now_ns); /* NULL: it is not delegated, or not any more */
void delegated_let_go(struct delegated *delegated);
void delegated_wants_acls(uint64_t directory); /* of files that are fetched from now on */
int64_t delegated_slots(uint64_t directory);                /* those that Python has not been told of; it has now */
size_t delegated_count(void);

void reserved_begin(void); /* before any directory is delegated */
int reserved_has(uint64_t key);
void reserved_put(uint64_t key); /* with the lock of the jobs: see jobs_reserve */
void reserved_take(uint64_t key);

/* ---- placement.c -------------------------------------------------------------------------------------------------- */

#define PLACEMENT_BITS 18 /* policies/cluster/placement.py: _SLOT_BITS */
#define PLACEMENT_SLOTS ((size_t)1 << PLACEMENT_BITS)

int placement_set(const int32_t *owners, int32_t own); /* of each slot; NULL: no other node owns anything. 0: no memory */
int placement_is_remote(const struct delegated *delegated, const char *name, size_t size); /* another node owns this file */

/* ---- source.c ----------------------------------------------------------------------------------------------------- */

enum { SOURCE_OK = 0, SOURCE_PYTHONS = -1 }; /* or an errno */

static inline void cond_of_monotonic(pthread_cond_t *cond) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

struct file { /* one of the source */
    struct seen seen;
    char *data; /* from buffer_take; NULL: none */
    uint64_t checksum, number; /* of the object that has them; 0: none is known */
    int is_empty; /* it has no bytes, and not only says so */
    uint64_t *linked; /* of source.c */
};

extern struct source_counts { /* what the source was asked for; atomic */
    int64_t looks, opens, reads, bytes;
} source_counts;

int source_look(struct delegated *delegated, const char *name, struct file *file);
/* SOURCE_OK: its data are the caller's; NULL of one that is empty, or is not small, or whose bytes an object has. */
int source_fetch(struct delegated *delegated, const char *name, struct file *file);
void source_done(struct file *file); /* the data were stored, or will not be */
void source_distrusts(uint64_t inode); /* two states of it had one version: a file with this number is Python's */

/* ---- user.c ------------------------------------------------------------------------------------------------------- */

struct user {
    uint32_t uid, gid;
    int wholly; /* in all that the kernel asks, and not for file systems alone */
    size_t count;
    const uint32_t *groups;
};

int user_set(const struct user *user); /* 0, or an errno; while no thread of the pipeline runs */
int user_try(void);                    /* whether a thread can be that user: 0, or an errno */
int user_begin(void);                  /* once in each thread, before the others: 0, or an errno */
int user_enter(void);                  /* the calling thread is that user: 0, or an errno; in both cases: */
void user_leave(void);                 /* it is the daemon's own again */

/* ---- store.c ------------------------------------------------------------------------------------------------------ */

struct stored { /* a new object */
    uint64_t number, inode;
    int64_t ctime_ns;
};

void store_by_python(int by_python); /* it gives each file another form: bytes are given to it, and written nowhere here */
int store_is_pythons(void);
void store_in(int directory_fd, uint64_t overhead_bytes); /* -1: nothing is stored any more */
/* Numbers [first, end). Those that were granted before and not used come back in their place. */
void store_grant(uint64_t *first, uint64_t *end);
void store_grant_room(uint64_t bytes); /* so much more */
void store_left(uint64_t *numbers, uint64_t *bytes);
uint64_t store_room(uint64_t size);                       /* what a file of this size takes */
int store_has_room(size_t size); /* and whether so much is granted now */
/* Until it is, so long at most; not at all where none was granted in that time before, or so many threads wait already. */
void store_wait(size_t size, int64_t limit_ns, size_t at_most);
/* Whether what was fetched ahead is written to the disk at once, not in a burst later: readers of other mounts wait for it,
 * and few threads fetch ahead meanwhile. */
void store_at_once(int at_once);
int store_is_at_once(void);
int store_write(const char *data, size_t size, int at_once, struct stored *stored); /* 0; ENOSPC: nothing is granted; or an errno, see: */
/* A number that was taken and whose object may be there in part is in `stored` also after an error, else 0. */

/* ---- waiters.c ---------------------------------------------------------------------------------------------------- */

struct waiter { /* a request that is answered later */
    struct waiter *next;
    uint64_t slot;   /* of an OPEN, or a READ; 0: a LOOKUP */
    int64_t since_ns; /* CLOCK_MONOTONIC */
    size_t size;
    char request[];
};

struct waiter *waiter_of(const void *request, size_t size, uint64_t slot); /* NULL: no memory */
void waiters_to_python(struct waiter *first); /* all of them, and frees them */
void waiters_drop(struct waiter *first);
void waiter_done(struct waiter *waiter); /* it is answered, or handed on: frees it, and counts how long it has waited */
extern int64_t waited_ns; /* those that are done; atomic */

/* ---- contents.c --------------------------------------------------------------------------------------------------- */

#define WAS_HERE (UINT64_C(1) << 63) /* in the thread id of an event: the bytes were here when the file was opened */

struct content_facts { /* what a slot's bytes are */
    uint64_t slot, number, size; /* number 0: no object yet */
    int is_awaited;              /* whoever opens it first has waited for it */
};

struct content;

/* 0, or EEXIST, ENOMEM. `data` are the content's then; NULL if there is an object, or no byte. `held`: for contents_stored,
 * as long as which the data stay; NULL if there are none. */
int contents_put(const struct content_facts *facts, char *data, struct content **held);
/* The same for one that is there, and whose bytes are nowhere: ENOENT, EEXIST. */
int contents_refill(const struct content_facts *facts, char *data, struct content **held);
int contents_find(uint64_t slot, const struct slot_place *place); /* 1: there is an object of it */
int contents_find_opened(uint64_t slot); /* the same of one that is open, from an earlier daemon; -1: it is not */
int contents_has(uint64_t slot);
int contents_is_storing(uint64_t slot); /* its bytes are being written to an object */
void contents_stored(struct content *held, uint64_t number); /* it can be read from this object; 0: it will be in none */
int contents_forget(uint64_t slot, uint64_t count); /* as slots_forget: of one that is not held the kernel has no pages */
void contents_take(uint64_t slot); /* it was taken out of the table, and its slot is not written to any more */
/* 1: answered, or it will be; -1: it is to be fetched anew. `place`: of the slot. `to_push`: what the caller has to push now, if
 * anything; NULL: the thread reads requests, and must not push. */
int contents_open(int device, uint64_t slot, const void *request, size_t size, struct content **to_push);
/* Who waits for it is answered; those whose bytes have gone meanwhile come before `gone`. `buffer` of ANSWER_BYTES. */
void contents_push(int device, struct content *held, char *buffer, struct waiter **gone);
ssize_t contents_read(uint64_t slot, uint64_t offset, size_t size, char *buffer); /* as reads_read; -ENODATA: they are nowhere */
int contents_release(uint64_t slot, void (*reply)(void *), void *context);        /* 1: done */
size_t contents_count(void);
void contents_trim(size_t bytes_at_most); /* of data that can be had elsewhere: those that the cache has go first */
size_t contents_unstored(void); /* bytes that only memory has, and nobody has read */

/* ---- file_replies.c ----------------------------------------------------------------------------------------------- */

int reply_looked_up(int device, const struct fuse_in_header *header, const char *name, size_t size); /* 1: it is a slot */
int reply_attributes_of_slot(int device, const struct fuse_in_header *header);          /* 1: it is one */
int reply_read_of_slot(int device, const struct fuse_in_header *header, char *buffer); /* 0, or an errno: -contents_read */
/* This slot is in the tables: those that cannot be answered go to Python, but for those whose bytes have gone again, which
 * are returned. `buffer` of ANSWER_BYTES. */
struct waiter *waiters_answer(struct waiter *first, int device, const struct slot_place *place, char *buffer);

/* ---- pushes.c ----------------------------------------------------------------------------------------------------- */

/* Whether opens have all bytes put into the page cache, and whether those of committed objects are Python's, who has the kernel
 * read such an object by itself. */
void pushes_terms(int are_wanted, int are_passed);
int pushes_are_wanted(void);
int pushes_are_passed(void);
int pushes_add(struct content *held);   /* to be pushed; 0: there is no thread for it, or too many wait */
struct content *pushes_next(void);      /* waits; NULL: to end */
void pushes_begin(int threads);         /* so many call pushes_next, or will */
void pushes_end(void);                  /* what is there goes on; nothing is added any more */

/* ---- follows.c ---------------------------------------------------------------------------------------------------- */

void follows_looked_up(uint64_t thread_id, uint64_t slot);
void follows_opened(uint64_t thread_id, uint64_t slot);
int follows_is_expected(uint64_t thread_id); /* it will open what it looks up now */

/* ---- jobs.c ------------------------------------------------------------------------------------------------------- */

enum job_goal { JOB_LOOK, JOB_FETCH };

struct job { /* one name */
    struct job *next_by_name, *next, **place; /* `place`: where its queue points to it; NULL: it runs */
    struct delegated *delegated;
    uint64_t key;
    enum job_goal goal;
    int ahead, is_demand, abandoned, error;
    int64_t began_ns; /* or was queued; atomic while it runs */
    struct waiter *waiters;
    uint8_t name_size;
    char name[UINT8_MAX + 1];
};

/* 1: it will be answered. */
int jobs_look_up(const struct fuse_in_header *header, const char *name, size_t name_size, size_t request_size);
/* The same for an OPEN or a READ of a slot that is as good as it was then; 0: however old, for who has it open. */
int jobs_fetch(const struct fuse_in_header *header, size_t request_size, int64_t good_at_ns);
void jobs_interrupt(uint64_t unique); /* if it waits here it is Python's, who knows which signals end it */
struct line {
    struct job *first, **last;
};

void line_add(struct line *line, struct job *job);
void line_take(struct line *line, struct job *job);

struct wanted { /* before anybody asks */
    uint64_t directory;
    const char *name;
    size_t size;
    int error; /* 0; EEXIST: it is under way, or here; ENOENT: the directory is not delegated; EPERM: it is Python's; EAGAIN */
    struct delegated *delegated;
};

void jobs_ahead(struct wanted *wanted, size_t count);
void jobs_reserve(uint64_t directory, const char *name, size_t name_size);    /* the name is Python's; no slot is put for it */
int jobs_is_busy(uint64_t directory, const char *name, size_t name_size); /* it is being looked at, fetched or stored */
int jobs_try_reserve(uint64_t directory, const char *name, size_t name_size);   /* the same, unless it is fetched here, or was: 0 */
struct job *jobs_next(int number); /* for the thread with this number; waits; NULL: to end */
/* What it has come to is in the tables, or `job->error` says that it is Python's; who waited for it is to be answered. 0:
 * somebody wants the bytes meanwhile: do it again. */
int jobs_enter(struct job *job, int error, struct file *file, struct content **held, struct waiter **waiters);
int jobs_done(struct job *job, int number); /* 0: the thread was given up meanwhile, and is to end */
/* Those that began, or were queued, before are given up: what waits for them is Python's. How many had begun; the numbers
 * of their threads, and their directories, FETCH_WORKERS at most. */
size_t jobs_hanging(int64_t before_ns, int *numbers, uint64_t *directories);
size_t jobs_under_way(void);
void jobs_ahead_at_most(size_t count); /* threads that fetch ahead, from now on; those that do go on */
void jobs_threads_add(int more); /* that take jobs; where there are none, since all wait for the source, nobody waits for one */
int jobs_threads(void);
void jobs_begin(size_t ahead_at_most, size_t ahead_bytes);
void jobs_end(void); /* nothing more is answered */

/* ---- workers.c ---------------------------------------------------------------------------------------------------- */

#define FETCH_WORKERS 64  /* that are waited for */
#define FETCH_THREADS 256 /* and with those that were given up */
#define PUSH_THREADS 4    /* besides: a push is a copy, and waits for nobody */

enum fetched_kind { FETCHED_STORED = 0, FETCHED_UNSTORED = 1, FETCHED_NOTHING = 2, FETCHED_HERE = 3, FETCHED_BROKEN = 4, FETCHED_GIVEN = 5 };

struct fetched { /* what has become of one file */
    struct fetched *next;
    enum fetched_kind kind;
    int ahead; /* Python had asked for it */
    uint64_t directory, generation, checksum;
    struct seen seen;
    struct stored stored;
    const char *data; /* of FETCHED_GIVEN, for Python to store: */
    struct content *held; /* to be told by contents_stored when Python has them */
    uint8_t name_size;
    char name[UINT8_MAX + 1];
};

struct fetched *fetched_take(size_t most); /* a chain, the oldest first; NULL: none */

int workers_start(int device, int count, int ahead_at_most, size_t ahead_bytes); /* 0, or an errno */
void workers_stop(int64_t patience_ns); /* returns when all have ended, or later than that */
extern struct reader_waits { /* of those who wait for what they want from the source; atomic */
    int64_t count, ns, waiting;
} reader_waits;

size_t workers_unstored(void); /* bytes that wait in memory since the cache has no room, and such as are fetched ahead now */
/* Those that wait for the source since before are given up, and others take their places, now or as soon as there is room
 * for one more; as jobs_hanging. */
size_t workers_replace(int64_t before_ns, uint64_t *directories);

#pragma GCC visibility pop

#endif
