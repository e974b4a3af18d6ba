// Shared by slowfs's files; slowfs.c tells the story, each other file the part named here.
#pragma once
#define _GNU_SOURCE
#define FUSE_USE_VERSION 314
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;

// ---- model.c: settings, counters, and what an operation costs ----
enum kind { LOOKUP, GETATTR, OPENDIR, READDIR, OPEN, READ, RELEASE, GETXATTR, READLINK, STATFS, KINDS };
enum { SHARED_BPS = KINDS, STREAM_BPS, INFLIGHT, SPINDLES, SEEK_US, STAMP_MS, CLOCK_AHEAD_S, CLOCK_BEHIND_S, HIDDEN_PERCENT, READ_MOST, SETTINGS }; // before these: a latency in us for each kind
extern const char *const kind_name[KINDS];
extern _Atomic u64 setting[SETTINGS];
extern _Atomic u64 ops[KINDS], latency_us[KINDS], read_bytes, read_ordered, readdir_names, transfer_us, faults_struck,
    in_flight, in_flight_max, writes, refused, seeks;
bool set(const char *key, const char *text); // false: no such key or value
void count_start(void);
u64 transfer_ns(u64 bytes, u64 bps);
u64 read_done(u64 now, u64 bytes, u64 latency_ns, u64 stream_bps, u64 *stream_free, u64 shared_bps, u64 *shared_free);
#define TRAIL 8
struct trail { // where the last reads of a file ended
    u64 ends[TRAIL];
    unsigned reads;
};
bool needs_seek(struct trail *trail, u64 begin, u64 end); // and notes it as the last read
#define SPINDLES_LIMIT 1024
u64 seek_ns(u64 now, u64 each_ns, u64 *spindle_free, u64 spindles); // until one that is free has sought
u64 readdir_units(u64 names);
int self_test(void);

// ---- nodes.c: the files the kernel knows, and open handles ----
#define CONTROL_INO 2 // node id of the control file; other ids are node addresses, the root is 1
#define CONTROL_NAME ".slowfs"
struct node {
    struct node *next;
    dev_t dev;
    ino_t ino;
    int fd;                     // O_PATH; take_fd() gives it
    struct name_of_file *name; // of a node without one, else NULL
    u64 lookups;
    off_t size; // as of the last open, with the two times: unchanged means the kernel's pages are good
    struct timespec mtime, ctime;
    _Atomic off_t last_read; // where the READ before this one began
    struct trail trail;      // guarded by lock
};
extern struct node root;
extern char backing[PATH_MAX];
struct node *node_of(fuse_ino_t ino);
void forget_node(fuse_ino_t ino, u64 count);
// 0 or an errno; 0 adds to the node's lookups
int find_node(int parent, const char *name, struct fuse_entry_param *entry);
int open_root(const char *path); // 0 or an errno
int take_fd(struct node *node);  // to be given back; -1 and errno: it is gone
void give_fd(struct node *node, int fd);

struct handle { // an open file or directory
    int fd;
    DIR *dir;
    struct dirent *pending; // read from dir, but the last reply had no room for it
    off_t pos;
    u64 names, units; // listed and paid for since the listing's start
    u64 stream_free;  // guarded by lock
    pthread_mutex_t dir_lock;
};
int open_handle(struct node *node, int node_fd, bool directory, struct fuse_file_info *fi); // 0 or an errno
void close_handle(struct handle *handle);

// ---- clock.c: a clock of its own ----
void stamp(struct stat *st); // its times, and its size, as this file system shows them

// ---- jobs.c: requests on their way ----
struct job {
    struct job *next, *prev; // prev only while parked
    fuse_req_t req;
    enum kind kind;
    fuse_ino_t ino;
    struct fuse_file_info fi;
    size_t size;
    off_t off;
    int error;               // set by a fault: answer this
    bool half;               // set by a fault: answer half the bytes
    bool parked, interrupted; // guarded by lock
    u64 slow_ns;             // set by a fault: extra latency
    union {
        struct fuse_entry_param entry;
        struct stat attr;
        struct statvfs fs;
    } out;
    char name[];
};
extern pthread_mutex_t lock; // the queue, what is parked, fault rules, handles' stream_free
extern pthread_cond_t work;  // for workers: there is something in the queue, or more places
extern u64 queued, parked;   // guarded by lock
extern _Atomic bool unmounted; // nothing is parked any more
void make_buffers(void);
void run(struct job *job, bool placed); // placed: in one of the inflight places
void enqueue(struct job *job);
void park(struct job *job);
void unpark_all(int error); // they go on, or fail with `error` if it is not 0
u64 busy_so_far_us(void); // time with something in flight; with lock held
void forget_busy(void);   // with lock held

// ---- faults.c ----
#define PATH_ROOM (PATH_MAX + NAME_MAX + 2)
const char *path_of(struct job *job, char *path);
extern _Atomic int fault_count;
bool add_fault(const char *text);    // with lock held
void remove_faults(bool hangs_only); // with lock held
bool strike(struct job *job);        // true: it hangs

// ---- guards.c ----
extern _Atomic int guard_count;
extern _Atomic bool squashes;
bool add_guard(const char *text); // with lock held
void remove_guards(void);         // with lock held
bool refuses(struct job *job);    // this job, to whoever asks

// ---- control.c: what the control file says and obeys ----
#define REPORT_SIZE 8192
size_t write_report(char *text);
bool obey(char *line); // false: no such command
