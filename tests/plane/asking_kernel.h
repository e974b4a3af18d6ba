/* The kernel's side of the connection: requests that wait for their one answer, pages that a READ has locked meanwhile, and
 * pushes, which would wait for these. Linked with --wrap=writev. */
#include <pthread.h>
#include <sys/uio.h>

#define PENDING 64
#define PATIENCE_S 20

static int ends[2]; /* of the connection: the daemon's, the kernel's */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t more;
    uint64_t unique;
    struct {
        uint64_t unique; /* 0: free */
        uint64_t locks;  /* the node whose pages a READ has locked until it is answered; 0: it is none */
        int answers, error;
        size_t size;
        char *body;
    } pending[PENDING];
} kernel = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};

static size_t asks(uint64_t *unique, uint64_t locks) {
    pthread_mutex_lock(&kernel.lock);
    for (size_t i = 0;; i = (i + 1) % PENDING) {
        if (kernel.pending[i].unique) continue;
        *unique = kernel.pending[i].unique = kernel.unique += 2;
        kernel.pending[i].locks = locks;
        kernel.pending[i].answers = 0;
        kernel.pending[i].body = NULL;
        pthread_mutex_unlock(&kernel.lock);
        return i;
    }
}

static void answered_with(uint64_t unique, int error, const void *body, size_t size) {
    pthread_mutex_lock(&kernel.lock);
    for (size_t i = 0; i < PENDING; i++) {
        if (kernel.pending[i].unique != unique) continue;
        if (kernel.pending[i].answers++) fail("request %llu was answered twice", (unsigned long long)unique);
        kernel.pending[i].error = error;
        kernel.pending[i].size = size;
        kernel.pending[i].body = malloc(size + 1);
        memcpy(kernel.pending[i].body, body, size);
        pthread_cond_broadcast(&kernel.more);
        pthread_mutex_unlock(&kernel.lock);
        return;
    }
    fail("an answer to request %llu, which nobody waits for", (unsigned long long)unique);
}

/* What was answered; NULL: an error. The caller frees it. */
static char *answer_to(size_t slot, size_t *size) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    pthread_mutex_lock(&kernel.lock);
    while (!kernel.pending[slot].answers)
        if (pthread_cond_timedwait(&kernel.more, &kernel.lock, &until)) fail("request %llu was never answered", (unsigned long long)kernel.pending[slot].unique);
    char *body = kernel.pending[slot].body;
    *size = kernel.pending[slot].size;
    if (kernel.pending[slot].error) free(body), body = NULL;
    kernel.pending[slot].unique = 0;
    pthread_mutex_unlock(&kernel.lock);
    return body;
}

static _Thread_local int reads_requests;

/* A push, as the kernel takes it: it would sleep as long as one of the pages is locked. */
static void pushes(uint64_t node) {
    if (reads_requests) fail("a thread that reads requests pushes");
    pthread_mutex_lock(&kernel.lock);
    for (size_t i = 0; i < PENDING; i++)
        if (kernel.pending[i].unique && kernel.pending[i].locks == node && !kernel.pending[i].answers) fail("a push waits for a READ");
    pthread_mutex_unlock(&kernel.lock);
}

ssize_t __real_writev(int fd, const struct iovec *parts, int count);
ssize_t __wrap_writev(int fd, const struct iovec *parts, int count);
ssize_t __wrap_writev(int fd, const struct iovec *parts, int count) {
    const struct fuse_out_header *header = parts->iov_base;
    if (!header->unique) pushes(((struct fuse_notify_store_out *)parts[1].iov_base)->nodeid);
    return __real_writev(fd, parts, count);
}

/* As a thread of the data plane does with what it has read. */
static void handle(void *request, size_t size, char *buffer) {
    reads_requests = 1;
    if (!answer(ends[0], request, &size, buffer)) queue_put(request, size);
    reads_requests = 0;
}
