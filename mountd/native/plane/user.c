/* As whom the source is asked, where that is another user than the daemon's: root may be nobody there.
 *
 * A thread of the pipeline is that user while it looks at a file or reads it, and the daemon's own when it writes to the
 * cache: four system calls a file. What is set belongs to a thread, so they are made directly; glibc's own change all
 * threads. For file systems it is the fsuid that counts, and with it the kernel takes away the capabilities that override
 * permissions, and gives them back. A FUSE mount that admits its owner alone looks at all ids (`wholly`); then whoever
 * has these may trace the thread, unless the process is not dumpable, which Python sees to
 * (mountd/source/threads.py). A part of the pipeline, see fetch.h.
 */
#include "fetch.h"

#include <errno.h>
#include <linux/capability.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define REST_NS 20000000
#define BIT(capability) (UINT32_C(1) << (capability))

/* What a thread may have: to become the user and come back; and, as the daemon's own, to go where root may. The kernel
 * takes those of the second line away with the fsuid (CAP_FS_MASK). */
#define TO_CHANGE (BIT(CAP_SETUID) | BIT(CAP_SETGID))
#define TO_OVERRIDE (BIT(CAP_CHOWN) | BIT(CAP_DAC_OVERRIDE) | BIT(CAP_DAC_READ_SEARCH) | BIT(CAP_FOWNER) | BIT(CAP_FSETID))

static struct {
    int is_set;
    struct user as;
    uint32_t own_uid, own_gid;
} user;

int user_set(const struct user *as) {
    uint32_t *groups = malloc(as->count ? as->count * sizeof *groups : 1);
    if (!groups) return ENOMEM;
    if (as->count) memcpy(groups, as->groups, as->count * sizeof *groups);
    free((void *)user.as.groups);
    user.as = *as;
    user.as.groups = groups;
    user.own_uid = geteuid();
    user.own_gid = getegid();
    user.is_set = 1;
    return 0;
}

static int get(struct __user_cap_data_struct sets[2]) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    return syscall(SYS_capget, &header, sets) ? errno : 0;
}

static int set(struct __user_cap_data_struct sets[2]) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    return syscall(SYS_capset, &header, sets) ? errno : 0;
}

static int set_fs(uint32_t uid, uint32_t gid) {
    setfsgid(gid);
    setfsuid(uid);
    return (uint32_t)setfsuid((uid_t)-1) == uid && (uint32_t)setfsgid((gid_t)-1) == gid ? 0 : EPERM;
}

static int set_all(uint32_t uid, uint32_t gid) {
    return syscall(SYS_setresgid, gid, gid, gid) || syscall(SYS_setresuid, uid, uid, uid) ? errno : 0;
}

/* Of one that has the permitted ones only. */
static int take_capabilities(void) {
    struct __user_cap_data_struct sets[2];
    int error = get(sets);
    if (error) return error;
    for (int i = 0; i < 2; i++) sets[i].effective = sets[i].permitted;
    return set(sets);
}

static int come_back(void) {
    if (!user.as.wholly) return set_fs(user.own_uid, user.own_gid);
    int error = take_capabilities();
    return error ? error : set_all(user.own_uid, user.own_gid);
}

int user_enter(void) {
    if (!user.is_set) return 0;
    return user.as.wholly ? set_all(user.as.uid, user.as.gid) : set_fs(user.as.uid, user.as.gid);
}

/* It fails for lack of memory only, and a thread that is half of one and half of the other must do nothing; one that
 * cannot come back is given up by Python as one that waits for the source (workers_replace). */
void user_leave(void) {
    while (user.is_set && come_back()) nanosleep(&(struct timespec){.tv_nsec = REST_NS}, NULL);
}

static int limit_capabilities(void) {
    struct __user_cap_data_struct sets[2];
    int error = get(sets);
    if (error) return error;
    sets[0].permitted &= TO_CHANGE | TO_OVERRIDE;
    sets[0].effective = sets[0].permitted;
    sets[0].inheritable = 0;
    memset(&sets[1], 0, sizeof sets[1]);
    return set(sets);
}

int user_begin(void) {
    if (!user.is_set) return 0;
    if (user.as.wholly && prctl(PR_GET_DUMPABLE) == 1) return EPERM;
    if (syscall(SYS_setgroups, user.as.count, user.as.groups)) return errno;
    int error = limit_capabilities();
    if (!error && user.as.wholly && prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)) error = errno;
    return error;
}

static void *try_it(void *argument) {
    struct __user_cap_data_struct sets[2];
    int *error = argument;
    *error = user_begin();
    if (!*error) *error = user_enter();
    if (!*error) *error = get(sets);
    if (!*error && sets[0].effective & TO_OVERRIDE) *error = EPERM; /* as in a sandbox without the kernel's usual rules */
    if (!*error) *error = come_back();
    if (!*error) *error = get(sets);
    if (!*error && sets[0].effective != sets[0].permitted) *error = EPERM;
    return NULL;
}

int user_try(void) {
    pthread_t thread;
    int error = 0;
    if (!user.is_set) return 0;
    int started = pthread_create(&thread, NULL, try_it, &error);
    if (started) return started;
    pthread_join(thread, NULL);
    return error;
}
