/* Python that takes nothing: a part of fetch_driver.c, behind all that it uses. */
#include <sys/mman.h>

static struct beat *beats;

static int waits(int wanted) { return (__atomic_load_n(&beats[1].turns, __ATOMIC_ACQUIRE) & 3) == (uint64_t)wanted; }

static void send_request(uint32_t opcode, uint64_t unique, const void *in, size_t in_size) {
    char request[128];
    struct fuse_in_header header = {.opcode = opcode, .unique = unique, .nodeid = DIRECTORY, .pid = 1};
    header.len = (uint32_t)(sizeof header + in_size);
    memcpy(request, &header, sizeof header);
    memcpy(request + sizeof header, in, in_size);
    if (send(ends[1], request, header.len, 0) != (ssize_t)header.len) fail("send: %s", strerror(errno));
}

/* A thread that hands on what was interrupted, and finds no room for it, says that it waits: it is not hung. */
static void full_queue(void) {
    static char large[(4 << 20) / 64 - 8];
    unsigned seed = 5;
    int memory = open("beats", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (memory < 0 || ftruncate(memory, 4096)) fail("beats: %s", strerror(errno));
    beats = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (beats == MAP_FAILED) fail("mmap: %s", strerror(errno));
    if (begin() || delegate() || fcntl(ends[0], F_SETFL, O_NONBLOCK)) fail("it does not start");
    write_file(0, &seed);
    set_hangs(1);
    if (threads_beat_in(memory) || threads_start(ends[0], 1)) fail("no thread");
    send_request(FUSE_LOOKUP, 2, "f0", 3);
    until(hang_now, 1, "it waits for the source");
    for (int i = 0; i < 64; i++) queue_put(large, sizeof large);
    send_request(FUSE_INTERRUPT, 3, &(struct fuse_interrupt_in){.unique = 2}, sizeof(struct fuse_interrupt_in));
    until(waits, BEAT_WAITS, "it waits for Python");
    for (int i = 0; i < 64; i++)
        if (queue_take(large, sizeof large) != sizeof large) fail("another request");
    until(waits, BEAT_SLEEPS, "it goes on");
    for (uint64_t unique = 2; unique < 4; unique++)
        if (queue_take(large, sizeof large) <= 0 || ((struct fuse_in_header *)(void *)large)->unique != unique) fail("not %d", (int)unique);
    threads_stop();
    set_hangs(0);
    end(1);
    close_all();
}
