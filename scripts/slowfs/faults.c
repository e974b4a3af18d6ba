// Fault rules: which of the operations to come fail, hang or are slow. Says so to submit(); does none of it itself.
#include "slowfs.h"

enum action { FAIL_IO, FAIL_STALE, SHORT, SLOW, HANG, ACTIONS };
static const char *const action_name[ACTIONS] = {"eio", "estale", "short", "slow", "hang"};
#define FAULTS 64
static struct fault {
    enum kind kind;
    enum action action;
    u64 left; // strikes the left-th matching operation from now
    u64 slow_ns;
    bool forever;   // and all after it
    char path[256]; // strikes only where this occurs in the path; empty: everywhere
} fault[FAULTS];    // guarded by lock
_Atomic int fault_count;

// "KIND ACTION [N] [forever] [[path] SUBSTRING]", with lock held
bool add_fault(const char *text) {
    char kind[16], action[16], *end;
    int at = 0;
    struct fault new = {.kind = KINDS, .action = ACTIONS, .left = 1};
    if (sscanf(text, "%15s %15s %n", kind, action, &at) < 2 || !at) return false;
    for (int i = 0; i < KINDS; i++)
        if (!strcmp(kind, kind_name[i])) new.kind = (enum kind)i;
    for (int i = 0; i < ACTIONS; i++)
        if (!strcmp(action, action_name[i])) new.action = (enum action)i;
    if (new.kind == KINDS || new.action == ACTIONS || (new.action == SHORT && new.kind != READ)) return false;
    if (new.kind == RELEASE && new.action < SLOW) return false; // nobody hears of it, and the handle must go
    u64 number = strtoull(text += at, &end, 10);
    bool numbered = *text >= '0' && *text <= '9' && (!*end || *end == ' ');
    if (numbered) text = end + strspn(end, " ");
    if (new.action == SLOW) {
        if (!numbered || number > 86400000) return false;
        new.slow_ns = number * 1000000, new.forever = true;
    } else {
        if (numbered && !number) return false;
        if (numbered) new.left = number;
        new.forever = new.action == HANG && !numbered;
    }
    if (!strcmp(text, "forever") || !strncmp(text, "forever ", 8)) {
        new.forever = true;
        text += 7, text += strspn(text, " ");
    }
    if (!strncmp(text, "path ", 5)) text += 5;
    if (strlen(text) >= sizeof new.path || fault_count == FAULTS) return false;
    strcpy(new.path, text);
    fault[fault_count++] = new;
    return true;
}

void remove_faults(bool hangs_only) { // with lock held
    int kept = 0;
    for (int i = 0; i < fault_count; i++)
        if (hangs_only && fault[i].action != HANG) fault[kept++] = fault[i];
    fault_count = kept;
}

// Where the job's file lies below BACKING; begins with "/". `path` has room for PATH_ROOM bytes, the answer lies in it.
const char *path_of(struct job *job, char *path) {
    char link[32], *below = path;
    struct node *node = node_of(job->ino);
    int fd = take_fd(node);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH_MAX);
    give_fd(node, fd);
    path[n < 0 ? 0 : n] = 0;
    if (!strncmp(path, backing, strlen(backing))) below += strlen(backing);
    if (job->kind == LOOKUP) strcat(strcat(path, "/"), job->name);
    return below;
}

// Lets every matching rule act on the job; true: it hangs.
bool strike(struct job *job) {
    if (job->kind == GETATTR && job->ino == FUSE_ROOT_ID) return false; // the way to the control file stays open
    char path[PATH_ROOM];
    const char *below = path_of(job, path);
    bool hang = false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < fault_count; i++) {
        struct fault *rule = &fault[i];
        if (rule->kind != job->kind || !strstr(below, rule->path)) continue;
        if (rule->left > 1) {
            rule->left--;
            continue;
        }
        faults_struck++;
        if (rule->action == FAIL_IO) job->error = EIO;
        if (rule->action == FAIL_STALE) job->error = ESTALE;
        if (rule->action == SHORT) job->half = true;
        if (rule->action == SLOW) job->slow_ns += rule->slow_ns;
        if (rule->action == HANG) hang = true;
        if (!rule->forever) {
            memmove(rule, rule + 1, (size_t)(fault_count - i - 1) * sizeof *rule);
            fault_count--;
            i--;
        }
    }
    pthread_mutex_unlock(&lock);
    return hang;
}
