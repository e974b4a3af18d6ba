/* Names that are being looked at or fetched, each once for all who want it, and the requests that wait for them.
 *
 * A job is found by its directory and name from the moment it is queued until its outcome is in the tables, so nobody
 * asks the source for a name twice at a time. What readers wait for goes first; what Python has asked for ahead is done by
 * a part of the threads, as long as there is memory. A request that cannot be answered here goes to Python as it came. A
 * part of the pipeline, see fetch.h.
 */
#include "fetch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 4096
#define AHEAD_QUEUED 4096 /* Python asks for some dozens at a time */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct job *by_name[BUCKETS];
    struct line demand, ahead;
    struct job *running[FETCH_WORKERS];
    size_t count, running_count, running_ahead, ahead_count;
    size_t ahead_at_most, ahead_bytes;
    int stopping;
} jobs = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER, .stopping = 1};

static int threads; /* atomic */

void jobs_threads_add(int more) { __atomic_add_fetch(&threads, more, __ATOMIC_ACQ_REL); }

int jobs_threads(void) { return __atomic_load_n(&threads, __ATOMIC_ACQUIRE); }

/* Of this generation: who asks after a recall does not wait for what was begun before. */
static struct job *find(uint64_t generation, uint64_t key, uint64_t directory, const char *name, size_t size) {
    struct job *job = jobs.by_name[key % BUCKETS];
    while (job && (job->key != key || job->delegated->entry.node != directory || job->delegated->generation != generation || job->name_size != size ||
                   memcmp(job->name, name, size)))
        job = job->next_by_name;
    return job;
}

static void remove_by_name(struct job *job) {
    struct job **at = &jobs.by_name[job->key % BUCKETS];
    while (*at && *at != job) at = &(*at)->next_by_name;
    if (*at) *at = job->next_by_name, jobs.count--;
}

/* With the lock. It takes over the hold of `delegated`, also if it fails. */
static struct job *add(struct delegated *delegated, uint64_t key, const char *name, size_t size, enum job_goal goal, int ahead) {
    struct job *job = calloc(1, sizeof *job);
    if (!job) {
        delegated_let_go(delegated);
        return NULL;
    }
    job->delegated = delegated;
    job->key = key;
    job->goal = goal;
    job->ahead = ahead;
    job->is_demand = !ahead;
    job->began_ns = monotonic_ns();
    job->name_size = (uint8_t)size;
    memcpy(job->name, name, size);
    struct job **at = &jobs.by_name[key % BUCKETS];
    job->next_by_name = *at;
    *at = job;
    jobs.count++;
    if (ahead) jobs.ahead_count++;
    line_add(ahead ? &jobs.ahead : &jobs.demand, job);
    return job;
}

/* With the lock: a reader waits for it. 1: it was not in the line of demand. */
static int hurry(struct job *job, enum job_goal goal) {
    if (goal == JOB_FETCH && job->place) job->goal = JOB_FETCH; /* one that runs is looked at again in jobs_enter */
    if (!job->place || job->is_demand) return 0;
    line_take(&jobs.ahead, job);
    jobs.ahead_count--;
    job->is_demand = 1;
    job->began_ns = monotonic_ns();
    line_add(&jobs.demand, job);
    return 1;
}

/* Takes over the hold of `delegated`. 1: the request waits for the job of this name, which is begun if there is none. */
static int wait_for(struct delegated *delegated, const char *name, size_t size, enum job_goal goal, struct waiter *waiter) {
    uint64_t directory = delegated->entry.node, key = name_key(directory, name, size);
    struct job *job = NULL;
    pthread_mutex_lock(&jobs.lock);
    int is_ours = waiter && !jobs.stopping && jobs_threads() && !reserved_has(key), is_new = 0;
    if (is_ours) job = find(delegated->generation, key, directory, name, size);
    if (job || !is_ours)
        delegated_let_go(delegated);
    else
        is_new = (job = add(delegated, key, name, size, goal, 0)) != NULL;
    if (job) {
        is_new |= hurry(job, goal);
        waiter->next = job->waiters;
        job->waiters = waiter;
    }
    pthread_mutex_unlock(&jobs.lock);
    if (is_new) pthread_cond_signal(&jobs.more); /* without the lock: whoever wakes up needs it */
    if (!job) free(waiter);
    return job != NULL;
}

int jobs_look_up(const struct fuse_in_header *header, const char *name, size_t size, size_t request_size) {
    struct delegated *delegated = size && size <= UINT8_MAX && !slots_are_stateless() ? delegated_hold(header->nodeid, monotonic_ns()) : NULL;
    if (!delegated) return 0;
    int is_fetched = follows_is_expected(header->pid) && !placement_is_remote(delegated, name, size);
    enum job_goal goal = is_fetched ? JOB_FETCH : JOB_LOOK;
    return wait_for(delegated, name, size, goal, waiter_of(header, request_size, 0));
}

int jobs_fetch(const struct fuse_in_header *header, size_t request_size, int64_t good_at_ns) {
    struct slot_place place;
    if (!slots_place(header->nodeid, good_at_ns, &place)) return 0;
    struct delegated *delegated = delegated_hold(place.directory, monotonic_ns());
    if (!delegated) return 0;
    int is_ours = place.seen.size <= delegated->largest && !placement_is_remote(delegated, place.name, place.name_size);
    struct waiter *waiter = is_ours ? waiter_of(header, request_size, header->nodeid) : NULL;
    return wait_for(delegated, place.name, place.name_size, JOB_FETCH, waiter);
}

static int ahead(const struct wanted *wanted, struct delegated *delegated) {
    uint64_t key = name_key(wanted->directory, wanted->name, wanted->size);
    int error = reserved_has(key) ? EPERM : find(delegated->generation, key, wanted->directory, wanted->name, wanted->size) ? EEXIST : 0;
    if (!error && (jobs.stopping || jobs.ahead_count >= AHEAD_QUEUED)) error = EAGAIN;
    if (error)
        delegated_let_go(delegated);
    else if (!add(delegated, key, wanted->name, wanted->size, JOB_FETCH, 1))
        error = ENOMEM;
    return error;
}

static int is_here(const struct wanted *wanted) {
    uint64_t slot = slots_id(wanted->directory, wanted->name, wanted->size);
    return slot && contents_has(slot);
}

/* With the lock: there is something for one more thread. Whoever takes a job wakes the next one, so that who asks need
 * wake only one: to wake one for each of three or four names took Python 150 us a call. */
static int more_ahead(void) { return jobs.ahead.first && jobs.running_ahead < jobs.ahead_at_most; }

void jobs_ahead(struct wanted *wanted, size_t count) {
    for (size_t i = 0; i < count; i++) {
        wanted[i].delegated = wanted[i].size && wanted[i].size <= UINT8_MAX ? delegated_hold(wanted[i].directory, monotonic_ns()) : NULL;
        wanted[i].error = !wanted[i].delegated ? ENOENT : is_here(&wanted[i]) ? EEXIST : placement_is_remote(wanted[i].delegated, wanted[i].name, wanted[i].size) ? EPERM : 0;
        if (wanted[i].delegated && wanted[i].error) delegated_let_go(wanted[i].delegated);
    }
    pthread_mutex_lock(&jobs.lock);
    for (size_t i = 0; i < count; i++) {
        if (!wanted[i].error) wanted[i].error = ahead(&wanted[i], wanted[i].delegated);
    }
    int more = more_ahead();
    pthread_mutex_unlock(&jobs.lock);
    if (more) pthread_cond_signal(&jobs.more);
}

void jobs_interrupt(uint64_t unique) {
    struct waiter *found = NULL;
    pthread_mutex_lock(&jobs.lock);
    for (size_t i = 0; i < BUCKETS && jobs.count && !found; i++)
        for (struct job *job = jobs.by_name[i]; job && !found; job = job->next_by_name)
            for (struct waiter **at = &job->waiters; *at; at = &(*at)->next)
                if (((struct fuse_in_header *)(*at)->request)->unique == unique) {
                    found = *at;
                    *at = found->next;
                    break;
                }
    pthread_mutex_unlock(&jobs.lock);
    if (found) queue_put(found->request, found->size);
    free(found);
}

void jobs_reserve(uint64_t directory, const char *name, size_t size) {
    pthread_mutex_lock(&jobs.lock);
    reserved_put(name_key(directory, name, size));
    pthread_mutex_unlock(&jobs.lock);
}

int jobs_try_reserve(uint64_t directory, const char *name, size_t size) {
    uint64_t key = name_key(directory, name, size), slot = slots_id(directory, name, size), generation = delegated_generation(directory);
    pthread_mutex_lock(&jobs.lock);
    int is_free = reserved_has(key) || (!find(generation, key, directory, name, size) && !(slot && contents_has(slot)));
    if (is_free) reserved_put(key);
    pthread_mutex_unlock(&jobs.lock);
    return is_free;
}

int jobs_is_busy(uint64_t directory, const char *name, size_t size) {
    uint64_t key = name_key(directory, name, size), generation = delegated_generation(directory), slot;
    pthread_mutex_lock(&jobs.lock);
    int is_busy = find(generation, key, directory, name, size) != NULL;
    pthread_mutex_unlock(&jobs.lock);
    return is_busy || ((slot = slots_id(directory, name, size)) && contents_is_storing(slot));
}

/* ---- the threads' side -------------------------------------------------------------------------------------------- */

/* With the lock. */
static struct job *choose(void) {
    struct job *job = jobs.demand.first;
    if (job) {
        line_take(&jobs.demand, job);
        return job;
    }
    job = jobs.ahead.first;
    if (!job || jobs.running_ahead >= jobs.ahead_at_most || buffers_out() >= jobs.ahead_bytes) return NULL;
    line_take(&jobs.ahead, job);
    jobs.ahead_count--;
    jobs.running_ahead++;
    return job;
}

struct job *jobs_next(int number) {
    struct job *job = NULL;
    pthread_mutex_lock(&jobs.lock);
    while (!jobs.stopping && !(job = choose())) pthread_cond_wait(&jobs.more, &jobs.lock);
    if (job) {
        job->began_ns = monotonic_ns();
        jobs.running[number] = job;
        jobs.running_count++;
    }
    int more = job && more_ahead();
    pthread_mutex_unlock(&jobs.lock);
    if (more) pthread_cond_signal(&jobs.more);
    return job;
}

struct putting {
    const struct job *job;
    const struct file *file;
    uint64_t slot;
};

static int put_slot(void *context) {
    struct putting *putting = context;
    const struct job *job = putting->job;
    int64_t until_ns = monotonic_ns() + job->delegated->valid_ns;
    return slots_put(job->delegated->entry.node, job->name, job->name_size, &putting->file->seen, 0, until_ns, &putting->slot);
}

/* With the lock: its outcome is in the tables. 0, or it is Python's. `held`: of the content whose bytes are to be stored. */
static int enter(struct job *job, struct file *file, struct content **held) {
    struct putting putting = {job, file, 0};
    if (reserved_has(job->key)) return SOURCE_PYTHONS;
    int error = delegated_enter(job->delegated, put_slot, &putting);
    if (error && error != EEXIST) return SOURCE_PYTHONS;
    if (!file->data && !file->number && !file->is_empty) return 0; /* looked at */
    struct content_facts facts = {putting.slot, file->number, file->seen.size, job->is_demand};
    error = contents_put(&facts, file->data, held);
    if (error == EEXIST) error = contents_refill(&facts, file->data, held);
    if (!error) file->data = NULL;
    return 0;
}

/* With the lock: somebody wants the bytes of what was only looked at. */
static int again(struct job *job) {
    int wanted = 0;
    for (struct waiter *waiter = job->waiters; waiter; waiter = waiter->next) wanted |= waiter->slot != 0;
    if (!wanted || job->goal == JOB_FETCH) return 0;
    job->goal = JOB_FETCH;
    return 1;
}

int jobs_enter(struct job *job, int error, struct file *file, struct content **held, struct waiter **waiters) {
    *held = NULL;
    pthread_mutex_lock(&jobs.lock);
    int is_done = job->abandoned || error || !again(job);
    if (is_done) {
        *waiters = job->waiters; /* none where it was given up */
        job->waiters = NULL;
        if (!job->abandoned) {
            if (!error) error = enter(job, file, held);
            remove_by_name(job);
        }
        job->error = error;
    }
    pthread_mutex_unlock(&jobs.lock);
    return is_done;
}

void jobs_ahead_at_most(size_t count) {
    pthread_mutex_lock(&jobs.lock);
    jobs.ahead_at_most = count;
    int more = more_ahead();
    pthread_mutex_unlock(&jobs.lock);
    if (more) pthread_cond_signal(&jobs.more);
}

/* 0: the thread that did it was given up, and has been replaced. Nobody else is woken: who stays looks for the next job
 * itself, and a thread for each finished job that finds nothing cost 10 us a file. */
int jobs_done(struct job *job, int number) {
    pthread_mutex_lock(&jobs.lock);
    int stays = !job->abandoned;
    if (stays) {
        jobs.running[number] = NULL;
        jobs.running_count--;
    }
    if (!job->is_demand && stays) jobs.running_ahead--;
    pthread_mutex_unlock(&jobs.lock);
    news_tell(NEWS_FETCHED); /* Python may wait for this name */
    delegated_let_go(job->delegated);
    free(job);
    return stays;
}

/* With the lock: what the thread with this number brings is too late. */
static void give_up(int number) {
    struct job *job = jobs.running[number];
    remove_by_name(job);
    job->abandoned = 1;
    jobs.running[number] = NULL;
    jobs.running_count--;
    if (!job->is_demand) jobs.running_ahead--;
}

static struct waiter **move_waiters(struct job *job, struct waiter **end) {
    *end = job->waiters;
    while (*end) end = &(*end)->next;
    job->waiters = NULL;
    return end;
}

size_t jobs_hanging(int64_t before_ns, int *numbers, uint64_t *directories) {
    struct waiter *waiters = NULL, **end = &waiters;
    size_t count = 0;
    pthread_mutex_lock(&jobs.lock);
    for (int i = 0; i < FETCH_WORKERS; i++) {
        struct job *job = jobs.running[i];
        if (!job || __atomic_load_n(&job->began_ns, __ATOMIC_RELAXED) > before_ns) continue;
        end = move_waiters(job, end);
        directories[count] = job->delegated->entry.node;
        numbers[count++] = i;
        give_up(i);
    }
    for (struct job *job = jobs.demand.first, *next; job; job = next) { /* all threads wait for something else */
        next = job->next;
        if (job->began_ns > before_ns) continue;
        end = move_waiters(job, end);
        line_take(&jobs.demand, job);
        remove_by_name(job);
        delegated_let_go(job->delegated);
        free(job);
    }
    pthread_mutex_unlock(&jobs.lock);
    waiters_to_python(waiters);
    return count;
}

size_t jobs_under_way(void) {
    pthread_mutex_lock(&jobs.lock);
    size_t count = jobs.count;
    pthread_mutex_unlock(&jobs.lock);
    return count;
}

void jobs_begin(size_t ahead_at_most, size_t ahead_bytes) {
    pthread_mutex_lock(&jobs.lock);
    jobs.ahead_at_most = ahead_at_most;
    jobs.ahead_bytes = ahead_bytes;
    jobs.stopping = 0;
    pthread_mutex_unlock(&jobs.lock);
}

static void end_line(struct line *line) {
    while (line->first) {
        struct job *job = line->first;
        line_take(line, job);
        remove_by_name(job);
        waiters_drop(job->waiters);
        delegated_let_go(job->delegated);
        free(job);
    }
}

/* Requests that wait are dropped: the connection ends, or whoever serves it next is sent them again. */
void jobs_end(void) {
    pthread_mutex_lock(&jobs.lock);
    jobs.stopping = 1;
    end_line(&jobs.demand);
    end_line(&jobs.ahead);
    jobs.ahead_count = 0;
    for (int i = 0; i < FETCH_WORKERS; i++) {
        if (!jobs.running[i]) continue;
        waiters_drop(jobs.running[i]->waiters);
        jobs.running[i]->waiters = NULL;
        give_up(i);
    }
    pthread_cond_broadcast(&jobs.more);
    pthread_mutex_unlock(&jobs.lock);
}
