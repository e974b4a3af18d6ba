/* What is left in shared memory of a process that is killed at a store, tried at each of them.
 *
 * The memory that `begin` maps from `fd` is made read-only. So each store into it, one by one as the processor does
 * them, comes to a signal handler, which ends the process before the store with the number that is wanted, or lets that
 * one instruction write. Nothing of the plane knows of it. For one thread; link with --wrap=mmap. x86-64 alone has the
 * flag for a single step.
 */
#include "failing.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <ucontext.h>

#define SINGLE_STEP 0x100 /* in the flags of the processor */

#define REGIONS 8

static struct {
    int fd;
    ino_t inode; /* of its memory, whatever descriptor it is mapped by */
    struct region {
        char *memory;
        size_t size;
    } regions[REGIONS];
    int count;
    long seen, last; /* stores; the process is killed before the `last` of them */
} stores = {.fd = -1};

void *__real_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    struct stat is;
    void *memory = __real_mmap(address, size, protection, flags, fd, offset);
    if (fd < 0 || fstat(fd, &is) || is.st_ino != stores.inode) return memory;
    if (stores.count == REGIONS) fail("too much is mapped");
    stores.regions[stores.count++] = (struct region){memory, size};
    return memory;
}

static void let_be_written(int may) {
    for (int i = 0; i < stores.count; i++) mprotect(stores.regions[i].memory, stores.regions[i].size, may ? PROT_READ | PROT_WRITE : PROT_READ);
}

static int is_watched(const char *at) {
    for (int i = 0; i < stores.count; i++)
        if (at >= stores.regions[i].memory && at < stores.regions[i].memory + stores.regions[i].size) return 1;
    return 0;
}

static void on_store(int number, siginfo_t *info, void *context) {
    if (!is_watched(info->si_addr)) {
        signal(number, SIG_DFL); /* a fault of its own: it happens again when this returns */
        return;
    }
    if (++stores.seen == stores.last) kill(getpid(), SIGKILL);
    let_be_written(1);
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] |= SINGLE_STEP;
}

static void on_step(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    let_be_written(0);
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~(greg_t)SINGLE_STEP;
}

static void watch_stores(void) {
    struct sigaction store = {.sa_sigaction = on_store, .sa_flags = SA_SIGINFO}, step = {.sa_sigaction = on_step, .sa_flags = SA_SIGINFO};
    if (!stores.count || sigaction(SIGSEGV, &store, NULL) || sigaction(SIGTRAP, &step, NULL)) fail("nothing can be watched");
    let_be_written(0);
}

/* 1: it has ended by itself. */
static int child_has_ended(pid_t child) {
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child) fail("no child: %s", strerror(errno));
    if (WIFEXITED(status) && !WEXITSTATUS(status)) return 1;
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) fail("a child has failed at store %ld", stores.last);
    return 0;
}

/* `begin` maps `fd`, which is empty. `act` then changes it, and counts what it has done. `check` is told how much that was,
 * in a process that knows nothing else: as the next daemon does, it maps `fd` anew. All end the process if something is
 * wrong. How many stores there were. */
static long kill_at_each_store(void (*begin)(int fd), void (*act)(long *done), void (*check)(int fd, long done)) {
    long *done = __real_mmap(NULL, sizeof *done, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (done == MAP_FAILED) fail("no memory");
    for (int ended = 0; !ended; close(stores.fd)) {
        stores.last++;
        *done = 0;
        struct stat is;
        if ((stores.fd = memfd_create("killed", MFD_CLOEXEC)) < 0 || fstat(stores.fd, &is)) fail("no memory: %s", strerror(errno));
        stores.inode = is.st_ino;
        pid_t child = fork();
        if (!child) {
            begin(stores.fd);
            watch_stores();
            act(done);
            _exit(0);
        }
        ended = child_has_ended(child);
        if (!(child = fork())) {
            check(stores.fd, *done);
            _exit(0);
        }
        if (!child_has_ended(child)) fail("whoever looks was killed");
    }
    munmap(done, sizeof *done);
    return stores.last - 1;
}
