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
#include "slowfs.h"
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/uio.h>

static struct timespec started;
static bool is_private; // the kernel admits only who has our real ids, and no root
static bool own_permissions; // the kernel checks no mode bits and asks for no ACLs: what may be done is for us to say

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
    if ((guard_count || squashes) && refuses(job)) {
        refused++;
        fuse_reply_err(req, EACCES);
        free(job);
        return;
    }
    if (fault_count && strike(job)) {
        park(job);
        return;
    }
    bool bandwidth = kind == READ && (setting[SHARED_BPS] || setting[STREAM_BPS]);
    if (setting[kind] || bandwidth || job->slow_ns) {
        enqueue(job);
    } else {
        run(job, false);
    }
}

struct report { // what one open control file reads
    size_t length;
    char text[REPORT_SIZE];
};
static pthread_mutex_t report_lock = PTHREAD_MUTEX_INITIALIZER;

static struct stat control_attr(void) {
    return (struct stat){.st_ino = UINT64_MAX - 1, .st_mode = S_IFREG | 0644, .st_nlink = 1, .st_uid = getuid(),
                         .st_gid = getgid(), .st_blksize = 4096, .st_atim = started, .st_mtim = started,
                         .st_ctim = started};
}
// libfuse before 3.17 does not tell the kernel of FUSE_CAP_PARALLEL_DIROPS, whatever is wanted, and the kernel then
// looks up one name of a directory at a time. So its writev is ours, and the answer to INIT (a header, then four
// 32-bit words of which the last are the flags) gets the bit, which is the same in libfuse and in the kernel.
static _Thread_local bool answers_init;
ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (answers_init && count == 2 && parts[1].iov_len >= 4 * sizeof(uint32_t))
        ((uint32_t *)parts[1].iov_base)[3] |= FUSE_CAP_PARALLEL_DIROPS;
    answers_init = false;
    return syscall(SYS_writev, fd, parts, count);
}

static void op_init(void *data, struct fuse_conn_info *conn) {
    (void)data; // names come without attributes; requests are small and not worth a pipe
    conn->want &= ~(unsigned)(FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_SPLICE_READ);
    conn->want |= conn->capable & FUSE_CAP_PARALLEL_DIROPS; // look-ups in one folder overlap
    if (!own_permissions) conn->want |= conn->capable & FUSE_CAP_POSIX_ACL;
    answers_init = conn->capable & FUSE_CAP_PARALLEL_DIROPS;
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

static void refuse(fuse_req_t req) { // what would write
    writes++;
    fuse_reply_err(req, EROFS);
}

static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int which, struct fuse_file_info *fi) {
    (void)attr, (void)which;
    if (ino == CONTROL_INO) op_getattr(req, ino, fi); // "echo ... > .slowfs" truncates
    else refuse(req);
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
        refuse(req);
    } else {
        submit(req, OPEN, ino, "", 0, 0, fi);
    }
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi) {
    if (ino != CONTROL_INO) {
        read_ordered += off >= atomic_exchange(&node_of(ino)->last_read, off);
        submit(req, READ, ino, "", size, off, fi);
        return;
    }
    struct report *report = (struct report *)fi->fh;
    pthread_mutex_lock(&report_lock);
    if (off == 0) report->length = write_report(report->text); // reads further on see what was true then
    size_t from = (u64)off < report->length ? (size_t)off : report->length, rest = report->length - from;
    char text[REPORT_SIZE];
    memcpy(text, report->text + from, rest);
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
    else if (own_permissions && !strncmp(name, "system.posix_acl_", 17)) fuse_reply_err(req, EOPNOTSUPP);
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
    static void op(fuse_req_t req, __VA_ARGS__) { refuse(req); }
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
static atomic_flag ending = ATOMIC_FLAG_INIT; // whoever sets it unmounts

static bool mount_dev(unsigned dev[2]) { // asks the kernel alone, for nothing else: not refused where only others may look
    struct statx st;
    if (statx(AT_FDCWD, mountpoint, AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, 0, &st)) return false;
    dev[0] = st.stx_dev_major, dev[1] = st.stx_dev_minor;
    return true;
}

static bool still_mounted(void) {
    FILE *mounts = fopen("/proc/self/mountinfo", "re");
    char line[3 * PATH_MAX];
    unsigned major, minor;
    bool found = !mounts;
    while (!found && fgets(line, sizeof line, mounts))
        found = sscanf(line, "%*d %*d %u:%u", &major, &minor) == 2 && major == mounted_dev[0] && minor == mounted_dev[1];
    if (mounts) fclose(mounts);
    return found;
}

// SIGTERM ends the mount whatever the other threads do: with the process every request in hand fails. A lazy
// unmount lets nothing hang any longer: nobody could tell us to go on, and the kernel lets no reader that waits
// for pages in the background be killed by an interrupt.
static void *watch(void *signals) {
    struct pollfd on[2] = {{.fd = signalfd(-1, signals, SFD_CLOEXEC), .events = POLLIN},
                           {.fd = open("/proc/self/mounts", O_RDONLY | O_CLOEXEC), .events = POLLPRI}};
    unsigned dev[2];
    while (!(poll(on, 2, -1) > 0 && on[0].revents))
        if (on[1].revents && !still_mounted()) {
            unmounted = true;
            unpark_all(ENODEV);
            on[1].fd = -1;
        }
    while (atomic_flag_test_and_set(&ending)) pause();
    if (mount_dev(dev) && !memcmp(dev, mounted_dev, sizeof dev)) fuse_session_unmount(session); // else not ours
    _exit(0);
}
static int usage(void) {
    fprintf(stderr, "usage: slowfs [--preset lustre|busy|disk|flash|none] [--set KEY=VALUE ...] [--own-permissions] [--private] [-f] BACKING MOUNTPOINT\n"
                    "       slowfs --self-test\n"
                    "KEY: KIND_us (latency), shared_bps, stream_bps (bytes/s, 0: no limit), inflight, spindles, seek_us\nKIND:");
    for (int i = 0; i < KINDS; i++) fprintf(stderr, " %s", kind_name[i]);
    fprintf(stderr, "\n");
    return 2;
}

// What is shown is named, as network file systems name it: of one without a name nobody can tell what it will show next.
static void mount_options(char *to) {
    const char *other = geteuid() || is_private ? "" : ",allow_other"; // only root's mounts are open to others everywhere
    const char *permissions = own_permissions ? "" : ",default_permissions";
    to += sprintf(to, "subtype=slowfs%s%s,fsname=slowfs:", permissions, other);
    for (const char *c = *backing ? backing : "/"; *c; *to++ = *c++) {
        if (strchr(",\\", *c)) *to++ = '\\';
    }
    *to = 0;
}

int main(int argc, char **argv) {
    int foreground = 0, at = 1;
    set("preset", "none");
    for (; at < argc && argv[at][0] == '-'; at++) {
        char *value = NULL;
        if (!strcmp(argv[at], "--self-test")) return self_test();
        if (!strcmp(argv[at], "-f")) {
            foreground = 1;
        } else if (!strcmp(argv[at], "--own-permissions")) {
            own_permissions = true;
        } else if (!strcmp(argv[at], "--private")) {
            is_private = true;
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
    if ((errno = open_root(argv[at])) || !realpath(argv[at], backing)) return perror(argv[at]), 1;
    if (!realpath(argv[at + 1], mountpoint)) return perror(argv[at + 1]), 1;
    if (!strcmp(backing, "/")) *backing = 0;
    clock_gettime(CLOCK_REALTIME, &started);
    make_buffers();
    char options[2 * PATH_MAX + 100];
    mount_options(options);
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
                 pthread_create(&thread, NULL, watch, &signals) || fuse_session_loop_mt(session, NULL);
    while (atomic_flag_test_and_set(&ending)) pause(); // watch() ends the process
    fuse_session_unmount(session);
    return failed ? 1 : 0;
}
