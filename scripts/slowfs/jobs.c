// Requests on their way: the queue and its workers, executing and answering, and the parking of those that hang.
// Whoever takes a job out of the queue or of the parked list, under `lock`, owns it and alone may answer it.
#include "slowfs.h"
#include <sys/prctl.h>
#include <sys/xattr.h>

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t work = PTHREAD_COND_INITIALIZER;
u64 queued, parked;
_Atomic bool unmounted;
static struct job *queue, **queue_end = &queue, parked_jobs = {.next = &parked_jobs, .prev = &parked_jobs};
static u64 threads, idle, active, shared_free, spindle_free[SPINDLES_LIMIT]; // guarded by lock
static u64 busy_ns, busy_since; // guarded by lock; the second while something is in flight

static u64 now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (u64)now.tv_sec * 1000000000u + (u64)now.tv_nsec;
}

u64 busy_so_far_us(void) { return (busy_ns + (in_flight ? now_ns() - busy_since : 0)) / 1000; }

void forget_busy(void) {
    busy_ns = 0;
    busy_since = now_ns();
}

static void take_place(void) {
    if (!in_flight) busy_since = now_ns();
    count_start();
}

static void leave_place(void) {
    pthread_mutex_lock(&lock);
    if (!--in_flight) busy_ns += now_ns() - busy_since;
    pthread_mutex_unlock(&lock);
}

static pthread_key_t buffer_key; // one per thread, freed when the thread ends
void make_buffers(void) { pthread_key_create(&buffer_key, free); }

struct buffer {
    size_t size;
    char bytes[];
};

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
static ssize_t execute_on(struct job *job, struct node *node, int fd, char **data, u64 *units) {
    struct handle *handle = (struct handle *)job->fi.fh;
    char path[32];
    ssize_t got = 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    switch (job->kind) {
    case LOOKUP:
        got = -find_node(fd, job->name, &job->out.entry);
        stamp(&job->out.entry.attr);
        job->out.entry.attr_timeout = job->out.entry.entry_timeout = 1.0;
        return got == -ENOENT ? job->out.entry.ino = 0, 0 : got; // an entry that says "no such name"
    case GETATTR:
        got = fstatat(fd, "", &job->out.attr, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
        stamp(&job->out.attr);
        return got;
    case STATFS: return fstatvfs(root.fd, &job->out.fs) < 0 ? -errno : 0;
    case OPENDIR:
    case OPEN: return -open_handle(node, fd, job->kind == OPENDIR, &job->fi);
    case RELEASE: return close_handle(handle), 0;
    default: break;
    }
    size_t size = job->kind == READLINK ? PATH_MAX : job->size;
    if (job->kind == READ && setting[READ_MOST] && size > setting[READ_MOST]) size = setting[READ_MOST];
    if (!(*data = buffer_of(size))) return -ENOMEM;
    switch (job->kind) {
    case READDIR: return list(job, handle, *data, units);
    case READLINK:
        got = readlinkat(fd, "", *data, size - 1);
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

static ssize_t execute(struct job *job, char **data, u64 *units) {
    struct node *node = node_of(job->ino);
    if (job->kind == READ || job->kind == RELEASE) return execute_on(job, node, -1, data, units); // the handle is enough
    int fd = take_fd(node);
    if (fd < 0) return -errno;
    ssize_t result = execute_on(job, node, fd, data, units);
    return give_fd(node, fd), result;
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
void run(struct job *job, bool placed) {
    u64 start = now_ns(), units = 1;
    char *data = NULL;
    ssize_t result = job->error && job->kind != RELEASE ? -job->error : execute(job, &data, &units);
    u64 cost_us = setting[job->kind] * units, done = start + cost_us * 1000;
    latency_us[job->kind] += cost_us;
    if (job->kind == READ && result > 0) {
        u64 stream_bps = setting[STREAM_BPS], shared_bps = setting[SHARED_BPS];
        transfer_us += transfer_ns((u64)result, stream_bps) / 1000;
        pthread_mutex_lock(&lock);
        u64 latency_ns = cost_us * 1000, begin = (u64)job->off;
        bool seek = needs_seek(&node_of(job->ino)->trail, begin, begin + (u64)result) && setting[SPINDLES];
        if (seek) {
            latency_ns += seek_ns(start, setting[SEEK_US] * 1000, spindle_free, setting[SPINDLES]);
            seeks++;
        }
        done = read_done(start, (u64)result, latency_ns, stream_bps, &((struct handle *)job->fi.fh)->stream_free,
                         shared_bps, &shared_free);
        pthread_mutex_unlock(&lock);
    }
    done += job->slow_ns;
    struct timespec until = {.tv_sec = (time_t)(done / 1000000000u), .tv_nsec = (long)(done % 1000000000u)};
    if (done > start)
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {}
    if (placed) leave_place();
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
        take_place();
        pthread_mutex_unlock(&lock);
        run(job, true);
        pthread_mutex_lock(&lock);
        active--;
    }
    return NULL;
}

void enqueue(struct job *job) {
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

void park(struct job *job) {
    fuse_req_t req = job->req;
    fuse_req_interrupt_func(req, interrupted, job);
    pthread_mutex_lock(&lock);
    bool stays = !job->interrupted && !unmounted;
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

void unpark_all(int error) {
    pthread_mutex_lock(&lock);
    parked_jobs.prev->next = NULL; // of an empty list this is parked_jobs.next
    struct job *job = parked_jobs.next, *next;
    parked_jobs.next = parked_jobs.prev = &parked_jobs;
    for (struct job *each = job; each; each = each->next) each->parked = false, each->error = error, parked--;
    pthread_mutex_unlock(&lock);
    for (; job; job = next) {
        next = job->next;
        fuse_req_interrupt_func(job->req, NULL, NULL); // waits for a call still running; then the job is ours
        enqueue(job);
    }
}
