/* Drives the data plane without Python and without a mount: a socket pair stands for the connection, and this program
 * for the kernel on one side of the plane and for Python on the other.
 *
 * Ends with 1 and a line on standard error if the plane did what it must not; see driving.h.
 */
#include "driving.h"
#include "plane.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define NODES 64       /* few, so that threads meet at them */
#define HANDLES 4096   /* open at most */
#define OBJECT_BYTES 10000
#define READERS 3      /* threads that stand for the kernel */
#define PLANE_THREADS 3
#define UNDER_WAY 64    /* requests at a time: a socket that has no room for a reply loses it, which the kernel never does */
#define READ_BYTES 2000

/* ---- calls that fail ---------------------------------------------------------------------------------------------- */

WRAPPED(void *, mmap, (void *at, size_t size, int prot, int flags, int fd, off_t offset),
        (at, size, prot, flags, fd, offset), MAP_FAILED, ENOMEM)
WRAPPED(int, eventfd, (unsigned count, int flags), (count, flags), -1, EMFILE)
WRAPPED(int, epoll_create1, (int flags), (flags), -1, EMFILE)
WRAPPED(int, epoll_ctl, (int events, int op, int fd, struct epoll_event *event), (events, op, fd, event), -1, ENOSPC)
WRAPPED(int, pthread_create, (pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument),
        (thread, attributes, run, argument), EAGAIN, EAGAIN)

/* ---- the kernel --------------------------------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    int fd;                     /* the kernel's end of the connection */
    uint64_t unique;
    struct {                    /* what was asked, by unique % HANDLES */
        uint64_t unique, node, offset;
        uint32_t opcode, size;
        int answers;            /* by the plane or by Python: one, and no more */
    } asked[HANDLES];
    uint64_t open[HANDLES];     /* the nodes of open handles; 0: free */
    uint64_t handles[HANDLES];
    int under_way, opened;
    long answered, forwarded;
} kernel = {.lock = PTHREAD_MUTEX_INITIALIZER};

static long open_of[NODES + 1];       /* handles that the kernel has open, by node; with the kernel's lock */
static long counted_of[NODES + 1];    /* those that Python counts; touched by Python alone */

static int run_kernel = 1;

struct request {
    struct fuse_in_header header;
    union {
        struct fuse_open_in open;
        struct fuse_release_in release;
        struct fuse_read_in read;
        char bytes[64];
    } in;
};

static void send_request(unsigned *seed) {
    struct request request;
    memset(&request, 0, sizeof request);
    size_t size = sizeof request.header;
    uint64_t node = 1 + (uint64_t)(rand_r(seed) % NODES);
    pthread_mutex_lock(&kernel.lock);
    if (kernel.under_way >= UNDER_WAY) {
        pthread_mutex_unlock(&kernel.lock);
        sched_yield();
        return;
    }
    request.header.unique = kernel.unique += 2;
    request.header.pid = 1;
    size_t slot = request.header.unique / 2 % HANDLES;
    if (kernel.asked[slot].unique && !kernel.asked[slot].answers) { /* this one waits for very long */
        pthread_mutex_unlock(&kernel.lock);
        return;
    }
    int kind = kernel.opened < HANDLES / 2 ? rand_r(seed) % 16 : 8;
    if (kind < 8) {
        request.header.opcode = FUSE_OPEN;
        request.in.open.flags = rand_r(seed) % 16 ? O_RDONLY : O_RDWR;
        size += sizeof request.in.open;
    } else if (kind < 15) {
        size_t which = (size_t)rand_r(seed) % HANDLES, tries = HANDLES;
        while (!kernel.open[which] && --tries) which = (which + 1) % HANDLES;
        if (!kernel.open[which]) {
            pthread_mutex_unlock(&kernel.lock);
            return;
        }
        node = kernel.open[which];
        request.header.opcode = FUSE_RELEASE;
        request.in.release.fh = kernel.handles[which];
        kernel.open[which] = 0;
        kernel.opened--;
        open_of[node]--;
        size += sizeof request.in.release;
    } else if (rand_r(seed) % 4) {
        request.header.opcode = FUSE_READ;
        request.in.read.offset = (uint64_t)(rand_r(seed) % (2 * OBJECT_BYTES));
        request.in.read.size = (uint32_t)(rand_r(seed) % READ_BYTES);
        size += sizeof request.in.read;
    } else { /* what nobody has seen yet, cut anywhere */
        request.header.opcode = (uint32_t)(100 + rand_r(seed) % 100);
        for (size_t i = 0; i < sizeof request.in.bytes; i++) request.in.bytes[i] = (char)rand_r(seed);
        size += (size_t)rand_r(seed) % sizeof request.in.bytes;
    }
    request.header.nodeid = node;
    request.header.len = (uint32_t)size;
    kernel.asked[slot].unique = request.header.unique;
    kernel.asked[slot].node = node;
    kernel.asked[slot].opcode = request.header.opcode;
    kernel.asked[slot].offset = request.in.read.offset;
    kernel.asked[slot].size = request.in.read.size;
    kernel.asked[slot].answers = 0;
    kernel.under_way++;
    int fd = kernel.fd;
    pthread_mutex_unlock(&kernel.lock);
    if (send(fd, &request, size, 0) != (ssize_t)size) fail("the connection takes no request: %s", strerror(errno));
}

static void opened(uint64_t node, uint64_t handle) { /* with the lock */
    for (size_t i = 0; i < HANDLES; i++) {
        if (kernel.open[i]) continue;
        kernel.open[i] = node;
        kernel.handles[i] = handle;
        kernel.opened++;
        open_of[node]++;
        return;
    }
    fail("more handles are open than requests were sent");
}

static void settle(uint64_t unique, int by_python) { /* with the lock */
    size_t slot = unique / 2 % HANDLES;
    if (kernel.asked[slot].unique != unique) fail("an answer to a request that nobody has sent: %llu", (long long)unique);
    if (kernel.asked[slot].answers++) fail("a request was answered twice");
    kernel.under_way--;
    if (by_python)
        __atomic_add_fetch(&kernel.forwarded, 1, __ATOMIC_RELAXED);
    else
        __atomic_add_fetch(&kernel.answered, 1, __ATOMIC_RELAXED);
}

static unsigned char byte_at(uint64_t offset) { return (unsigned char)(offset * 7 + offset / 256); }

static void check_bytes(uint64_t offset, size_t asked, const unsigned char *bytes, size_t size) {
    size_t there = offset < OBJECT_BYTES ? OBJECT_BYTES - (size_t)offset : 0;
    if (size != (asked < there ? asked : there)) fail("%zu bytes for a read of %zu at %zu", size, asked, (size_t)offset);
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != byte_at(offset + i)) fail("a wrong byte at %zu", (size_t)offset + i);
}

static void take_replies(void) {
    static __thread struct {
        struct fuse_out_header header;
        union {
            uint64_t handle;
            unsigned char bytes[READ_BYTES];
        };
    } reply;
    ssize_t size;
    while ((size = recv(kernel.fd, &reply, sizeof reply, MSG_DONTWAIT)) > 0) {
        pthread_mutex_lock(&kernel.lock);
        if ((size_t)size != reply.header.len) fail("a reply of another length than it says");
        size_t slot = reply.header.unique / 2 % HANDLES;
        settle(reply.header.unique, 0);
        if (kernel.asked[slot].opcode == FUSE_OPEN) {
            if (reply.handle != kernel.asked[slot].node + 1000) fail("another node's handle");
            opened(kernel.asked[slot].node, reply.handle);
        } else if (kernel.asked[slot].opcode == FUSE_READ) {
            check_bytes(kernel.asked[slot].offset, kernel.asked[slot].size, reply.bytes, (size_t)size - sizeof reply.header);
        } else if (kernel.asked[slot].opcode != FUSE_RELEASE) {
            fail("an answer to what only Python knows");
        }
        pthread_mutex_unlock(&kernel.lock);
    }
}

static void *ask(void *argument) {
    unsigned seed = *(unsigned *)argument;
    while (__atomic_load_n(&run_kernel, __ATOMIC_ACQUIRE)) {
        send_request(&seed);
        take_replies();
    }
    return NULL;
}

/* ---- Python ------------------------------------------------------------------------------------------------------- */

/* One request of the queue, as Python answers it. 0: there was none. */
static int answer_in_python(void) {
    static char request[PLANE_REQUEST_BYTES];
    ssize_t size = queue_take(request, sizeof request);
    if (size == -EAGAIN) return 0;
    if (size <= 0) fail("the queue ended by itself: %zd", size);
    const struct fuse_in_header *header = (const void *)request;
    const struct fuse_open_in *open_in = (const void *)(header + 1);
    pthread_mutex_lock(&kernel.lock);
    if (size != header->len) fail("a request was cut on its way");
    settle(header->unique, 1);
    if (header->opcode == FUSE_OPEN && open_in->flags == O_RDONLY) {
        opened(header->nodeid, header->nodeid + 1000);
        counted_of[header->nodeid]++;
    } else if (header->opcode == FUSE_RELEASE) {
        counted_of[header->nodeid]--;
    }
    pthread_mutex_unlock(&kernel.lock);
    return 1;
}

static int object_fd = -1;

static void make_object(void) { /* on a disk: what lies in memory alone cannot be read without waiting */
    char path[] = "objectXXXXXX";
    unsigned char bytes[OBJECT_BYTES];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = byte_at(i);
    object_fd = mkstemp(path);
    if (object_fd < 0 || unlink(path) || write(object_fd, bytes, sizeof bytes) != sizeof bytes)
        fail("no object: %s", strerror(errno));
}

static void put_reads(uint64_t node) {
    struct stat now;
    struct reads entry = {.entry.node = node, .object.fd = fcntl(object_fd, F_DUPFD_CLOEXEC, 0)};
    if (entry.object.fd < 0 || fstat(object_fd, &now)) fail("no descriptor: %s", strerror(errno));
    entry.object.inode = now.st_ino, entry.object.size = OBJECT_BYTES;
    entry.object.ctime_ns = now.st_ctim.tv_sec * INT64_C(1000000000) + now.st_ctim.tv_nsec;
    int error = reads_put(&entry);
    if (error && error != EEXIST) fail("put reads: %s", strerror(error));
    if (error) close(entry.object.fd);
}

static void put(uint64_t node, unsigned *seed) {
    struct opens entry = {.entry.node = node, .handle = node + 1000, .object.fd = -1};
    entry.until_ns = rand_r(seed) % 8 ? INT64_MAX : monotonic_ns() + rand_r(seed) % 1000000;
    if (rand_r(seed) % 4 == 0) { /* with an object that is not as it should be, or is */
        struct stat now;
        entry.object.fd = object_fd;
        if (fstat(entry.object.fd, &now)) fail("fstat: %s", strerror(errno));
        entry.object.inode = now.st_ino;
        entry.object.size = (uint64_t)now.st_size + (rand_r(seed) % 2 ? 0 : 1);
        entry.object.ctime_ns = now.st_ctim.tv_sec * INT64_C(1000000000) + now.st_ctim.tv_nsec;
    }
    int64_t counter = counts_new(entry.handle);
    if (counter < 0) fail("no counter is left");
    entry.counter = (uint32_t)counter;
    int error = opens_put(&entry);
    if (!error) return;
    if (error != EEXIST) fail("put: %s", strerror(error));
    counts_free(entry.counter);
}

static void take(uint64_t node) {
    struct opens taken;
    if (opens_take(node, &taken)) return;
    counted_of[node] += counts_open(taken.counter);
    counts_free(taken.counter);
}

static void fuzz(double seconds, unsigned seed) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair)) fail("socketpair: %s", strerror(errno));
    setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &(int){UNDER_WAY * 4096}, sizeof(int));
    fcntl(pair[0], F_SETFL, 0); /* the kernel waits until its requests are taken */
    kernel.fd = pair[0];
    make_object();
    int error = counts_attach(-1);
    if (!error) error = queue_open();
    if (!error) error = threads_start(pair[1], PLANE_THREADS);
    if (error) fail("start: %s", strerror(error));
    pthread_t readers[READERS];
    unsigned seeds[READERS];
    for (int i = 0; i < READERS; i++) {
        seeds[i] = seed * 31 + (unsigned)i;
        pthread_create(&readers[i], NULL, ask, &seeds[i]);
    }
    int64_t end_ns = monotonic_ns() + (int64_t)(seconds * 1e9);
    long turns = 0;
    while (monotonic_ns() < end_ns || !HAVE_HAPPENED(&kernel.answered, &kernel.forwarded)) {
        uint64_t node = 1 + (uint64_t)(rand_r(&seed) % NODES);
        switch (rand_r(&seed) % 5) {
        case 3: put_reads(node); break;
        case 4: reads_take(node); break;
        case 0: put(node, &seed); break;
        case 1: take(node); break;
        default:
            while (answer_in_python()) turns++;
        }
    }
    __atomic_store_n(&run_kernel, 0, __ATOMIC_RELEASE);
    for (int i = 0; i < READERS; i++) pthread_join(readers[i], NULL);
    for (int64_t limit_ns = monotonic_ns() + INT64_C(20000000000);;) { /* what is under way comes to its end */
        while (answer_in_python()) turns++;
        take_replies();
        pthread_mutex_lock(&kernel.lock);
        int left = kernel.under_way;
        pthread_mutex_unlock(&kernel.lock);
        if (!left) break;
        if (monotonic_ns() > limit_ns) fail("%d requests were never answered", left);
        struct pollfd events[] = {{kernel.fd, POLLIN, 0}, {queue_event_fd(), POLLIN, 0}};
        poll(events, 2, 100);
    }
    threads_stop();
    uint64_t lost;
    struct event events[256];
    while (events_take(events, 256, &lost)) continue;
    for (uint64_t node = 1; node <= NODES; node++) {
        take(node);
        if (counted_of[node] != open_of[node])
            fail("node %llu: %ld handles are open, %ld are counted", (long long)node, open_of[node], counted_of[node]);
    }
    for (uint64_t node = 1; node <= NODES; node++) reads_take(node);
    if (opens_count() || reads_count()) fail("entries are left");
    struct served *served = malloc(SERVED_READERS * sizeof *served);
    if (!served || served_take(served) != 1) fail("no read was answered, or for somebody else");
    free(served);
    printf("%ld answered, %ld forwarded, %ld turns\n", kernel.answered, kernel.forwarded, turns);
    close(pair[0]), close(pair[1]), close(object_fd);
}

/* ---- every call fails once ---------------------------------------------------------------------------------------- */

/* 0, or an errno of what was refused. Leaves nothing behind in either case. */
static int started(int device) {
    struct opens entry = {.handle = 1, .object.fd = -1, .until_ns = INT64_MAX}, taken;
    int error = counts_attach(-1);
    if (!error) error = queue_open();
    if (error) return error;
    error = threads_start(device, 2);
    if (error) {
        if (threads_running()) fail("threads run after a start that failed");
        return error;
    }
    for (entry.entry.node = 1; entry.entry.node < 1500 && !error; entry.entry.node++) error = opens_put(&entry); /* some shards grow */
    for (uint64_t node = 1; node < 1500; node++) opens_take(node, &taken);
    if (opens_count()) fail("entries are left");
    threads_stop();
    return error;
}

static int once(void) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair)) fail("socketpair: %s", strerror(errno));
    int error = started(pair[1]);
    close(pair[0]), close(pair[1]);
    return error;
}

int main(int count, char **arguments) { return drive(count, arguments, fuzz, once); }
