/* Drives reads of staged objects without Python and without a mount: threads that stand for the kernel read, while one
 * that stands for Python says which objects are right, and has them changed, removed and made anew.
 *
 * Ends with 1 and a line on standard error if a read gave a byte that was not right; see driving.h.
 */
#include "driving.h"
#include "fetch.h"

#include <fcntl.h>
#include <sys/stat.h>

#define OBJECTS 5 /* few, so that threads meet at them */
#define BYTES 9000
#define KERNELS 3
#define WRONG 0xff

static int directory;
static int run = 1;
static long answered_reads, refused_reads;

int __real_fstat(int fd, struct stat *found);
int __wrap_fstat(int fd, struct stat *found);

/* Of a file system that tells nobody of changes: that an object was taken out before is all there is. */
int __wrap_fstat(int fd, struct stat *found) {
    int failed = __real_fstat(fd, found);
    found->st_ctim = (struct timespec){1, 0};
    return failed;
}

/* Never WRONG, and another one in each object. */
static unsigned char byte_of(uint64_t number, uint64_t at) { return (unsigned char)((number * 31 + at * 7) % 251); }

static void path_of(uint64_t number, char *into) { sprintf(into, "%02x/%d", (unsigned)(number & 0xff), (int)number); }

static void write_object(uint64_t number, int right) {
    char name[64];
    unsigned char data[BYTES];
    for (unsigned at = 0; at < BYTES; at++) data[at] = right ? byte_of(number, at) : WRONG;
    path_of(number, name);
    int fd = openat(directory, name, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || pwrite(fd, data, BYTES, 0) != BYTES) fail("%s: %s", name, strerror(errno));
    close(fd);
}

static int put(uint64_t number) {
    char name[64];
    struct stat found;
    path_of(number, name);
    if (fstatat(directory, name, &found, 0)) fail("%s: %s", name, strerror(errno));
    struct staged_object object = {
        .number = number, .inode = found.st_ino, .size = (uint64_t)found.st_size, .ctime_ns = 1000000000, .is_right = 1,
    };
    return staged_put(&object);
}

static void *kernel(void *argument) {
    unsigned seed = *(unsigned *)argument;
    static __thread char data[ANSWER_BYTES]; /* as large as the plane says */
    while (__atomic_load_n(&run, __ATOMIC_ACQUIRE)) {
        uint64_t number = 1 + (uint64_t)rand_r(&seed) % (OBJECTS + 1), offset = (uint64_t)rand_r(&seed) % (BYTES + 100);
        size_t size = 1 + (size_t)rand_r(&seed) % 4096;
        ssize_t got = staged_read(number, offset, size, data);
        __atomic_add_fetch(got < 0 ? &refused_reads : &answered_reads, 1, __ATOMIC_RELAXED);
        if (got < 0) continue;
        if (number > OBJECTS) fail("an object that there is not");
        uint64_t left = offset < BYTES ? BYTES - offset : 0;
        if ((size_t)got != (size < left ? size : left)) fail("%zd bytes of %zu", got, size);
        for (ssize_t i = 0; i < got; i++)
            if ((unsigned char)data[i] != byte_of(number, offset + (uint64_t)i)) fail("a wrong byte");
    }
    return NULL;
}

static void begin(void) {
    directory = open(".", O_RDONLY | O_DIRECTORY);
    for (uint64_t number = 1; number <= OBJECTS; number++) {
        char name[64];
        path_of(number, name);
        name[2] = 0;
        if (mkdirat(directory, name, 0700) && errno != EEXIST) fail("%s: %s", name, strerror(errno));
        write_object(number, 1);
    }
    staged_in(directory);
}

static void end(void) {
    staged_in(-1);
    if (staged_count()) fail("objects are left");
    close(directory);
}

static void fuzz(double seconds, unsigned seed) {
    pthread_t kernels[KERNELS];
    unsigned seeds[KERNELS];
    begin();
    for (int i = 0; i < KERNELS; i++) {
        seeds[i] = seed + 1 + (unsigned)i;
        if (pthread_create(&kernels[i], NULL, kernel, &seeds[i])) fail("pthread_create");
    }
    int64_t until_ns = monotonic_ns() + (int64_t)(seconds * 1e9);
    while (monotonic_ns() < until_ns || !HAVE_HAPPENED(&answered_reads, &refused_reads)) {
        uint64_t number = 1 + (uint64_t)rand_r(&seed) % OBJECTS;
        char name[64];
        path_of(number, name);
        switch (rand_r(&seed) % 4) {
        case 0: /* its chunk was given up, and comes again */
            staged_take(number);
            write_object(number, 0);
            write_object(number, 1);
            break;
        case 1: /* it was evicted, and is there again */
            staged_take(number);
            if (unlinkat(directory, name, 0)) fail("%s: %s", name, strerror(errno));
            write_object(number, 1);
            break;
        case 2:
            staged_in(rand_r(&seed) % 2 ? -1 : directory);
            break;
        default:
            if (put(number)) fail("it could not be put");
        }
    }
    __atomic_store_n(&run, 0, __ATOMIC_RELEASE);
    for (int i = 0; i < KERNELS; i++) pthread_join(kernels[i], NULL);
    for (uint64_t number = 1; number <= OBJECTS; number++) staged_take(number);
    printf("%ld answered, %ld not\n", answered_reads, refused_reads);
    end();
}

static int once(void) {
    char data[16];
    int error = 0;
    begin();
    for (int again = 0; again < 2; again++) /* what is put once more replaces what was there */
        for (uint64_t number = 1; number <= OBJECTS && !error; number++) error = put(number);
    if (!error && staged_read(2, 3, 9, data) != 9) fail("not answered");
    for (uint64_t number = 1; number <= OBJECTS; number++) staged_take(number);
    end();
    return error;
}

int main(int count, char **arguments) { return drive(count, arguments, fuzz, once); }
