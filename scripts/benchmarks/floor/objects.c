/* What it takes to keep objects in files of their own, or in packs: written by several threads, while the oldest go.
 *
 *   objects files|packs DIRECTORY BYTES COUNT KEPT THREADS
 *
 * Of COUNT objects of so many BYTES the last KEPT stay. In files: one each, in one of 256 directories, made, written, looked
 * at, closed; an old one is unlinked. In packs: appended to files of 256 MiB at multiples of 4 KiB; of an old one the
 * blocks are given back. Nothing is synced. Prints objects a second, and CPU microseconds of each.
 *
 * Compiled and run by scripts/benchmarks/first_epoch_objects.py.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BLOCK 4096L
#define PACK_BYTES (256L << 20)
#define MOST_PACKS 4096
#define FOLDERS 256
#define MOST_THREADS 64

static int directory, packs[MOST_PACKS], in_packs;
static long size, room, count, kept, next_object;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void fail(const char *what) {
    fprintf(stderr, "objects: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int pack(long number) {
    char name[32];
    snprintf(name, sizeof name, "pack-%ld", number);
    pthread_mutex_lock(&lock);
    if (!packs[number]) packs[number] = openat(directory, name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    pthread_mutex_unlock(&lock);
    if (packs[number] < 0) fail(name);
    return packs[number];
}

static void path_of(long object, char path[32]) { snprintf(path, 32, "%02lx/%ld", object % FOLDERS, object); }

static void add_file(long object, const char *data) {
    char path[32];
    struct stat found;
    path_of(object, path);
    int fd = openat(directory, path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || pwrite(fd, data, (size_t)size, 0) != size || fstat(fd, &found) || close(fd)) fail(path);
    if (object < kept) return;
    path_of(object - kept, path);
    if (unlinkat(directory, path, 0)) fail(path);
}

static void add_to_pack(long object, const char *data) {
    long each = PACK_BYTES / room, old = object - kept;
    if (pwrite(pack(object / each), data, (size_t)size, object % each * room) != size) fail("a pack");
    if (old >= 0 && fallocate(pack(old / each), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, old % each * room, room))
        fail("a hole");
}

static void *work(void *argument) {
    (void)argument;
    char *data = malloc((size_t)size);
    if (!data) fail("memory");
    memset(data, 7, (size_t)size);
    for (long object; (object = __atomic_fetch_add(&next_object, 1, __ATOMIC_RELAXED)) < count;)
        in_packs ? add_to_pack(object, data) : add_file(object, data);
    free(data);
    return NULL;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int arguments, char **argument) {
    if (arguments != 7) return 2;
    in_packs = !strcmp(argument[1], "packs");
    directory = open(argument[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    size = atol(argument[3]), count = atol(argument[4]), kept = atol(argument[5]);
    room = (size + BLOCK - 1) / BLOCK * BLOCK;
    int threads = atoi(argument[6]);
    if (directory < 0 || size < 1 || threads < 1 || threads > MOST_THREADS || count / (PACK_BYTES / room) >= MOST_PACKS) return 2;
    for (int i = 0; i < FOLDERS && !in_packs; i++) {
        char name[8];
        snprintf(name, sizeof name, "%02x", (unsigned)i);
        if (mkdirat(directory, name, 0700)) fail(name);
    }
    pthread_t running[MOST_THREADS];
    double began = seconds();
    for (int i = 0; i < threads; i++)
        if (pthread_create(&running[i], NULL, work, NULL)) fail("a thread");
    for (int i = 0; i < threads; i++) pthread_join(running[i], NULL);
    double spent = seconds() - began;
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double cpu = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e6 + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
    printf("%.0f %.2f\n", (double)count / spent, cpu / (double)count);
}
