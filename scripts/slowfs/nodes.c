// The files of BACKING the kernel knows, each with an O_PATH descriptor, and open files and directories.
// A node is keyed by (dev, ino); its descriptor keeps the inode number from being used again, so a key never
// changes its meaning while the node lives, whatever is renamed or deleted in BACKING. Never opens to write.
#include "slowfs.h"

#define BUCKETS (1 << 17)
static struct node *table[BUCKETS];
struct node root;
char backing[PATH_MAX];
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;

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
        struct node **at = bucket(node->dev, node->ino);
        while (*at != node) at = &(*at)->next;
        *at = node->next;
    }
    pthread_mutex_unlock(&table_lock);
    if (dead) close(node->fd), free(node);
}

int find_node(struct node *parent, const char *name, struct fuse_entry_param *entry) {
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

void close_handle(struct handle *handle) {
    if (handle->dir) closedir(handle->dir);
    else if (handle->fd >= 0) close(handle->fd);
    pthread_mutex_destroy(&handle->dir_lock);
    free(handle);
}

int open_handle(struct node *node, bool directory, struct fuse_file_info *fi) {
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
