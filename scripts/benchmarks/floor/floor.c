/* The floor: a FUSE server in C that promises nothing. It shows a folder as it was when it was mounted, has every answer
 * in memory, and lets the kernel keep names, attributes and pages for ever. What a cache does beside is not here.
 *
 *   floor SRC MOUNTPOINT THREADS [CACHE]
 *
 * With CACHE it does at the first open of a file what a cache cannot do without: reads it, computes its checksum, writes it
 * to a file there, and pushes it into the page cache of the mount.
 *
 * Compiled and mounted by scripts/benchmarks/planes_floor.py; runs in the foreground until it is unmounted.
 */
#define FUSE_USE_VERSION 314
#define _GNU_SOURCE
#include <fuse_lowlevel.h>

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define MOST_NODES (1 << 17)
#define BUCKETS (1 << 18)
#define FOR_EVER 86400.0
#define READ_BYTES (1 << 20)

struct node {
    const char *path, *name; /* absolute; its last part */
    size_t parent;           /* index in nodes */
    struct stat st;
    size_t next;             /* of the same bucket */
    int is_fetched;
    uint64_t checksum;
};

static struct node nodes[MOST_NODES]; /* from FUSE_ROOT_ID on: the index is the node id */
static size_t node_count = FUSE_ROOT_ID, buckets[BUCKETS];
static __thread char *buffer;
static struct fuse_session *session;
static int cache = -1;

static size_t hashed(size_t parent, const char *name) {
    size_t value = parent * 31;
    while (*name) value = value * 33 ^ (unsigned char)*name++;
    return value % BUCKETS;
}

static size_t find(size_t parent, const char *name) {
    size_t node = buckets[hashed(parent, name)];
    while (node && (nodes[node].parent != parent || strcmp(nodes[node].name, name))) node = nodes[node].next;
    return node;
}

static size_t find_path(const char *path) { /* of a folder, which is entered before what lies in it */
    for (size_t node = node_count; node-- > FUSE_ROOT_ID;)
        if (S_ISDIR(nodes[node].st.st_mode) && !strcmp(nodes[node].path, path)) return node;
    return 0;
}

static int enter(const char *path, const struct stat *st, int type, struct FTW *place) {
    (void)type;
    if (node_count == MOST_NODES) return ENOSPC;
    struct node *node = &nodes[node_count];
    node->path = strdup(path);
    node->name = node->path + place->base;
    node->st = *st;
    node->st.st_ino = node_count;
    if (place->level) {
        char *folder = strndup(path, (size_t)place->base - 1);
        node->parent = find_path(folder);
        free(folder);
        size_t bucket = hashed(node->parent, node->name);
        node->next = buckets[bucket];
        buckets[bucket] = node_count;
    }
    node_count++;
    return 0;
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name) {
    size_t node = find(parent, name);
    struct fuse_entry_param entry = {.ino = node, .entry_timeout = FOR_EVER, .attr_timeout = FOR_EVER};
    if (node) entry.attr = nodes[node].st;
    fuse_reply_entry(req, &entry);
}

static void op_getattr(fuse_req_t req, fuse_ino_t node, struct fuse_file_info *fi) {
    (void)fi;
    fuse_reply_attr(req, &nodes[node].st, FOR_EVER);
}

static int store(size_t node, const char *data, size_t size) {
    char folder[8], name[32];
    snprintf(folder, sizeof folder, "%02x", (unsigned)(node & 0xff));
    snprintf(name, sizeof name, "%s/%zu", folder, node);
    int fd = openat(cache, name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 && errno == ENOENT && (!mkdirat(cache, folder, 0700) || errno == EEXIST))
        fd = openat(cache, name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return errno;
    int error = pwrite(fd, data, size, 0) == (ssize_t)size ? 0 : EIO;
    close(fd);
    return error;
}

/* Before the reply to its open: a READ that waits for a page would wait for this thread. */
static int fetch(size_t node) {
    struct stat before, after;
    if (!buffer) buffer = malloc(READ_BYTES);
    int fd = open(nodes[node].path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || !buffer || fstat(fd, &before)) return EIO;
    ssize_t got = pread(fd, buffer, READ_BYTES, 0);
    int error = got < 0 || fstat(fd, &after) || after.st_size != got || before.st_mtime != after.st_mtime ? EIO : 0;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    if (error) return error;
    nodes[node].checksum = XXH3_64bits(buffer, (size_t)got);
    error = store(node, buffer, (size_t)got);
    struct fuse_bufvec pages = FUSE_BUFVEC_INIT((size_t)got);
    pages.buf[0].mem = buffer;
    fuse_lowlevel_notify_store(session, node, 0, &pages, 0);
    return error;
}

static void op_open(fuse_req_t req, fuse_ino_t node, struct fuse_file_info *fi) {
    if (cache >= 0 && !__atomic_exchange_n(&nodes[node].is_fetched, 1, __ATOMIC_RELAXED)) {
        int error = fetch(node);
        if (error) {
            fuse_reply_err(req, error);
            return;
        }
    }
    int fd = nodes[node].st.st_size > READ_BYTES ? open(nodes[node].path, O_RDONLY | O_CLOEXEC) : -1;
    fi->fh = (uint64_t)(fd + 1);
    fi->keep_cache = 1;
    fuse_reply_open(req, fi);
}

static void op_read(fuse_req_t req, fuse_ino_t node, size_t size, off_t offset, struct fuse_file_info *fi) {
    if (!buffer) buffer = malloc(READ_BYTES);
    int fd = fi->fh ? (int)fi->fh - 1 : open(nodes[node].path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 || !buffer ? -1 : pread(fd, buffer, size < READ_BYTES ? size : READ_BYTES, offset);
    if (got < 0)
        fuse_reply_err(req, errno);
    else
        fuse_reply_buf(req, buffer, (size_t)got);
    if (fd >= 0 && !fi->fh) close(fd);
}

static void op_release(fuse_req_t req, fuse_ino_t node, struct fuse_file_info *fi) {
    (void)node;
    if (fi->fh) close((int)fi->fh - 1);
    fuse_reply_err(req, 0);
}

static void op_init(void *userdata, struct fuse_conn_info *conn) {
    (void)userdata;
    conn->want &= ~(FUSE_CAP_SPLICE_READ | FUSE_CAP_AUTO_INVAL_DATA);
    conn->want |= conn->capable & FUSE_CAP_PARALLEL_DIROPS;
}

static const struct fuse_lowlevel_ops operations = {
    .init = op_init, .lookup = op_lookup, .getattr = op_getattr, .open = op_open, .read = op_read, .release = op_release,
};

int main(int count, char **arguments) {
    if (count != 4 && count != 5) {
        fprintf(stderr, "floor SRC MOUNTPOINT THREADS [CACHE]\n");
        return 2;
    }
    if (count == 5) cache = open(arguments[4], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = nftw(arguments[1], enter, 64, FTW_PHYS);
    if (error) {
        fprintf(stderr, "floor: %s: %s\n", arguments[1], strerror(error > 0 ? error : errno));
        return 1;
    }
    struct fuse_args options = FUSE_ARGS_INIT(0, NULL);
    fuse_opt_add_arg(&options, "floor");
    fuse_opt_add_arg(&options, "-oro,fsname=floor,subtype=floor");
    session = fuse_session_new(&options, &operations, sizeof operations, NULL);
    if (!session || fuse_session_mount(session, arguments[2])) return 1;
    struct fuse_loop_config *config = fuse_loop_cfg_create();
    fuse_loop_cfg_set_clone_fd(config, 0);
    fuse_loop_cfg_set_max_threads(config, (unsigned)atoi(arguments[3]));
    fuse_loop_cfg_set_idle_threads(config, (unsigned)atoi(arguments[3]));
    int failed = fuse_session_loop_mt(session, config);
    fuse_loop_cfg_destroy(config);
    fuse_session_unmount(session);
    fuse_session_destroy(session);
    fuse_opt_free_args(&options);
    return failed != 0;
}
