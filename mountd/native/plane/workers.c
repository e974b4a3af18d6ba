/* The threads of the pipeline: each does one job after the other, and waits for the source as long as that takes; some
 * only push.
 *
 * They read no requests, so they may push pages and answer whoever waits. One that the source does not answer is given up
 * by Python: another takes its place, at once or as soon as a thread can be had, and it ends when it comes back. They take
 * no signals, and never run Python. A part of the pipeline, see fetch.h.
 */
#include "fetch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STACK_BYTES ((size_t)256 << 10)
#define REST_NS 1000000
#define GRANT_NS INT64_C(500000000) /* Python looks every 20 ms what is left, and was seen to be late by 150 */

static struct {
    int count;   /* that run, given up or not; atomic */
    int wanted;  /* numbers of threads; atomic */
    char has[FETCH_WORKERS]; /* those that one has that is not given up; atomic */
    int device;
    size_t unstored; /* what is being fetched ahead, at most, for which the cache has no room; atomic */
    size_t spare_bytes;
    size_t may_wait; /* for room: as many as fetch ahead, so that the others are there for readers */
} workers;

struct reader_waits reader_waits;

/* What has become of files that were fetched or looked at, in their order, until Python takes it. Bounded by what is granted
 * and by what Python has asked for ahead: who stores needs numbers, which come with the next look of Python. */
static struct {
    pthread_mutex_t lock;
    struct fetched *first, **last;
} outcomes = {.lock = PTHREAD_MUTEX_INITIALIZER, .last = &outcomes.first};

static void fetched_add(struct fetched *fetched) {
    fetched->next = NULL;
    pthread_mutex_lock(&outcomes.lock);
    *outcomes.last = fetched;
    outcomes.last = &fetched->next;
    pthread_mutex_unlock(&outcomes.lock);
    news_tell(NEWS_FETCHED);
}

struct fetched *fetched_take(size_t most) {
    pthread_mutex_lock(&outcomes.lock);
    struct fetched *first = outcomes.first, **end = &outcomes.first;
    for (; most && *end; most--) end = &(*end)->next;
    struct fetched *rest = *end;
    if (end == &outcomes.first) first = NULL;
    *end = NULL;
    outcomes.first = rest;
    if (!rest) outcomes.last = &outcomes.first;
    pthread_mutex_unlock(&outcomes.lock);
    return first;
}

static struct fetched *outcome_of(const struct job *job, const struct file *file) {
    struct fetched *outcome = calloc(1, sizeof *outcome);
    if (!outcome) return NULL;
    outcome->ahead = job->ahead;
    outcome->directory = job->delegated->entry.node;
    outcome->generation = job->delegated->generation;
    outcome->checksum = file->checksum;
    outcome->seen = file->seen;
    outcome->name_size = job->name_size;
    memcpy(outcome->name, job->name, job->name_size);
    return outcome;
}

/* Bytes that came from the source go to the cache. Whoever waited for them has its answer. */
static void store(struct job *job, const struct file *file, const char *data, struct content *held) {
    struct fetched *outcome = outcome_of(job, file);
    struct stored stored = {0, 0, 0};
    if (outcome && store_is_pythons()) {
        outcome->kind = FETCHED_GIVEN;
        outcome->data = data;
        outcome->held = held;
        fetched_add(outcome);
        return;
    }
    int at_once = !job->is_demand && store_is_at_once();
    if (outcome && !store_has_room((size_t)file->seen.size)) {
        __atomic_store_n(&job->began_ns, monotonic_ns(), __ATOMIC_RELAXED); /* it does not hang in the source */
        store_wait((size_t)file->seen.size, GRANT_NS, workers.may_wait);
    }
    if (at_once) __atomic_store_n(&job->began_ns, monotonic_ns(), __ATOMIC_RELAXED);
    int error = outcome ? store_write(data, (size_t)file->seen.size, at_once, &stored) : ENOMEM;
    if (!error) {
        struct staged_object object = {
            .number = stored.number, .inode = stored.inode, .size = file->seen.size, .checksum = file->checksum,
            .ctime_ns = stored.ctime_ns, .is_right = 1, .has_version = 1, .version = staged_version_of(&file->seen),
        };
        error = staged_put(&object);
    }
    contents_stored(held, error ? 0 : stored.number);
    if (!outcome || (!stored.number && !job->ahead)) { /* nobody needs to hear of it */
        free(outcome);
        return;
    }
    outcome->kind = !error ? FETCHED_STORED : stored.number ? FETCHED_BROKEN : FETCHED_UNSTORED;
    outcome->stored = stored;
    fetched_add(outcome);
}

static void told(const struct job *job, const struct file *file, enum fetched_kind kind) {
    struct fetched *outcome = job->ahead ? outcome_of(job, file) : NULL;
    if (!outcome) return;
    outcome->kind = kind;
    outcome->stored.number = file->number;
    fetched_add(outcome);
}

/* Of a job that nobody waits for: whether to fetch, though the cache has no room. What finds none stays in memory until it
 * is read, if all that is under way fits besides what waits there; more would drive it out, to be read again. */
static int has_place(const struct job *job) {
    size_t largest = (size_t)job->delegated->largest, under_way = __atomic_add_fetch(&workers.unstored, largest, __ATOMIC_ACQ_REL);
    return contents_unstored() + under_way <= workers.spare_bytes / 2;
}

static int ask_source(const struct job *job, struct file *file) {
    int error = user_enter() ? SOURCE_PYTHONS : 0;
    if (!error) error = job->goal == JOB_LOOK ? source_look(job->delegated, job->name, file) : source_fetch(job->delegated, job->name, file);
    user_leave();
    return error;
}

static int get(struct job *job, struct file *file, int *is_without_room) {
    if (job->is_demand) {
        int64_t began_ns = monotonic_ns();
        count(&reader_waits.waiting, 1);
        int error = ask_source(job, file);
        count(&reader_waits.waiting, -1);
        count(&reader_waits.ns, monotonic_ns() - began_ns);
        count(&reader_waits.count, 1);
        return error;
    }
    if (!*is_without_room && !store_has_room((size_t)job->delegated->largest)) {
        *is_without_room = 1;
        if (!has_place(job)) return SOURCE_PYTHONS;
    }
    return ask_source(job, file);
}

/* The bytes of what these open have gone, while they were to be pushed. */
static void fetch_again(struct waiter *waiter) {
    for (struct waiter *next; waiter; waiter = next) {
        next = waiter->next;
        if (!jobs_fetch((void *)waiter->request, waiter->size, monotonic_ns())) queue_put(waiter->request, waiter->size);
        free(waiter);
    }
}

static void answer_waiters(const struct job *job, const struct seen *seen, struct waiter *waiters, char *buffer) {
    if (job->error) {
        waiters_to_python(waiters);
        return;
    }
    struct slot_place place = {.directory = job->delegated->entry.node, .seen = *seen, .name_size = job->name_size};
    memcpy(place.name, job->name, job->name_size);
    fetch_again(waiters_answer(waiters, workers.device, &place, buffer));
}

static void run(struct job *job, char *buffer) {
    struct file file = {.linked = NULL};
    struct content *held;
    struct waiter *waiters;
    char *data;
    int error, is_without_room = 0;
    do {
        source_done(&file);
        memset(&file, 0, sizeof file);
        error = get(job, &file, &is_without_room);
        data = file.data;
    } while (!jobs_enter(job, error, &file, &held, &waiters));
    answer_waiters(job, &file.seen, waiters, buffer);
    if (held) {
        store(job, &file, data, held);
        contents_trim(workers.spare_bytes);
    } else {
        told(job, &file, job->error ? FETCHED_NOTHING : FETCHED_HERE);
        buffer_give(file.data, (size_t)file.seen.size);
    }
    source_done(&file);
    if (is_without_room) __atomic_sub_fetch(&workers.unstored, (size_t)job->delegated->largest, __ATOMIC_ACQ_REL);
}

static int take(int number) {
    if (__atomic_exchange_n(&workers.has[number], 1, __ATOMIC_ACQ_REL)) return 0;
    jobs_threads_add(1);
    return 1;
}

static void leave(int number) {
    if (__atomic_exchange_n(&workers.has[number], 0, __ATOMIC_ACQ_REL)) jobs_threads_add(-1);
}

static void *work(void *argument) {
    int number = (int)(intptr_t)argument;
    char name[16], *buffer = aligned_alloc(4096, ANSWER_BYTES);
    snprintf(name, sizeof name, "hfs-fetch-%d", number);
    pthread_setname_np(pthread_self(), name);
    struct job *job = NULL;
    if (!buffer || user_begin()) { /* no memory just now: others do its work */
        free(buffer);
        buffer = NULL;
        leave(number);
    }
    while (buffer && (job = jobs_next(number))) {
        run(job, buffer);
        if (!jobs_done(job, number)) break;
    }
    free(buffer);
    __atomic_sub_fetch(&workers.count, 1, __ATOMIC_ACQ_REL);
    return NULL;
}

static void *push(void *argument) {
    char *buffer = aligned_alloc(4096, ANSWER_BYTES); /* without it what lies in memory is pushed, and nothing else */
    struct content *content;
    pthread_setname_np(pthread_self(), "hfs-push");
    while ((content = pushes_next())) {
        struct waiter *gone = NULL;
        contents_push((int)(intptr_t)argument, content, buffer, &gone);
        fetch_again(gone);
    }
    free(buffer);
    __atomic_sub_fetch(&workers.count, 1, __ATOMIC_ACQ_REL);
    return NULL;
}

static int start_one(void *(*run)(void *), int argument) {
    __atomic_add_fetch(&workers.count, 1, __ATOMIC_ACQ_REL);
    int error = detached_start(run, argument, STACK_BYTES);
    if (error) __atomic_sub_fetch(&workers.count, 1, __ATOMIC_ACQ_REL);
    return error;
}

/* Numbers that no thread has get one, as far as that is possible now. */
static int start_missing(void) {
    int error = 0, wanted = __atomic_load_n(&workers.wanted, __ATOMIC_ACQUIRE);
    for (int number = 0; number < wanted && !error; number++) {
        if (__atomic_load_n(&workers.count, __ATOMIC_ACQUIRE) >= FETCH_THREADS + PUSH_THREADS) return EAGAIN;
        if (!take(number)) continue;
        error = start_one(work, number);
        if (error) leave(number);
    }
    return error;
}

size_t workers_unstored(void) { return contents_unstored() + __atomic_load_n(&workers.unstored, __ATOMIC_ACQUIRE); }

int workers_start(int device, int count, int ahead_at_most, size_t ahead_bytes) {
    if (!checksum_is_available()) return ENOSYS;
    if (count < 1 || count > FETCH_WORKERS || ahead_at_most > count) return EINVAL;
    if (__atomic_load_n(&workers.count, __ATOMIC_ACQUIRE)) return EBUSY;
    int refused = user_try();
    if (refused) return refused;
    workers.device = device;
    workers.spare_bytes = ahead_bytes / 2;
    workers.may_wait = (size_t)ahead_at_most;
    reserved_begin();
    jobs_begin((size_t)ahead_at_most, ahead_bytes);
    for (int number = 0; number < FETCH_WORKERS; number++) leave(number);
    __atomic_store_n(&workers.wanted, count, __ATOMIC_RELEASE);
    int error = start_missing();
    if (error && !jobs_threads()) return error; /* fewer do until there are more */
    pushes_begin(PUSH_THREADS);
    int pushing = 0;
    while (pushing < PUSH_THREADS && !start_one(push, device)) pushing++;
    pushes_begin(pushing);
    return 0;
}

void workers_stop(int64_t patience_ns) {
    int64_t end_ns = monotonic_ns() + patience_ns;
    __atomic_store_n(&workers.wanted, 0, __ATOMIC_RELEASE);
    jobs_end();
    pushes_end();
    while (__atomic_load_n(&workers.count, __ATOMIC_ACQUIRE) && monotonic_ns() < end_ns)
        nanosleep(&(struct timespec){.tv_nsec = REST_NS}, NULL);
}

size_t workers_replace(int64_t before_ns, uint64_t *directories) {
    int stuck[FETCH_WORKERS];
    size_t count = jobs_hanging(before_ns, stuck, directories);
    for (size_t i = 0; i < count; i++) leave(stuck[i]);
    start_missing();
    return count;
}
