// A server with permissions of its own: what the mode bits allow, it may refuse, by the groups of whoever asks.
// "guard GID SUBSTRING": only root and members of the group may open, list, follow or read the xattrs of what has
// SUBSTRING in its path below BACKING. "squash": root may do nothing. Says so to submit(); answers nothing itself.
#include "slowfs.h"

#define GUARDS 16
static struct guard {
    gid_t gid;
    char path[256];
} guard[GUARDS]; // guarded by lock
_Atomic int guard_count;
_Atomic bool squashes;

bool add_guard(const char *text) { // with lock held
    struct guard new;
    int at = 0;
    if (sscanf(text, "%u %n", &new.gid, &at) != 1 || !text[at] || strlen(text + at) >= sizeof new.path) return false;
    if (guard_count == GUARDS) return false;
    strcpy(new.path, text + at);
    guard[guard_count++] = new;
    return true;
}

void remove_guards(void) { // with lock held
    guard_count = 0;
    squashes = false;
}

static bool is_member(fuse_req_t req, gid_t gid) {
    gid_t groups[256];
    if (fuse_req_ctx(req)->gid == gid) return true;
    int count = fuse_req_getgroups(req, 256, groups); // the supplementary ones, which a request does not carry
    for (int i = 0; i < count && i < 256; i++)
        if (groups[i] == gid) return true;
    return false;
}

bool refuses(struct job *job) {
    if (fuse_req_ctx(job->req)->uid == 0) // the root's attributes are on the way to the control file; a release is the kernel's
        return squashes && job->kind != RELEASE && !(job->kind == GETATTR && job->ino == FUSE_ROOT_ID);
    if (job->kind != OPEN && job->kind != OPENDIR && job->kind != GETXATTR && job->kind != READLINK) return false;
    char path[PATH_ROOM];
    const char *below = path_of(job, path);
    bool refused = false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < guard_count; i++)
        refused |= strstr(below, guard[i].path) && !is_member(job->req, guard[i].gid);
    pthread_mutex_unlock(&lock);
    return refused;
}
