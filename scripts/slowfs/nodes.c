// The files of BACKING the kernel knows, each with an O_PATH descriptor, and open files and directories.
// A node is keyed by (dev, ino); its descriptor keeps the inode number from being used again, so a key never
// changes its meaning while the node lives, whatever is renamed or deleted in BACKING. Where there may be fewer
// descriptors than files, the nodes of further files have a file handle instead (root only), which says the same.
// Never opens to write.
#include "slowfs.h"
#include <sys/resource.h>

#define BUCKETS (1 << 17)
static struct node *table[BUCKETS];
struct node root;
char backing[PATH_MAX];
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static u64 descriptors, descriptors_limit; // of nodes; guarded by table_lock, and constant
static int handles_fd;                     // what file handles are relative to

int open_root(const char *path) {
    struct rlimit files = {1 << 20, 1 << 20};
    if (setrlimit(RLIMIT_NOFILE, &files)) {
        getrlimit(RLIMIT_NOFILE, &files);
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    descriptors_limit = files.rlim_cur / 2; // the others are for open files
    struct stat st;
    root.fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    handles_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root.fd < 0 || handles_fd < 0 || fstat(root.fd, &st) < 0) return errno;
    root.dev = st.st_dev, root.ino = st.st_ino;
    return 0;
}

#define HANDLE_BYTES 128 // MAX_HANDLE_SZ, which needs its own word of room in front
struct name_of_file {
    struct file_handle handle;
    unsigned char bytes[HANDLE_BYTES];
};

// NULL: there is none, or it could not be opened again.
static struct name_of_file *name_by(int fd) {
    struct name_of_file *name = calloc(1, sizeof *name);
    int mount, again = -1;
    if (!name) return NULL;
    name->handle.handle_bytes = HANDLE_BYTES;
    if (name_to_handle_at(fd, "", &name->handle, &mount, AT_EMPTY_PATH) == 0)
        again = open_by_handle_at(handles_fd, &name->handle, O_PATH | O_CLOEXEC);
    if (again < 0) return free(name), NULL;
    return close(again), name;
}

static bool named(const struct node *node, int fd) {
    struct name_of_file *name = name_by(fd);
    bool same = name && !memcmp(name, node->name, sizeof *name);
    return free(name), same;
}

int take_fd(struct node *node) {
    return node->name ? open_by_handle_at(handles_fd, &node->name->handle, O_PATH | O_CLOEXEC) : node->fd;
}

void give_fd(struct node *node, int fd) {
    int error = errno;
    if (node->name && fd >= 0) close(fd);
    errno = error;
}

struct node *node_of(fuse_ino_t ino) { return ino == FUSE_ROOT_ID ? &root : (struct node *)ino; }

static struct node **bucket(dev_t dev, ino_t ino) {
    return &table[((u64)ino * 0x9E3779B97F4A7C15ull ^ (u64)dev * 0xC2B2AE3D27D4EB4Full) >> 47];
}

void forget_node(fuse_ino_t ino, u64 count) {
    if (ino == FUSE_ROOT_ID || ino == CONTROL_INO) return;
    struct node *node = node_of(ino);
    pthread_mutex_lock(&table_lock);
    bool dead = (node->lookups -= count) == 0;
    if (dead) {
        descriptors -= !node->name;
        struct node **at = bucket(node->dev, node->ino);
        while (*at != node) at = &(*at)->next;
        *at = node->next;
    }
    pthread_mutex_unlock(&table_lock);
    if (!dead) return;
    if (node->name) free(node->name);
    else close(node->fd);
    free(node);
}

int find_node(int parent, const char *name, struct fuse_entry_param *entry) {
    int fd = openat(parent, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return errno;
    if (fstatat(fd, "", &entry->attr, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) < 0) {
        int error = errno;
        return close(fd), error;
    }
    struct node **at = bucket(entry->attr.st_dev, entry->attr.st_ino), *node;
    pthread_mutex_lock(&table_lock);
    for (node = *at; node; node = node->next)
        if (node->dev == entry->attr.st_dev && node->ino == entry->attr.st_ino && (!node->name || named(node, fd))) break;
    if (!node && (node = calloc(1, sizeof *node))) {
        *node = (struct node){.next = *at, .dev = entry->attr.st_dev, .ino = entry->attr.st_ino, .fd = fd, .size = -1};
        if (descriptors >= descriptors_limit && S_ISREG(entry->attr.st_mode) && node->dev == root.dev)
            node->name = name_by(fd);
        if (!node->name) descriptors++, fd = -1;
        *at = node;
    }
    if (node) node->lookups++;
    pthread_mutex_unlock(&table_lock);
    if (fd >= 0) close(fd);
    entry->ino = (fuse_ino_t)node;
    return node ? 0 : ENOMEM;
}

void close_handle(struct handle *handle) {
    if (handle->dir) closedir(handle->dir);
    else if (handle->fd >= 0) close(handle->fd);
    pthread_mutex_destroy(&handle->dir_lock);
    free(handle);
}

int open_handle(struct node *node, int node_fd, bool directory, struct fuse_file_info *fi) {
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", node_fd);
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
    stamp(&st); // a client knows no other times
    fi->direct_io = !directory && (setting[HIDDEN_PERCENT] || setting[READ_MOST]); // else the kernel would cut
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
