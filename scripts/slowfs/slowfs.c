// slowfs: a simulated parallel file system. It shows BACKING at MOUNTPOINT, read-only, and charges for
// every operation what a shared file system would: a latency, and bandwidth from one link all share.
// Tests and benchmarks stand on it; it counts what reached it and can be told to fail (see README.md).
// It never writes to BACKING, never answers early, and keeps no data of its own: caching is the kernel's.
//
// A request goes   libfuse's thread -> submit() -> [parked while hung] -> queue -> one of `inflight`
// workers: execute, sleep until the virtual-time deadline, reply.   What costs nothing is done at once
// in libfuse's thread. Locks, outermost first: a request's own (inside libfuse) > lock; table_lock and a
// handle's lock are leaves. After a reply neither handle nor node may be touched: the kernel may have
// released or forgotten them (it does neither while a request that uses them is unanswered).
#define _GNU_SOURCE
#define FUSE_USE_VERSION 314
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;

enum kind { LOOKUP, GETATTR, OPENDIR, READDIR, OPEN, READ, RELEASE, GETXATTR, READLINK, STATFS, KINDS };
static const char *const kind_name[KINDS] = {"lookup", "getattr", "opendir",  "readdir",  "open",
                                             "read",   "release", "getxattr", "readlink", "statfs"};

// ---- settings: KIND_us latencies, shared_bps, stream_bps (0: no limit), inflight ----
enum { SHARED_BPS = KINDS, STREAM_BPS, INFLIGHT, SETTINGS };
#define INFLIGHT_LIMIT 1024 // each place is a thread and a 1 MiB buffer
static _Atomic u64 setting[SETTINGS];

static void set_preset(const u64 (*preset)[SETTINGS]) {
    for (int i = 0; i < SETTINGS; i++) setting[i] = (*preset)[i];
}
static const u64 preset_none[SETTINGS] = {[INFLIGHT] = 32};
#define PRESET(latency, bandwidth)                                                                          \
    {[LOOKUP] = 1000 * latency, [GETATTR] = 1000 * latency, [READDIR] = 1000 * latency, /* per 1000 names */ \
     [OPEN] = 2000 * latency, [READ] = 1000 * latency, [SHARED_BPS] = 50000000ull * bandwidth,              \
     [STREAM_BPS] = 20000000ull * bandwidth, [INFLIGHT] = 32}
static const u64 preset_lustre[SETTINGS] = PRESET(1, 10), preset_busy[SETTINGS] = PRESET(10, 1);

static bool set(const char *key, const char *text) {
    if (!strcmp(key, "preset")) {
        if (!strcmp(text, "none")) return set_preset(&preset_none), true;
        if (!strcmp(text, "lustre")) return set_preset(&preset_lustre), true;
        if (!strcmp(text, "busy")) return set_preset(&preset_busy), true;
        return false;
    }
    char *end;
    u64 value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || value > 1000000000000000ull) return false;
    int index = -1;
    for (int i = 0; i < KINDS; i++) {
        size_t n = strlen(kind_name[i]);
        if (!strncmp(key, kind_name[i], n) && !strcmp(key + n, "_us")) index = i;
    }
    if (!strcmp(key, "shared_bps")) index = SHARED_BPS;
    if (!strcmp(key, "stream_bps")) index = STREAM_BPS;
    if (!strcmp(key, "inflight") && value >= 1 && value <= INFLIGHT_LIMIT) index = INFLIGHT;
    if (index >= 0) setting[index] = value;
    return index >= 0;
}

// ---- counters ----
static _Atomic u64 ops[KINDS], latency_us[KINDS], read_bytes, readdir_names, transfer_us, faults_struck, in_flight,
    in_flight_max;

static void count_start(void) {
    u64 now = ++in_flight, max = in_flight_max;
    while (now > max && !atomic_compare_exchange_weak(&in_flight_max, &max, now)) {}
}

// ---- the cost model: pure, so that --self-test can run it with a clock of its own ----
static u64 transfer_ns(u64 bytes, u64 bps) { return bps ? (u64)((unsigned __int128)bytes * 1000000000u / bps) : 0; }

// When a read of `bytes` begun at `now` is done. A stream and the link all share each carry one byte after the
// other (`*_free`: when they have carried what was asked of them); latency overlaps with everything.
static u64 read_done(u64 now, u64 bytes, u64 latency_ns, u64 stream_bps, u64 *stream_free, u64 shared_bps,
                     u64 *shared_free) {
    *stream_free = (*stream_free > now ? *stream_free : now) + transfer_ns(bytes, stream_bps);
    *shared_free = (*shared_free > now ? *shared_free : now) + transfer_ns(bytes, shared_bps);
    return (*stream_free > *shared_free ? *stream_free : *shared_free) + latency_ns;
}

// What a listing costs in all once `names` were listed, in latencies: each thousand begun, at least one.
static u64 readdir_units(u64 names) { return names ? (names + 999) / 1000 : 1; }

// ---- nodes: one per file of BACKING the kernel knows, keyed by (dev, ino). The O_PATH descriptor keeps the
// file's inode number from being used again, so a key never changes its meaning while the node lives. ----
struct node {
    struct node *next;
    dev_t dev;
    ino_t ino;
    int fd;
    u64 lookups;
    off_t size; // as of the last open, with the two times: unchanged means the kernel's pages are good
    struct timespec mtime, ctime;
};
#define BUCKETS (1 << 17)
#define CONTROL_INO 2 // node id of the control file; other ids are node addresses, the root is 1
#define CONTROL_NAME ".slowfs"
static struct node *table[BUCKETS], root;
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static char backing[PATH_MAX];
static struct timespec started;

static struct node *node_of(fuse_ino_t ino) { return ino == FUSE_ROOT_ID ? &root : (struct node *)ino; }

static struct node **bucket(dev_t dev, ino_t ino) {
    return &table[((u64)ino * 0x9E3779B97F4A7C15ull ^ (u64)dev * 0xC2B2AE3D27D4EB4Full) >> 47];
}

static void forget_node(fuse_ino_t ino, u64 count) {
    if (ino == FUSE_ROOT_ID || ino == CONTROL_INO) return;
    struct node *node = node_of(ino);
    pthread_mutex_lock(&table_lock);
    bool dead = (node->lookups -= count) == 0;
    if (dead) {
        struct node **at = bucket(node->dev, node->ino);
        while (*at != node) at = &(*at)->next;
        *at = node->next;
    }
    pthread_mutex_unlock(&table_lock);
    if (dead) close(node->fd), free(node);
}

static int find_node(struct node *parent, const char *name, struct fuse_entry_param *entry) {
    int fd = openat(parent->fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return errno;
    if (fstatat(fd, "", &entry->attr, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) < 0) {
        int error = errno;
        return close(fd), error;
    }
    struct node **at = bucket(entry->attr.st_dev, entry->attr.st_ino), *node;
    pthread_mutex_lock(&table_lock);
    for (node = *at; node; node = node->next)
        if (node->dev == entry->attr.st_dev && node->ino == entry->attr.st_ino) break;
    if (!node && (node = calloc(1, sizeof *node))) {
        *node = (struct node){.next = *at, .dev = entry->attr.st_dev, .ino = entry->attr.st_ino, .fd = fd, .size = -1};
        *at = node, fd = -1;
    }
    if (node) node->lookups++;
    pthread_mutex_unlock(&table_lock);
    if (fd >= 0) close(fd);
    entry->ino = (fuse_ino_t)node;
    return node ? 0 : ENOMEM;
}

struct handle { // an open file or directory
    int fd;
    DIR *dir;
    struct dirent *pending; // read from dir, but the last reply had no room for it
    off_t pos;
    u64 names, units; // listed and paid for since the listing's start
    u64 stream_free;  // guarded by lock
    pthread_mutex_t dir_lock;
};

static void close_handle(struct handle *handle) {
    if (handle->dir) closedir(handle->dir);
    else if (handle->fd >= 0) close(handle->fd);
    pthread_mutex_destroy(&handle->dir_lock);
    free(handle);
}

static int open_handle(struct node *node, bool directory, struct fuse_file_info *fi) {
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", node->fd);
    int flags = O_RDONLY | O_CLOEXEC | (directory ? O_DIRECTORY : 0); // the client's O_DIRECT is between it and FUSE
    int fd = open(path, flags | O_NOATIME);
    if (fd < 0 && errno == EPERM) fd = open(path, flags); // O_NOATIME is for the owner alone
    if (fd < 0) return errno;
    struct handle *handle = calloc(1, sizeof *handle);
    struct stat st;
    if (!handle || (directory && !(handle->dir = fdopendir(fd))) || fstat(fd, &st) < 0) {
        int error = errno;
        if (handle && handle->dir) closedir(handle->dir);
        else close(fd);
        return free(handle), error;
    }
    handle->fd = fd;
    pthread_mutex_init(&handle->dir_lock, NULL);
    fi->fh = (u64)handle;
    if (!directory) { // as a network file system does: pages stay if the file is what it was at the last open
        pthread_mutex_lock(&table_lock);
        fi->keep_cache = node->size == st.st_size && !memcmp(&node->mtime, &st.st_mtim, sizeof st.st_mtim) &&
                         !memcmp(&node->ctime, &st.st_ctim, sizeof st.st_ctim);
        node->size = st.st_size, node->mtime = st.st_mtim, node->ctime = st.st_ctim;
        pthread_mutex_unlock(&table_lock);
    }
    return 0;
}

// ---- jobs ----
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
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // everything below, and handles' stream_free
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static struct job *queue, **queue_end = &queue, parked_jobs = {.next = &parked_jobs, .prev = &parked_jobs};
static u64 queued, parked, threads, idle, active, shared_free;

static u64 now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (u64)now.tv_sec * 1000000000u + (u64)now.tv_nsec;
}

static pthread_key_t buffer_key; // one per thread, freed when the thread ends
struct buffer { size_t size; char bytes[]; };
static char *buffer_of(size_t size) {
    struct buffer *buffer = pthread_getspecific(buffer_key);
    if (!buffer || buffer->size < size) {
        size_t wanted = size > (1 << 20) ? size : 1 << 20;
        free(buffer);
        if ((buffer = malloc(sizeof *buffer + wanted))) buffer->size = wanted;
        pthread_setspecific(buffer_key, buffer);
    }
    return buffer ? buffer->bytes : NULL;
}

static ssize_t list(struct job *job, struct handle *handle, char *buffer, u64 *units) {
    size_t used = 0;
    u64 names = 0;
    int error = 0;
    pthread_mutex_lock(&handle->dir_lock);
    if (job->off != handle->pos) seekdir(handle->dir, job->off), handle->pos = job->off, handle->pending = NULL;
    if (job->off == 0) handle->names = handle->units = 0;
    for (;;) {
        errno = 0;
        struct dirent *entry = handle->pending ? handle->pending : readdir(handle->dir);
        handle->pending = NULL;
        if (!entry) {
            error = errno;
            break;
        }
        if (job->ino != FUSE_ROOT_ID || strcmp(entry->d_name, CONTROL_NAME)) {
            struct stat st = {.st_ino = entry->d_ino, .st_mode = (mode_t)entry->d_type << 12};
            size_t need = fuse_add_direntry(job->req, buffer + used, job->size - used, entry->d_name, &st, entry->d_off);
            if (need > job->size - used) {
                handle->pending = entry;
                break;
            }
            used += need;
            names += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
        }
        handle->pos = entry->d_off;
    }
    handle->names += names;
    readdir_names += names;
    u64 owed = readdir_units(handle->names);
    *units = owed > handle->units ? owed - handle->units : 0;
    handle->units += *units;
    pthread_mutex_unlock(&handle->dir_lock);
    return used || !error ? (ssize_t)used : -error;
}

// Does what the job asks for; the answer is in job->out, job->fi or `*data`. Returns bytes, or minus an errno.
static ssize_t execute(struct job *job, char **data, u64 *units) {
    struct node *node = node_of(job->ino);
    struct handle *handle = (struct handle *)job->fi.fh;
    char path[32];
    ssize_t got = 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", node->fd);
    switch (job->kind) {
    case LOOKUP:
        got = -find_node(node, job->name, &job->out.entry);
        job->out.entry.attr_timeout = job->out.entry.entry_timeout = 1.0;
        return got == -ENOENT ? job->out.entry.ino = 0, 0 : got; // an entry that says "no such name"
    case GETATTR: return fstatat(node->fd, "", &job->out.attr, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
    case STATFS: return fstatvfs(root.fd, &job->out.fs) < 0 ? -errno : 0;
    case OPENDIR:
    case OPEN: return -open_handle(node, job->kind == OPENDIR, &job->fi);
    case RELEASE: return close_handle(handle), 0;
    default: break;
    }
    size_t size = job->kind == READLINK ? PATH_MAX : job->size;
    if (!(*data = buffer_of(size))) return -ENOMEM;
    switch (job->kind) {
    case READDIR: return list(job, handle, *data, units);
    case READLINK:
        got = readlinkat(node->fd, "", *data, size - 1);
        if (got >= 0) (*data)[got] = 0;
        return got < 0 ? -errno : got;
    case GETXATTR: // without a name: the list of names
        got = *job->name ? getxattr(path, job->name, size ? *data : NULL, size) : listxattr(path, size ? *data : NULL, size);
        return got < 0 ? -errno : got;
    default: break;
    }
    while ((size_t)got < size) { // a reply that is short for no reason would be taken for the end of the file
        ssize_t more = pread(handle->fd, *data + got, size - (size_t)got, job->off + got);
        if (more < 0 && errno == EINTR) continue;
        if (more < 0 && !got) return -errno;
        if (more <= 0) break;
        got += more;
    }
    if (job->half) got /= 2;
    read_bytes += (u64)got;
    return got;
}

static void reply(struct job *job, ssize_t result, const char *data) {
    fuse_req_t req = job->req;
    if (result < 0) {
        fuse_reply_err(req, (int)-result);
        return;
    }
    switch (job->kind) {
    case LOOKUP: // a reply the kernel no longer wants must not leave a count behind
        if (fuse_reply_entry(req, &job->out.entry) && job->out.entry.ino) forget_node(job->out.entry.ino, 1);
        break;
    case OPENDIR:
    case OPEN:
        if (fuse_reply_open(req, &job->fi)) close_handle((struct handle *)job->fi.fh);
        break;
    case GETATTR: fuse_reply_attr(req, &job->out.attr, 1.0); break;
    case STATFS: fuse_reply_statfs(req, &job->out.fs); break;
    case READLINK: fuse_reply_readlink(req, data); break;
    case RELEASE: fuse_reply_err(req, 0); break;
    case GETXATTR:
        if (!job->size) fuse_reply_xattr(req, (size_t)result);
        else fuse_reply_buf(req, data, (size_t)result);
        break;
    default: fuse_reply_buf(req, data, (size_t)result);
    }
}

// In a place of its own, or, when it costs nothing, in libfuse's thread.
static void run(struct job *job) {
    u64 start = now_ns(), units = 1;
    char *data = NULL;
    ssize_t result = job->error ? -job->error : execute(job, &data, &units);
    u64 cost_us = setting[job->kind] * units, done = start + cost_us * 1000;
    latency_us[job->kind] += cost_us;
    if (job->kind == READ && result > 0) {
        u64 stream_bps = setting[STREAM_BPS], shared_bps = setting[SHARED_BPS];
        transfer_us += transfer_ns((u64)result, stream_bps) / 1000;
        pthread_mutex_lock(&lock);
        done = read_done(start, (u64)result, cost_us * 1000, stream_bps, &((struct handle *)job->fi.fh)->stream_free,
                         shared_bps, &shared_free);
        pthread_mutex_unlock(&lock);
    }
    done += job->slow_ns;
    struct timespec until = {.tv_sec = (time_t)(done / 1000000000u), .tv_nsec = (long)(done % 1000000000u)};
    if (done > start)
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {}
    in_flight--;
    reply(job, result, data);
    free(job);
}

static void *worker(void *unused) {
    (void)unused;
    prctl(PR_SET_TIMERSLACK, 1000); // ns; the default of 50 us would be 5 % of a 1 ms latency
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!queue || active >= setting[INFLIGHT]) {
            idle++;
            pthread_cond_wait(&work, &lock);
            idle--;
        }
        struct job *job = queue;
        if (!(queue = job->next)) queue_end = &queue;
        queued--, active++;
        count_start();
        pthread_mutex_unlock(&lock);
        run(job);
        pthread_mutex_lock(&lock);
        active--;
    }
    return NULL;
}

static void enqueue(struct job *job) {
    pthread_mutex_lock(&lock);
    job->next = NULL;
    *queue_end = job, queue_end = &job->next;
    queued++;
    if (queued <= idle) {
        pthread_cond_signal(&work);
    } else if (threads < setting[INFLIGHT]) { // libfuse's threads block signals, and so will the new one
        pthread_t thread;
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        pthread_attr_setstacksize(&attributes, 256 * 1024);
        threads += !pthread_create(&thread, &attributes, worker, NULL);
        pthread_attr_destroy(&attributes);
    }
    pthread_mutex_unlock(&lock);
}

// ---- faults ----
enum action { FAIL_IO, FAIL_STALE, SHORT, SLOW, HANG, ACTIONS };
static const char *const action_name[ACTIONS] = {"eio", "estale", "short", "slow", "hang"};
#define FAULTS 64
static struct fault {
    enum kind kind;
    enum action action;
    u64 left; // strikes the left-th matching operation from now
    u64 slow_ns;
    bool forever;   // and all after it
    char path[256]; // strikes only where this occurs in the path; empty: everywhere
} fault[FAULTS];    // guarded by lock
static _Atomic int fault_count;

// "KIND ACTION [N] [forever] [[path] SUBSTRING]", with lock held
static bool add_fault(const char *text) {
    char kind[16], action[16], *end;
    int at = 0;
    struct fault new = {.kind = KINDS, .action = ACTIONS, .left = 1};
    if (sscanf(text, "%15s %15s %n", kind, action, &at) < 2 || !at) return false;
    for (int i = 0; i < KINDS; i++)
        if (!strcmp(kind, kind_name[i])) new.kind = (enum kind)i;
    for (int i = 0; i < ACTIONS; i++)
        if (!strcmp(action, action_name[i])) new.action = (enum action)i;
    if (new.kind == KINDS || new.action == ACTIONS || (new.action == SHORT && new.kind != READ)) return false;
    u64 number = strtoull(text += at, &end, 10);
    bool numbered = *text >= '0' && *text <= '9' && (!*end || *end == ' ');
    if (numbered) text = end + strspn(end, " ");
    if (new.action == SLOW) {
        if (!numbered || number > 86400000) return false;
        new.slow_ns = number * 1000000, new.forever = true;
    } else {
        if (numbered && !number) return false;
        if (numbered) new.left = number;
        new.forever = new.action == HANG && !numbered;
    }
    if (!strcmp(text, "forever") || !strncmp(text, "forever ", 8)) {
        new.forever = true;
        text += 7, text += strspn(text, " ");
    }
    if (!strncmp(text, "path ", 5)) text += 5;
    if (strlen(text) >= sizeof new.path || fault_count == FAULTS) return false;
    strcpy(new.path, text);
    fault[fault_count++] = new;
    return true;
}

static void remove_faults(bool hangs_only) { // with lock held
    int kept = 0;
    for (int i = 0; i < fault_count; i++)
        if (hangs_only && fault[i].action != HANG) fault[kept++] = fault[i];
    fault_count = kept;
}

// Lets every matching rule act on the job; true: it hangs.
static bool strike(struct job *job) {
    char link[32], path[PATH_MAX + NAME_MAX + 2], *below = path;
    snprintf(link, sizeof link, "/proc/self/fd/%d", node_of(job->ino)->fd);
    ssize_t n = readlink(link, path, PATH_MAX);
    path[n < 0 ? 0 : n] = 0;
    if (!strncmp(path, backing, strlen(backing))) below += strlen(backing);
    if (job->kind == LOOKUP) strcat(strcat(path, "/"), job->name);
    bool hang = false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < fault_count; i++) {
        struct fault *rule = &fault[i];
        if (rule->kind != job->kind || !strstr(below, rule->path)) continue;
        if (rule->left > 1) {
            rule->left--;
            continue;
        }
        faults_struck++;
        if (rule->action == FAIL_IO) job->error = EIO;
        if (rule->action == FAIL_STALE) job->error = ESTALE;
        if (rule->action == SHORT) job->half = true;
        if (rule->action == SLOW) job->slow_ns += rule->slow_ns;
        if (rule->action == HANG) hang = true;
        if (!rule->forever) {
            memmove(rule, rule + 1, (size_t)(fault_count - i - 1) * sizeof *rule);
            fault_count--;
            i--;
        }
    }
    pthread_mutex_unlock(&lock);
    return hang;
}

// The kernel gives up a request. Called with the request's own lock held: by libfuse's thread that got the
// INTERRUPT, or by park() while arming (then the job is not parked yet and this only leaves a note: a reply
// would free the request under libfuse's feet).
static void interrupted(fuse_req_t req, void *data) {
    struct job *job = data;
    pthread_mutex_lock(&lock);
    bool was_parked = job->parked;
    job->interrupted = true;
    if (was_parked) {
        job->prev->next = job->next, job->next->prev = job->prev;
        job->parked = false, parked--;
    }
    pthread_mutex_unlock(&lock);
    if (!was_parked) return; // unpark_all() has it
    fuse_reply_err(req, EINTR);
    free(job);
}

static void park(struct job *job) {
    fuse_req_t req = job->req;
    fuse_req_interrupt_func(req, interrupted, job);
    pthread_mutex_lock(&lock);
    bool stays = !job->interrupted;
    if (stays) {
        job->prev = parked_jobs.prev, job->next = &parked_jobs;
        job->prev->next = job, parked_jobs.prev = job;
        job->parked = true, parked++;
    }
    pthread_mutex_unlock(&lock); // a parked job is no longer ours from here
    if (stays) return;
    fuse_req_interrupt_func(req, NULL, NULL); // waits for a call still running
    fuse_reply_err(req, EINTR);
    free(job);
}

static void unpark_all(void) {
    pthread_mutex_lock(&lock);
    parked_jobs.prev->next = NULL; // of an empty list this is parked_jobs.next
    struct job *job = parked_jobs.next, *next;
    parked_jobs.next = parked_jobs.prev = &parked_jobs;
    for (struct job *each = job; each; each = each->next) each->parked = false, parked--;
    pthread_mutex_unlock(&lock);
    for (; job; job = next) {
        next = job->next;
        fuse_req_interrupt_func(job->req, NULL, NULL); // waits for a call still running; then the job is ours
        enqueue(job);
    }
}

// ---- operations ----
static void submit(fuse_req_t req, enum kind kind, fuse_ino_t ino, const char *name, size_t size, off_t off,
                   const struct fuse_file_info *fi) {
    ops[kind]++;
    struct job *job = malloc(sizeof *job + strlen(name) + 1);
    if (!job) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    *job = (struct job){.req = req, .kind = kind, .ino = ino, .size = size, .off = off};
    if (fi) job->fi = *fi;
    strcpy(job->name, name);
    if (fault_count && strike(job)) {
        park(job);
        return;
    }
    bool bandwidth = kind == READ && (setting[SHARED_BPS] || setting[STREAM_BPS]);
    if (setting[kind] || bandwidth || job->slow_ns) {
        enqueue(job);
    } else {
        count_start();
        run(job);
    }
}

struct report { // what one open control file reads
    size_t length;
    char text[8192];
};
static pthread_mutex_t report_lock = PTHREAD_MUTEX_INITIALIZER;

static struct stat control_attr(void) {
    return (struct stat){.st_ino = UINT64_MAX - 1, .st_mode = S_IFREG | 0644, .st_nlink = 1, .st_uid = geteuid(),
                         .st_gid = getegid(), .st_blksize = 4096, .st_atim = started, .st_mtim = started,
                         .st_ctim = started};
}

static void write_report(struct report *report) {
    size_t n = 0;
#define PUT(...) n += (size_t)snprintf(report->text + n, sizeof report->text - n, __VA_ARGS__)
    PUT("{");
    for (int i = 0; i < KINDS; i++) PUT("\"%s\": %" PRIu64 ", ", kind_name[i], ops[i]);
    PUT("\"read_bytes\": %" PRIu64 ", \"readdir_names\": %" PRIu64 ", \"transfer_us\": %" PRIu64 ", \"latency_us\": {",
        read_bytes, readdir_names, transfer_us);
    for (int i = 0; i < KINDS; i++) PUT("%s\"%s\": %" PRIu64, i ? ", " : "", kind_name[i], latency_us[i]);
    pthread_mutex_lock(&lock);
    PUT("}, \"in_flight\": %" PRIu64 ", \"in_flight_max\": %" PRIu64 ", \"queued\": %" PRIu64 ", \"parked\": %" PRIu64
        ", \"faults_struck\": %" PRIu64 ", \"faults_set\": %d, \"pid\": %d, \"settings\": {",
        in_flight, in_flight_max, queued, parked, faults_struck, fault_count, getpid());
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < KINDS; i++) PUT("\"%s_us\": %" PRIu64 ", ", kind_name[i], setting[i]);
    PUT("\"shared_bps\": %" PRIu64 ", \"stream_bps\": %" PRIu64 ", \"inflight\": %" PRIu64 "}}\n", setting[SHARED_BPS],
        setting[STREAM_BPS], setting[INFLIGHT]);
    report->length = n;
}

static bool obey(char *line) {
    char key[32], value[32];
    bool ok = true;
    line += strspn(line, " ");
    if (!*line || *line == '#') return true;
    if (!strcmp(line, "clear") || !strcmp(line, "release")) {
        pthread_mutex_lock(&lock);
        remove_faults(*line == 'r');
        pthread_mutex_unlock(&lock);
        unpark_all();
    } else if (!strcmp(line, "reset")) {
        for (int i = 0; i < KINDS; i++) ops[i] = latency_us[i] = 0;
        read_bytes = readdir_names = transfer_us = faults_struck = 0;
        in_flight_max = (u64)in_flight;
    } else if (sscanf(line, "set %31s %31s", key, value) == 2) {
        pthread_mutex_lock(&lock);
        ok = set(key, value);
        pthread_cond_broadcast(&work); // there may be more places now
        pthread_mutex_unlock(&lock);
    } else if (!strncmp(line, "fault ", 6)) {
        pthread_mutex_lock(&lock);
        ok = add_fault(line + 6);
        pthread_mutex_unlock(&lock);
    } else {
        ok = false;
    }
    return ok;
}

static void op_init(void *data, struct fuse_conn_info *conn) {
    (void)data; // names come without attributes; requests are small and not worth a pipe
    conn->want &= ~(unsigned)(FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_SPLICE_READ);
    conn->want |= conn->capable & FUSE_CAP_POSIX_ACL;
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name) {
    struct fuse_entry_param entry = {.ino = CONTROL_INO, .attr = control_attr(), .attr_timeout = 1, .entry_timeout = 1};
    if (parent == FUSE_ROOT_ID && !strcmp(name, CONTROL_NAME)) fuse_reply_entry(req, &entry);
    else submit(req, LOOKUP, parent, name, 0, 0, NULL);
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, u64 count) {
    forget_node(ino, count);
    fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *each) {
    for (size_t i = 0; i < count; i++) forget_node(each[i].ino, each[i].nlookup);
    fuse_reply_none(req);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
    struct stat st = control_attr();
    (void)fi; // the node's descriptor serves as well
    if (ino == CONTROL_INO) fuse_reply_attr(req, &st, 1.0);
    else submit(req, GETATTR, ino, "", 0, 0, NULL);
}

static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int which, struct fuse_file_info *fi) {
    (void)attr, (void)which;
    if (ino == CONTROL_INO) op_getattr(req, ino, fi); // "echo ... > .slowfs" truncates
    else fuse_reply_err(req, EROFS);
}

static void op_readlink(fuse_req_t req, fuse_ino_t ino) { submit(req, READLINK, ino, "", 0, 0, NULL); }

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
    submit(req, OPENDIR, ino, "", 0, 0, fi);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi) {
    submit(req, READDIR, ino, "", size, off, fi);
}

static void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
    (void)ino;
    close_handle((struct handle *)fi->fh);
    fuse_reply_err(req, 0);
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
    if (ino == CONTROL_INO) {
        struct report *report = calloc(1, sizeof *report);
        fi->fh = (u64)report, fi->direct_io = 1;
        if (!report) fuse_reply_err(req, ENOMEM);
        else if (fuse_reply_open(req, fi)) free(report);
    } else if ((fi->flags & O_ACCMODE) != O_RDONLY || (fi->flags & O_TRUNC)) {
        fuse_reply_err(req, EROFS);
    } else {
        submit(req, OPEN, ino, "", 0, 0, fi);
    }
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi) {
    if (ino != CONTROL_INO) {
        submit(req, READ, ino, "", size, off, fi);
        return;
    }
    struct report *report = (struct report *)fi->fh;
    pthread_mutex_lock(&report_lock);
    if (off == 0) write_report(report); // reads further on see what was true then
    size_t from = (u64)off < report->length ? (size_t)off : report->length, rest = report->length - from;
    char *text = memcpy(buffer_of(sizeof report->text), report->text + from, rest);
    pthread_mutex_unlock(&report_lock); // not held over the reply: after it the report may be gone
    fuse_reply_buf(req, text, rest < size ? rest : size);
}

static void op_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t size, off_t off,
                     struct fuse_file_info *fi) {
    (void)off, (void)fi;
    char *text = ino == CONTROL_INO ? strndup(data, size) : NULL, *rest = text, *line;
    bool ok = text != NULL;
    while (ok && (line = strsep(&rest, "\n"))) ok = obey(line);
    free(text);
    if (ok) fuse_reply_write(req, size);
    else fuse_reply_err(req, ino == CONTROL_INO ? EINVAL : EROFS);
}

static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
    if (ino != CONTROL_INO) {
        submit(req, RELEASE, ino, "", 0, 0, fi);
        return;
    }
    free((struct report *)fi->fh);
    fuse_reply_err(req, 0);
}

static void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size) {
    if (ino == CONTROL_INO) fuse_reply_err(req, ENODATA);
    else submit(req, GETXATTR, ino, name, size, 0, NULL);
}

static void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size) {
    if (ino != CONTROL_INO) submit(req, GETXATTR, ino, "", size, 0, NULL);
    else if (size) fuse_reply_buf(req, NULL, 0);
    else fuse_reply_xattr(req, 0);
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino) {
    submit(req, STATFS, ino == CONTROL_INO ? FUSE_ROOT_ID : ino, "", 0, 0, NULL);
}

// All that would write. (The mount itself is not read-only: the control file is written to.)
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define REFUSE(op, ...) \
    static void op(fuse_req_t req, __VA_ARGS__) { fuse_reply_err(req, EROFS); }
REFUSE(op_mknod, fuse_ino_t parent, const char *name, mode_t mode, dev_t dev)
REFUSE(op_mkdir, fuse_ino_t parent, const char *name, mode_t mode)
REFUSE(op_unlink, fuse_ino_t parent, const char *name)
REFUSE(op_symlink, const char *target, fuse_ino_t parent, const char *name)
REFUSE(op_rename, fuse_ino_t parent, const char *name, fuse_ino_t to, const char *new_name, unsigned flags)
REFUSE(op_link, fuse_ino_t ino, fuse_ino_t to, const char *new_name)
REFUSE(op_create, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *fi)
REFUSE(op_setxattr, fuse_ino_t ino, const char *name, const char *value, size_t size, int flags)
REFUSE(op_fallocate, fuse_ino_t ino, int mode, off_t off, off_t size, struct fuse_file_info *fi)

static const struct fuse_lowlevel_ops operations = {
    .init = op_init, .lookup = op_lookup, .forget = op_forget, .forget_multi = op_forget_multi, .getattr = op_getattr,
    .setattr = op_setattr, .readlink = op_readlink, .opendir = op_opendir, .readdir = op_readdir,
    .releasedir = op_releasedir, .open = op_open, .read = op_read, .write = op_write, .release = op_release,
    .getxattr = op_getxattr, .listxattr = op_listxattr, .statfs = op_statfs, .mknod = op_mknod, .mkdir = op_mkdir,
    .unlink = op_unlink, .rmdir = op_unlink, .symlink = op_symlink, .rename = op_rename, .link = op_link,
    .create = op_create, .setxattr = op_setxattr, .removexattr = op_unlink, .fallocate = op_fallocate,
};

// ---- start and end ----
static struct fuse_session *session;
static char mountpoint[PATH_MAX];
static unsigned mounted_dev[2];

static bool mount_dev(unsigned dev[2]) { // asks the kernel alone: neither our threads nor our faults matter
    struct statx st;
    if (statx(AT_FDCWD, mountpoint, AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, STATX_TYPE, &st)) return false;
    dev[0] = st.stx_dev_major, dev[1] = st.stx_dev_minor;
    return true;
}

// SIGTERM ends the mount whatever the other threads do: with the process every request in hand fails.
static void *await_signal(void *signals) {
    int number;
    unsigned dev[2];
    sigwait(signals, &number);
    if (mount_dev(dev) && !memcmp(dev, mounted_dev, sizeof dev)) fuse_session_unmount(session); // else not ours
    _exit(0);
}

static int self_test(void) {
    u64 stream = 0, other = 0, shared = 0, ms = 1000000, mib = 1 << 20, stream_bps = 200000000, shared_bps = 500000000;
    int wrong = 0;
#define CHECK(what) \
    if (!(what)) fprintf(stderr, "slowfs: line %d: not so: %s\n", __LINE__, #what), wrong = 1
#define DONE(at, bytes, stream) read_done((at) * ms, bytes, ms, stream_bps, stream, shared_bps, &shared)
    // one read: its transfer, then the latency
    CHECK(DONE(5, 200000, &stream) == 7 * ms);
    CHECK(stream == 6 * ms && shared == 5 * ms + 400000);
    // another at once on the same stream: transfers follow one another, latencies overlap
    CHECK(DONE(5, 200000, &stream) == 8 * ms);
    // another stream at once: its own bandwidth, but the link is busy until 6.2 ms with all three
    CHECK(DONE(5, 200000, &other) == 7 * ms + 200000);
    CHECK(other == 6 * ms && shared == 6 * ms + 200000);
    // idle time is not saved up; a read of nothing costs its latency
    CHECK(DONE(50, 200000, &stream) == 52 * ms);
    CHECK(DONE(90, 0, &stream) == 91 * ms);
    // more than the link carries at once: the link decides
    u64 many[8] = {0}, last = 0;
    for (int i = 0; i < 8; i++) last = DONE(100, 500000, &many[i]);
    CHECK(last == 100 * ms + 8 * ms + ms);
    // no limits; no overflow
    CHECK(read_done(200 * ms, 1ull << 40, ms, 0, &stream, 0, &shared) == 201 * ms);
    CHECK(transfer_ns(1ull << 40, 1000) == 1099511627776000000ull);
    // eight streams that never pause: the link is full, and never more than full
    u64 streams[8] = {0}, next[8] = {0}, bytes = 0, clock = 0;
    for (shared = 0; clock < 10000 * ms;) {
        int first = 0;
        for (int i = 1; i < 8; i++)
            if (next[i] < next[first]) first = i;
        clock = next[first];
        next[first] = read_done(clock, mib, ms, stream_bps, &streams[first], shared_bps, &shared);
        bytes += mib;
    }
    CHECK(bytes > 4980000000u && bytes < 5010000000u);
    CHECK(readdir_units(0) == 1 && readdir_units(1000) == 1 && readdir_units(1001) == 2);
    CHECK(readdir_units(200000) == 200);
    if (!wrong) puts("slowfs: the cost model holds");
    return wrong;
}

static int usage(void) {
    fprintf(stderr, "usage: slowfs [--preset lustre|busy|none] [--set KEY=VALUE ...] [-f] BACKING MOUNTPOINT\n"
                    "       slowfs --self-test\n"
                    "KEY: KIND_us (latency), shared_bps, stream_bps (bytes/s, 0: no limit), inflight\nKIND:");
    for (int i = 0; i < KINDS; i++) fprintf(stderr, " %s", kind_name[i]);
    fprintf(stderr, "\n");
    return 2;
}

int main(int argc, char **argv) {
    int foreground = 0, at = 1;
    set_preset(&preset_none);
    for (; at < argc && argv[at][0] == '-'; at++) {
        char *value = NULL;
        if (!strcmp(argv[at], "--self-test")) return self_test();
        if (!strcmp(argv[at], "-f")) {
            foreground = 1;
        } else if (!strcmp(argv[at], "--preset") && at + 1 < argc) {
            if (!set("preset", argv[++at])) return usage();
        } else if (!strcmp(argv[at], "--set") && at + 1 < argc && (value = strchr(argv[++at], '='))) {
            *value = 0;
            if (!set(argv[at], value + 1)) return usage();
        } else {
            return usage();
        }
    }
    if (argc - at != 2) return usage();
    struct stat st;
    root.fd = open(argv[at], O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root.fd < 0 || fstat(root.fd, &st) < 0 || !realpath(argv[at], backing)) return perror(argv[at]), 1;
    if (!realpath(argv[at + 1], mountpoint)) return perror(argv[at + 1]), 1;
    root.dev = st.st_dev, root.ino = st.st_ino;
    if (!strcmp(backing, "/")) *backing = 0;
    clock_gettime(CLOCK_REALTIME, &started);
    struct rlimit files = {1 << 20, 1 << 20}; // one descriptor for each file the kernel knows
    if (setrlimit(RLIMIT_NOFILE, &files)) {
        getrlimit(RLIMIT_NOFILE, &files);
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    pthread_key_create(&buffer_key, free);
    char options[] = "fsname=slowfs,subtype=slowfs,default_permissions,allow_other";
    if (geteuid()) *strrchr(options, ',') = 0; // only root's mounts are open to others everywhere
    struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
    if (fuse_opt_add_arg(&args, "slowfs") || fuse_opt_add_arg(&args, "-o") || fuse_opt_add_arg(&args, options)) return 1;
    session = fuse_session_new(&args, &operations, sizeof operations, NULL);
    fuse_opt_free_args(&args);
    if (!session || fuse_session_mount(session, mountpoint)) return 1;
    static sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM), sigaddset(&signals, SIGINT), sigaddset(&signals, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    signal(SIGPIPE, SIG_IGN);
    pthread_t thread;
    int failed = !mount_dev(mounted_dev) || fuse_daemonize(foreground) ||
                 pthread_create(&thread, NULL, await_signal, &signals) || fuse_session_loop_mt(session, NULL);
    fuse_session_unmount(session);
    return failed ? 1 : 0;
}
