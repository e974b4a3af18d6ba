/* Drives the table of slots without Python and without a mount: threads that stand for the kernel look names up, ask for
 * attributes and forget, while one that stands for Python puts slots in, takes them over and sweeps.
 *
 * Ends with 1 and a line on standard error if the table did what it must not; see driving.h.
 */
#include "driving.h"
#include "plane.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

WRAPPED(void *, mmap, (void *at, size_t size, int prot, int flags, int fd, off_t offset), (at, size, prot, flags, fd, offset),
        MAP_FAILED, ENOMEM)
WRAPPED(int, posix_fallocate, (int fd, off_t offset, off_t size), (fd, offset, size), ENOMEM, ENOMEM)

#define DIRECTORIES 3
#define NAMES 200 /* of a directory: few, so that threads meet at them */
#define KERNELS 3
#define FIRST (UINT64_C(1) << 62)
#define SHARDS 1024    /* each gives out ids of its own */
#define IDS (1 << 19)  /* given out at most */

/* What is written of a slot tells where it belongs: a wrong one is seen wherever it comes from. */
static struct seen seen_of(uint64_t directory, unsigned name, unsigned version) {
    struct seen seen = {.mode = 0100644, .nlink = 1, .inode = directory * 100000 + name, .size = version};
    seen.seconds[2] = version;
    return seen;
}

static size_t name_of(unsigned name, char *into) { return (size_t)sprintf(into, "%0*u", 3 + (int)(name % 50), name); }

static void check(const struct slot *facts, uint64_t directory, unsigned name) {
    if (facts->seen.inode != directory * 100000 + name) fail("another file's attributes");
    if (facts->seen.size != (uint64_t)facts->seen.seconds[2]) fail("attributes of two moments");
    if (!slots_is_id(facts->id)) fail("an id that is none");
}

static long (*held)[1];          /* look-ups that the kernel holds, by id - FIRST */
static long (*python_holds)[1];  /* those that Python has taken over, less what it was told to forget */
static long look_ups, forgotten, taken_over, gone;

struct asked {
    uint64_t directory, id;
    unsigned name;
    int refuse;
};

static int told(const struct slot *facts, void *context) {
    struct asked *asked = context;
    check(facts, asked->directory, asked->name);
    if (facts->id - FIRST >= IDS) fail("more ids than slots were put in");
    asked->id = facts->id;
    if (asked->refuse) return ENOENT;
    __atomic_add_fetch(&held[facts->id - FIRST][0], 1, __ATOMIC_SEQ_CST);
    return 0;
}

static int told_attributes(const struct slot *facts, void *context) {
    if (facts->id != *(uint64_t *)context) fail("attributes of another one");
    return 0;
}

static void forget(uint64_t id, long count, int in_batch, int device) {
    struct {
        struct fuse_in_header header;
        struct fuse_batch_forget_in in;
        struct fuse_forget_one each[3];
    } batch = {.header = {.opcode = FUSE_BATCH_FORGET}, .in.count = 3};
    int done;
    if (in_batch) { /* one that is ours between two that are not */
        batch.each[0] = (struct fuse_forget_one){7, 1};
        batch.each[1] = (struct fuse_forget_one){id, (uint64_t)count};
        batch.each[2] = (struct fuse_forget_one){FIRST - 1, 1};
        size_t size = batch.header.len = sizeof batch;
        if (answer(device, &batch, &size, NULL)) fail("nobody else was to be told");
        done = batch.in.count == 2;
        if (size != sizeof batch - (done ? sizeof batch.each[0] : 0) || batch.header.len != size) fail("a batch of another length");
    } else {
        int is_held;
        done = slots_forget(id, (uint64_t)count, &is_held);
    }
    if (!done) __atomic_sub_fetch(&python_holds[id - FIRST][0], count, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&forgotten, 1, __ATOMIC_RELAXED);
}

static int run = 1;

static void *kernel(void *argument) {
    unsigned seed = *(unsigned *)argument;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair)) fail("socketpair: %s", strerror(errno));
    static __thread char buffer[4096], name[64];
    while (__atomic_load_n(&run, __ATOMIC_ACQUIRE)) {
        struct asked asked = {.directory = 1 + (uint64_t)(rand_r(&seed) % DIRECTORIES), .name = (unsigned)rand_r(&seed) % NAMES};
        asked.refuse = rand_r(&seed) % 16 == 0;
        size_t size = name_of(asked.name, name);
        if (rand_r(&seed) % 4 == 0) { /* what nobody has seen yet, cut anywhere */
            struct fuse_in_header *header = (void *)buffer;
            static const uint32_t opcodes[] = {FUSE_LOOKUP, FUSE_GETATTR, FUSE_FORGET, FUSE_BATCH_FORGET, FUSE_IOCTL};
            size_t length = sizeof *header + (size_t)rand_r(&seed) % 200;
            for (size_t i = 0; i < length; i++) buffer[i] = (char)rand_r(&seed);
            header->opcode = opcodes[rand_r(&seed) % 5], header->unique = 2, header->nodeid = (uint64_t)(rand_r(&seed) % 8);
            size_t left = length;
            answer(pair[0], buffer, &left, NULL);
            if (left > length) fail("a request has grown");
            while (recv(pair[1], buffer, sizeof buffer, MSG_DONTWAIT) > 0) continue;
            continue;
        }
        if (!slots_look_up(asked.directory, name, size, monotonic_ns(), told, &asked)) continue;
        __atomic_add_fetch(&look_ups, 1, __ATOMIC_RELAXED);
        slots_attributes(asked.id, monotonic_ns(), told_attributes, &asked.id);
        slots_seen(asked.directory, name, size, monotonic_ns(), NULL);
        long now = __atomic_load_n(&held[asked.id - FIRST][0], __ATOMIC_SEQ_CST);
        if (asked.refuse || now < 1 || rand_r(&seed) % 2) continue;
        if (__atomic_compare_exchange_n(&held[asked.id - FIRST][0], &now, now - 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            forget(asked.id, 1, rand_r(&seed) % 2, pair[0]);
    }
    close(pair[0]), close(pair[1]);
    return NULL;
}

static void took(struct slot *slot) {
    unsigned name = (unsigned)(slot->seen.inode % 100000);
    char text[64];
    if (name_of(name, text) != slot->name_size || memcmp(text, slot->name, slot->name_size)) fail("another one's name");
    check(slot, slot->directory, name);
    __atomic_add_fetch(&python_holds[slot->id - FIRST][0], slot->lookups, __ATOMIC_SEQ_CST);
    taken_over++;
    slots_free(slot);
}

static long put;

static void sweep(void) {
    struct slot *taken[64];
    size_t count = slots_sweep(monotonic_ns(), NAMES, taken, 64);
    for (size_t i = 0; i < count; i++) {
        if (!slots_is_id(taken[i]->id) || taken[i]->lookups) fail("swept: no slot, or one that is held");
        slots_free(taken[i]);
    }
    gone += (long)count;
}

static void change_something(unsigned *seed) {
    struct slot *slot;
    uint64_t directory = 1 + (uint64_t)(rand_r(seed) % DIRECTORIES);
    unsigned name = (unsigned)rand_r(seed) % NAMES;
    char text[64];
    size_t size = name_of(name, text);
    int error = 0;
    switch (rand_r(seed) % 8) {
    case 0:
        if ((slot = slots_take(directory, text, size))) took(slot);
        break;
    case 1:
        if ((slot = slots_take_id(FIRST + (uint64_t)rand_r(seed) % (uint64_t)(put + 1)))) took(slot);
        break;
    case 2: sweep(); break;
    default: {
        struct seen seen = seen_of(directory, name, (unsigned)rand_r(seed) % 3);
        int64_t until_ns = rand_r(seed) % 4 ? INT64_MAX : monotonic_ns() + rand_r(seed) % 1000000;
        uint64_t id;
        error = slots_put(directory, text, size, &seen, 0, until_ns, &id);
        put += !error;
        if (error == EEXIST || error == ESTALE) error = 0;
    }
    }
    if (error && error != ENOENT) fail("%s", strerror(error));
}

static int is_wanted(int64_t end_ns) {
    return monotonic_ns() < end_ns || !HAVE_HAPPENED(&look_ups, &forgotten, &taken_over, &gone);
}

/* Until so many were put in that a shard may have given out the ids that are counted here, or the time is over and all was
 * tried. */
static void round_of(int64_t end_ns, unsigned *seed) {
    struct slot *slot;
    pthread_t kernels[KERNELS];
    unsigned seeds[KERNELS];
    put = 0;
    memset(held, 0, IDS * sizeof *held);
    memset(python_holds, 0, IDS * sizeof *python_holds);
    slots_begin(FIRST);
    __atomic_store_n(&run, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < KERNELS; i++) {
        seeds[i] = (unsigned)rand_r(seed);
        pthread_create(&kernels[i], NULL, kernel, &seeds[i]);
    }
    while (put < IDS / SHARDS && is_wanted(end_ns)) change_something(seed);
    __atomic_store_n(&run, 0, __ATOMIC_RELEASE);
    for (int i = 0; i < KERNELS; i++) pthread_join(kernels[i], NULL);
    for (uint64_t id = FIRST; id < FIRST + IDS; id++)
        if ((slot = slots_take_id(id))) took(slot);
    for (size_t i = 0; i < IDS; i++)
        if (held[i][0] != python_holds[i][0]) fail("%ld look-ups are held, %ld are counted", held[i][0], python_holds[i][0]);
    if (slots_count() || slots_held()) fail("slots are left");
}

/* An ioctl, of which the first `size` bytes are there, goes to Python (1), or is answered that there is none. */
static void ask_ioctl(uint32_t cmd, uint32_t flags, size_t size, int is_pythons) {
    struct {
        struct fuse_in_header header;
        struct fuse_ioctl_in in;
    } whole = {.header = {.opcode = FUSE_IOCTL, .unique = 8, .nodeid = 1, .len = (uint32_t)size}, .in = {.cmd = cmd, .flags = flags}};
    struct fuse_in_header *request = __real_malloc(size); /* what lies behind it is not touched */
    struct fuse_out_header reply = {0};
    int pair[2];
    if (!request || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair)) fail("socketpair: %s", strerror(errno));
    memcpy(request, &whole, size);
    size_t left = size;
    if (answer(pair[0], request, &left, NULL) == is_pythons) fail("ioctl %x, flags %x: it is somebody else's", cmd, flags);
    ssize_t got = recv(pair[1], &reply, sizeof reply, 0);
    if (is_pythons ? got >= 0 || left != size : got != sizeof reply || reply.unique != 8 || reply.error != -ENOSYS)
        fail("ioctl %x, flags %x: it was told something else", cmd, flags);
    close(pair[0]), close(pair[1]);
    free(request);
}

static void ask_ioctls(void) {
    size_t header = sizeof(struct fuse_in_header), whole = header + sizeof(struct fuse_ioctl_in);
    ask_ioctl(0x5401, 0, whole, 0); /* TCGETS: whether it is a terminal */
    ask_ioctl(0x5401, FUSE_IOCTL_DIR, whole, 0);
    ask_ioctl(TUNNEL_EXCHANGE, 0, whole, 0);
    ask_ioctl(TUNNEL_EXCHANGE, FUSE_IOCTL_DIR, whole, 1);
    for (size_t size = header; size < whole; size++) ask_ioctl(TUNNEL_EXCHANGE, FUSE_IOCTL_DIR, size, 0);
}

static void fuzz(double seconds, unsigned seed) {
    ask_ioctls();
    held = __real_calloc(IDS, sizeof *held);
    python_holds = __real_calloc(IDS, sizeof *python_holds);
    if (!held || !python_holds) fail("no memory");
    long rounds = 0;
    for (int64_t end_ns = monotonic_ns() + (int64_t)(seconds * 1e9); is_wanted(end_ns); rounds++) round_of(end_ns, &seed);
    printf("%ld rounds: %ld answered, %ld forgotten, %ld taken, %ld swept\n", rounds, look_ups, forgotten, taken_over, gone);
    slots_begin(0);
    free(held), free(python_holds);
}

static int new_memory(uint64_t directory) {
    fail("a slot of %llu in memory that is new", (unsigned long long)directory);
    return 0;
}

static int once(void) {
    char text[64];
    slots_begin(FIRST);
    int error = slots_attach(-1, 0, new_memory);
    for (unsigned name = 0; name < 3000 && !error; name++) { /* shards grow */
        struct seen seen = seen_of(1, name, 1);
        uint64_t id;
        error = slots_put(1, text, name_of(name, text), &seen, 0, INT64_MAX, &id);
    }
    slots_begin(0);
    if (slots_count()) fail("slots are left");
    return error;
}

int main(int count, char **arguments) { return drive(count, arguments, fuzz, once); }
