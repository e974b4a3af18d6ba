/* Drives the pipeline of small files without Python and without a mount: threads that stand for the kernel look up, open,
 * read and close files, while one that stands for Python delegates directories, takes slots, owns names, grants room, gives
 * threads up and evicts, and one replaces files at the source.
 *
 * A file's first bytes say what all its others are, so bytes of two versions are never right; its mtime is a number that
 * grows, so a look-up of after a recall is never answered with what was before it. Ends with 1 and a line on standard error
 * if a byte was wrong, an answer too old, a request answered twice or never, or if a push could have waited for its own
 * thread or for a READ; see driving.h. Besides:
 *
 *   driver late      room for an object is granted a moment too late
 *   driver recalled  a directory is called back while a file in it is looked at
 *   driver linked    two names of one file are fetched at one time
 *   driver hang      all threads there may be wait for the source, which then answers again
 */
#define _GNU_SOURCE
#include "driving.h"
#include "fetch.h"
#include "asking_kernel.h"
#include "late_source.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define FILES 12 /* few, so that threads meet at them */
#define LARGEST 20000
#define KERNELS 3
#define DIRECTORY 77
#define FIRST_SLOT (UINT64_C(1) << 60)

WRAPPED(int, pthread_create, (pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument),
        (thread, attributes, run, argument), EAGAIN, EAGAIN)

static int source, cache, run = 1, ahead_of_largest = 8;
static long reads, opens, by_python;
static int64_t written[FILES], recalled[FILES]; /* the mtime of what is there, and of what was there at a recall; atomic */
static uint64_t generation = 1;

/* ---- files of the source ------------------------------------------------------------------------------------------ */

static unsigned char byte_of(uint32_t seed, uint64_t at) { return (unsigned char)((seed * 2654435761u + at * 7 + at / 256) >> 3); }

static void name_of(unsigned file, char *into) { sprintf(into, "f%u", file); }

static void write_file(unsigned file, unsigned *seed) {
    char name[16], data[LARGEST];
    uint32_t mark = (uint32_t)rand_r(seed);
    size_t size = sizeof mark + (size_t)rand_r(seed) % (LARGEST - sizeof mark);
    memcpy(data, &mark, sizeof mark);
    for (size_t at = sizeof mark; at < size; at++) data[at] = (char)byte_of(mark, at);
    name_of(file, name);
    int fd = openat(source, "new", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) fail("%s: %s", name, strerror(errno));
    int64_t number = __atomic_load_n(&written[file], __ATOMIC_RELAXED) + 1;
    if (futimens(fd, (struct timespec[]){{.tv_sec = number}, {.tv_sec = number}})) fail("utimens: %s", strerror(errno));
    close(fd);
    if (renameat(source, "new", source, name)) fail("rename: %s", strerror(errno));
    __atomic_store_n(&written[file], number, __ATOMIC_RELEASE);
}

static void check(const char *data, size_t size, const char *what) {
    uint32_t mark;
    if (size < sizeof mark || size > LARGEST) fail("%s: %zu bytes", what, size);
    memcpy(&mark, data, sizeof mark);
    for (size_t at = sizeof mark; at < size; at++)
        if ((unsigned char)data[at] != byte_of(mark, at)) fail("%s: a wrong byte at %zu of %zu", what, at, size);
}

/* ---- the kernel --------------------------------------------------------------------------------------------------- */

static char *ask(uint32_t opcode, uint64_t node, const void *in, size_t in_size, char *buffer, size_t *size, int interrupts) {
    char request[512];
    struct fuse_in_header header = {.opcode = opcode, .nodeid = node, .pid = (uint32_t)(uintptr_t)pthread_self() | 1};
    header.len = (uint32_t)(sizeof header + in_size);
    size_t slot = asks(&header.unique, opcode == FUSE_READ ? node : 0);
    memcpy(request, &header, sizeof header);
    memcpy(request + sizeof header, in, in_size);
    uint64_t unique = header.unique;
    handle(request, header.len, buffer);
    if (interrupts) {
        struct fuse_in_header stop = {.opcode = FUSE_INTERRUPT, .unique = unique | 1, .len = sizeof stop + sizeof(struct fuse_interrupt_in)};
        memcpy(request, &stop, sizeof stop);
        memcpy(request + sizeof stop, &(struct fuse_interrupt_in){.unique = unique}, sizeof(struct fuse_interrupt_in));
        size_t left = stop.len;
        if (!answer(ends[0], request, &left, buffer)) hand_to_python(request, left);
    }
    return answer_to(slot, size);
}

static void use(unsigned file, char *buffer, unsigned *seed) {
    char name[16];
    size_t size;
    name_of(file, name);
    int64_t least = __atomic_load_n(&recalled[file], __ATOMIC_ACQUIRE);
    struct fuse_entry_out *entry = (void *)ask(FUSE_LOOKUP, DIRECTORY, name, strlen(name) + 1, buffer, &size, rand_r(seed) % 16 == 0);
    if (!entry) return;
    if ((int64_t)entry->attr.mtime < least) fail("%s as it was before a recall", name);
    uint64_t slot = entry->nodeid, file_size = entry->attr.size;
    free(entry);
    struct fuse_open_in in = {.flags = O_RDONLY};
    struct fuse_open_out *open = rand_r(seed) % 4 ? (void *)ask(FUSE_OPEN, slot, &in, sizeof in, buffer, &size, rand_r(seed) % 16 == 0) : NULL;
    if (open) {
        struct fuse_read_in read = {.fh = open->fh, .size = LARGEST};
        __atomic_add_fetch(&opens, 1, __ATOMIC_RELAXED);
        if (open->fh != slot) fail("a handle that is not its slot's id");
        free(open);
        char *data = rand_r(seed) % 2 ? ask(FUSE_READ, slot, &read, sizeof read, buffer, &size, 0) : NULL;
        if (data && size != file_size) fail("%zu bytes of %llu", size, (unsigned long long)file_size);
        if (data) check(data, size, "read"), __atomic_add_fetch(&reads, 1, __ATOMIC_RELAXED);
        free(data);
        struct fuse_release_in release = {.fh = slot};
        free(ask(FUSE_RELEASE, slot, &release, sizeof release, buffer, &size, 0));
    }
    if (rand_r(seed) % 2) contents_forget(slot, 1);
}

static void *stand_for_kernel(void *argument) {
    unsigned *seed = argument;
    char *buffer = malloc(ANSWER_BYTES);
    while (__atomic_load_n(&run, __ATOMIC_ACQUIRE)) use((unsigned)rand_r(seed) % FILES, buffer, seed);
    free(buffer);
    return NULL;
}

static void *take_replies(void *argument) {
    (void)argument;
    static char message[LARGEST + 4096];
    ssize_t size;
    while ((size = recv(ends[1], message, sizeof message, 0)) > 0) {
        struct fuse_out_header *header = (void *)message;
        if ((size_t)size != header->len) fail("%zd bytes, which say %u", size, header->len);
        if (header->unique) {
            answered_with(header->unique, header->error, message + sizeof *header, (size_t)size - sizeof *header);
        } else {
            struct fuse_notify_store_out *out = (void *)(header + 1);
            if (header->error != FUSE_NOTIFY_STORE || out->offset) fail("a message of another kind");
            check((char *)(out + 1), out->size, "pushed");
        }
    }
    return NULL;
}

/* ---- Python ------------------------------------------------------------------------------------------------------- */

static void answer_queued(void) {
    char request[4096];
    while (queue_take(request, sizeof request) > 0) {
        if (((struct fuse_in_header *)request)->opcode == FUSE_INTERRUPT) continue; /* nobody waits for an answer to it */
        __atomic_add_fetch(&by_python, 1, __ATOMIC_RELAXED);
        answered_with(((struct fuse_in_header *)request)->unique, -EIO, "", 0);
    }
}

static void free_outcomes(void) {
    struct fetched *next;
    for (struct fetched *one = fetched_take(1000); one; one = next) {
        next = one->next;
        if (one->held) {
            check(one->data, (size_t)one->seen.size, "given to Python");
            contents_stored(one->held, 0);
        }
        free(one);
    }
}

static int delegate(void) {
    struct stat found;
    struct delegated delegated = {
        .entry.node = DIRECTORY, .generation = generation, .fd = dup(source), .largest = LARGEST - 1000, .settled_ns = INT64_MAX / 2,
        .settled_fine_ns = INT64_MAX / 2, .until_ns = monotonic_ns() + 1000000000, .valid_ns = 50000000,
    };
    if (delegated.fd < 0 || fstat(source, &found)) fail("dup: %s", strerror(errno));
    delegated.device = found.st_dev;
    int error = delegated_put(&delegated);
    if (error) close(delegated.fd);
    return error;
}

/* As `hfs refresh`: what is looked up from now on is as it is now. */
static void recall(void) {
    int64_t slots, now[FILES];
    uint64_t directory = DIRECTORY;
    struct name_run held = {0};
    for (unsigned file = 0; file < FILES; file++) now[file] = __atomic_load_n(&written[file], __ATOMIC_ACQUIRE);
    delegated_take(DIRECTORY, &slots);
    generation++;
    for (unsigned shard = 0; shard < SLOT_SHARDS; shard++) slots_expire(shard, &directory, 1, &held);
    free(held.bytes);
    for (unsigned file = 0; file < FILES; file++) __atomic_store_n(&recalled[file], now[file], __ATOMIC_RELEASE);
}

static void let_go(struct slot *taken) { contents_take(taken->id), slots_free(taken); }

static void take_slot(uint64_t slot) {
    struct slot *taken;
    if ((taken = slots_take_id(slot))) let_go(taken);
}

/* Files that other nodes of the job own, some of all. */
static void own_some(unsigned *seed) {
    static int32_t owners[PLACEMENT_SLOTS];
    int32_t many = 1 + rand_r(seed) % 3;
    for (size_t slot = 0; slot < PLACEMENT_SLOTS; slot++) owners[slot] = (int32_t)slot % many;
    if (!placement_set(many > 1 ? owners : NULL, 0) && many == 1) fail("no memory is needed for nobody");
}

static void act(unsigned *seed, uint64_t *number) {
    char name[16];
    uint64_t stuck[FETCH_WORKERS], first, end;
    struct slot *swept[8];
    name_of((unsigned)rand_r(seed) % FILES, name);
    switch (rand_r(seed) % 20) {
    case 16: pushes_terms(rand_r(seed) % 4 != 0, rand_r(seed) % 2); break;
    case 17: store_by_python(rand_r(seed) % 3 == 0); break;
    case 18: own_some(seed); break;
    case 19: news_read(NEWS_FETCHED); break;
    case 0:
        recall();
        if (rand_r(seed) % 2) delegate();
        break;
    case 1: case 2: case 3: delegate(); break;
    case 4: rand_r(seed) % 2 ? jobs_reserve(DIRECTORY, name, strlen(name)) : (void)jobs_try_reserve(DIRECTORY, name, strlen(name)); break;
    case 5: case 6: reserved_take(name_key(DIRECTORY, name, strlen(name))); break;
    case 7: take_slot(slots_id(DIRECTORY, name, strlen(name))); break;
    case 8: case 9: jobs_ahead(&(struct wanted){.directory = DIRECTORY, .name = name, .size = strlen(name)}, 1); break;
    case 10:
        first = *number, end = *number += 8;
        store_grant(&first, &end);
        store_grant_room(8 * (LARGEST + 8192));
        break;
    case 11: contents_trim((size_t)rand_r(seed) % 50000); break;
    case 12:
        (void)jobs_is_busy(DIRECTORY, name, strlen(name));
        staged_take(*number - 1 - (uint64_t)rand_r(seed) % 24);
        break;
    case 13: workers_replace(monotonic_ns() - (rand_r(seed) % 8 ? INT64_C(60000000000) : 0), stuck); break;
    case 14: for (size_t left = slots_sweep(monotonic_ns(), (size_t)rand_r(seed) % 4, swept, 8); left--;) let_go(swept[left]); break;
    default: (void)jobs_under_way();
    }
    free_outcomes();
}

static void *replace_files(void *argument) {
    unsigned *seed = argument;
    while (__atomic_load_n(&run, __ATOMIC_ACQUIRE)) {
        write_file((unsigned)rand_r(seed) % FILES, seed);
        usleep(2000);
    }
    return NULL;
}

/* ---- runs --------------------------------------------------------------------------------------------------------- */

static void make_folder(const char *name, int *fd) {
    if (mkdir(name, 0700) && errno != EEXIST) fail("%s: %s", name, strerror(errno));
    *fd = open(name, O_RDONLY | O_DIRECTORY);
    if (*fd < 0) fail("%s: %s", name, strerror(errno));
}

static int begin(void) {
    char folder[32];
    sprintf(folder, "cache-%d", (int)getpid());
    make_folder("source", &source);
    make_folder(folder, &cache);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) fail("socketpair: %s", strerror(errno));
    int error = queue_open();
    if (!error) error = counts_attach(-1);
    queue_reset();
    if (news_fd(NEWS_FETCHED) < 0) error = errno;
    store_by_python(0);
    pushes_terms(1, 0);
    placement_set(NULL, 0);
    slots_begin(FIRST_SLOT);
    store_in(cache, 4096);
    staged_at(cache);
    if (!error) error = workers_start(ends[0], 4, 3, (size_t)ahead_of_largest * LARGEST);
    return error;
}

static void end(uint64_t numbers) {
    int64_t slots;
    char name[16];
    store_in(-1, 0);
    staged_at(-1);
    workers_stop(INT64_C(10000000000));
    delegated_take(DIRECTORY, &slots);
    for (unsigned file = 0; file < FILES; file++) {
        name_of(file, name);
        take_slot(slots_id(DIRECTORY, name, strlen(name)));
        reserved_take(name_key(DIRECTORY, name, strlen(name)));
    }
    for (uint64_t number = 1; number < numbers; number++) staged_take(number);
    free_outcomes();
    slots_begin(0);
    if (contents_count() || buffers_out() || jobs_under_way() || delegated_count()) fail("something is left: %zu contents, %zu bytes, %zu jobs, %zu directories", contents_count(), buffers_out(), jobs_under_way(), delegated_count());
    shutdown(ends[0], SHUT_RDWR);
}

static void close_all(void) {
    close(ends[0]);
    close(ends[1]);
    close(source);
    close(cache);
}

static void fuzz(double seconds, unsigned seed) {
    pthread_t kernels[KERNELS], replies, replacer;
    unsigned seeds[KERNELS + 1];
    uint64_t number = 1;
    if (begin()) fail("it does not start");
    is_slow = 1;
    for (unsigned file = 0; file < FILES; file++) write_file(file, &seed);
    if (pthread_create(&replies, NULL, take_replies, NULL)) fail("pthread_create");
    for (int i = 0; i <= KERNELS; i++) {
        seeds[i] = seed + 1 + (unsigned)i;
        if (pthread_create(i < KERNELS ? &kernels[i] : &replacer, NULL, i < KERNELS ? stand_for_kernel : replace_files, &seeds[i]))
            fail("pthread_create");
    }
    int64_t until_ns = monotonic_ns() + (int64_t)(seconds * 1e9);
    while (monotonic_ns() < until_ns || !HAVE_HAPPENED(&opens, &reads, &by_python)) {
        act(&seed, &number);
        answer_queued();
        if (rand_r(&seed) % 4 == 0) usleep(200);
    }
    __atomic_store_n(&run, 0, __ATOMIC_RELEASE);
    delegate();
    for (int i = 0; i < KERNELS; i++)
        while (pthread_tryjoin_np(kernels[i], NULL)) answer_queued(), sched_yield();
    pthread_join(replacer, NULL);
    printf("%ld opens, %ld reads, %ld by Python\n", opens, reads, by_python);
    end(number);
    pthread_join(replies, NULL);
    close_all();
}

static int once(void) {
    int error = begin();
    uint64_t first = 1, last = 9;
    struct fuse_in_header header = {.opcode = FUSE_LOOKUP, .unique = 2, .nodeid = DIRECTORY, .pid = 1};
    char request[64], *buffer = malloc(ANSWER_BYTES), name[16];
    unsigned seed = 5;
    for (unsigned file = 0; file < 3; file++) write_file(file, &seed);
    store_grant(&first, &last);
    store_grant_room(8 * (LARGEST + 8192));
    if (!error) error = delegate();
    jobs_reserve(DIRECTORY, "f1", 2);
    struct wanted wanted = {.directory = DIRECTORY, .name = "f0", .size = 2};
    if (!error) jobs_ahead(&wanted, 1), error = wanted.error;
    for (unsigned file = 0; buffer && file < 3; file++) {
        name_of(file, name);
        size_t size = sizeof header + strlen(name) + 1;
        header.len = (uint32_t)size;
        header.unique += 2;
        memcpy(request, &header, sizeof header);
        memcpy(request + sizeof header, name, strlen(name) + 1);
        if (!answer(ends[0], request, &size, buffer) && file != 1 && !error) error = ENOMEM; /* f1 is Python's */
    }
    for (int i = 0; i < 200 && jobs_under_way(); i++) usleep(1000);
    reserved_take(name_key(DIRECTORY, "f1", 2));
    free(buffer);
    end(last);
    while (queue_take(request, sizeof request) > 0) continue;
    close_all();
    return error;
}

static struct fetched *outcome(void) {
    struct fetched *one = NULL;
    for (int64_t until_ns = monotonic_ns() + INT64_C(10000000000); !one && monotonic_ns() < until_ns; usleep(100)) one = fetched_take(1);
    if (!one) fail("nothing is heard of it");
    return one;
}

/* Room that Python grants a moment too late: what was fetched meanwhile waits for it, and is stored. */
static void late(void) {
    uint64_t first = 1, last = 9;
    unsigned seed = 5;
    struct wanted wanted = {.directory = DIRECTORY, .name = "f0", .size = 2};
    if (begin() || delegate()) fail("it does not start");
    write_file(0, &seed);
    store_grant(&first, &last);
    store_grant_room(1);
    jobs_ahead(&wanted, 1);
    while (!contents_count()) usleep(100);
    usleep(20000); /* whoever does not wait has given up by then */
    store_grant_room(2 * LARGEST);
    struct fetched *one = outcome();
    if (one->kind != FETCHED_STORED) fail("it was not stored");
    free(one);
    end(last);
    close_all();
}

/* What is looked at when its directory is called back is entered nowhere, whoever else has asked for it since. */
static void recalled_meanwhile(void) {
    uint64_t first = 1, last = 9;
    struct seen seen;
    unsigned seed = 5;
    struct wanted wanted = {.directory = DIRECTORY, .name = "f0", .size = 2};
    if (begin() || delegate()) fail("it does not start");
    store_grant(&first, &last);
    store_grant_room(8 * (LARGEST + 8192));
    for (int asks_again = 0; asks_again < 2; asks_again++) {
        write_file(0, &seed);
        __atomic_store_n(&parking, 1, __ATOMIC_RELEASE);
        jobs_ahead(&wanted, 1);
        while (__atomic_load_n(&parking, __ATOMIC_ACQUIRE) != 2) usleep(100);
        uint64_t before = generation;
        write_file(0, &seed);
        recall();
        if (jobs_is_busy(DIRECTORY, "f0", 2)) fail("it is busy with what was before");
        if (delegate()) fail("it is not delegated again");
        if (asks_again) {
            jobs_ahead(&wanted, 1);
            if (wanted.error) fail("it waits for what was begun before: %s", strerror(wanted.error));
            struct fetched *one = outcome();
            if (one->kind != FETCHED_STORED || one->generation == before) fail("it is not fetched again");
            free(one);
        }
        __atomic_store_n(&parking, 3, __ATOMIC_RELEASE);
        struct fetched *one = outcome();
        if (one->kind != FETCHED_NOTHING || one->generation != before) fail("what came late was believed");
        free(one);
        if (slots_seen(DIRECTORY, "f0", 2, monotonic_ns(), &seen) != asks_again) fail("what came late was entered");
        if (asks_again && seen.seconds[1] != written[0]) fail("the old one is there");
        take_slot(slots_id(DIRECTORY, "f0", 2));
    }
    end(last);
}

/* ---- a source that hangs ------------------------------------------------------------------------------------------ */

/* 1: the pipeline has taken it. */
static int look_up(const char *name) {
    static uint64_t unique;
    char request[128];
    struct fuse_in_header header = {.opcode = FUSE_LOOKUP, .unique = unique += 2, .nodeid = DIRECTORY, .pid = 1};
    size_t size = header.len = (uint32_t)(sizeof header + strlen(name) + 1);
    memcpy(request, &header, sizeof header);
    memcpy(request + sizeof header, name, strlen(name) + 1);
    return answer(ends[0], request, &size, NULL);
}

static void until(int (*is_so)(int), int wanted, const char *what) {
    for (int64_t until_ns = monotonic_ns() + PATIENCE_S * INT64_C(1000000000); !is_so(wanted); usleep(200))
        if (monotonic_ns() > until_ns) fail("never: %s (%d)", what, wanted);
}

static int are_there(int wanted) {
    uint64_t stuck[FETCH_WORKERS];
    workers_replace(monotonic_ns() - INT64_C(60000000000), stuck);
    return jobs_threads() == wanted;
}

static void drop_queued(void) {
    char request[4096];
    while (queue_take(request, sizeof request) > 0) continue;
}

static void hang(void) {
    char name[32];
    uint64_t stuck[FETCH_WORKERS];
    int given_up = 0;
    unsigned seed = 5;
    if (begin() || delegate()) fail("it does not start");
    for (unsigned file = 0; file < FILES; file++) write_file(file, &seed);
    int threads = jobs_threads();
    set_hangs(1);
    for (int asked = 0; jobs_threads(); given_up += threads) {
        for (int i = 0; i < threads; i++) sprintf(name, "hung-%d", asked++), delegate(), look_up(name);
        until(hang_now, given_up + threads, "all wait for the source");
        calls = 0, fail_at = given_up ? 0 : 1; /* no thread can be had, once */
        if (workers_replace(monotonic_ns(), stuck) != (size_t)threads) fail("not all were given up");
        fail_at = 0;
        if (!given_up) until(are_there, threads, "threads where none could be had before");
        drop_queued();
    }
    if (given_up != FETCH_THREADS) fail("%d were given up", given_up);
    delegate();
    if (look_up("f0")) fail("a look-up waits where nobody is left");
    set_hangs(0);
    until(are_there, threads, "threads after a hang");
    delegate();
    if (!look_up("f0")) fail("a look-up is Python's, though threads are back");
    end(1);
    drop_queued();
    close_all();
}

#include "full_queue.h"
#include "linked_names.h"

int main(int count, char **arguments) {
    const char *names[] = {"full", "hang", "late", "linked", "recalled"};
    void (*runs[])(void) = {full_queue, hang, late, linked_names, recalled_meanwhile};
    for (int i = 0; i < 5; i++)
        if (count == 2 && !strcmp(arguments[1], names[i])) return runs[i](), 0;
    return drive(count, arguments, fuzz, once);
}
