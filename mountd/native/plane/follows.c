/* Which threads open what they look up: whose look-up of a new name is as good as its open, so that its file is read at once.
 *
 * A loader worker opens each file that it looks up; `ls -l`, `find` and `os.path.exists` look up and go on. The kernel does not
 * say what for, but a thread goes on as it has begun: each open of the file that it looked up last counts for it, each file
 * that was left unopened counts twice against it, and from two on it is believed. A change of mind costs two files at most.
 * Two threads whose ids fall together forget each other, which costs a look-up without its fetch. A part of the pipeline,
 * see fetch.h.
 */
#include "fetch.h"

#define THREADS 1024
#define BELIEVED 2
#define MOST 4
#define LEFT 2

static struct {
    pthread_mutex_t lock;
    struct {
        uint64_t thread_id, last; /* `last`: looked up and not opened */
        int score;
    } threads[THREADS];
} follows = {.lock = PTHREAD_MUTEX_INITIALIZER};

void follows_looked_up(uint64_t thread_id, uint64_t slot) {
    if (!thread_id) return;
    size_t at = thread_id % THREADS;
    pthread_mutex_lock(&follows.lock);
    if (follows.threads[at].thread_id != thread_id) {
        follows.threads[at].thread_id = thread_id;
        follows.threads[at].last = 0;
        follows.threads[at].score = 0;
    }
    if (follows.threads[at].last && follows.threads[at].last != slot) {
        int score = follows.threads[at].score - LEFT;
        follows.threads[at].score = score > 0 ? score : 0;
    }
    follows.threads[at].last = slot;
    pthread_mutex_unlock(&follows.lock);
}

void follows_opened(uint64_t thread_id, uint64_t slot) {
    size_t at = thread_id % THREADS;
    pthread_mutex_lock(&follows.lock);
    if (thread_id && follows.threads[at].thread_id == thread_id && follows.threads[at].last == slot) {
        follows.threads[at].last = 0;
        if (follows.threads[at].score < MOST) follows.threads[at].score++;
    }
    pthread_mutex_unlock(&follows.lock);
}

int follows_is_expected(uint64_t thread_id) {
    size_t at = thread_id % THREADS;
    pthread_mutex_lock(&follows.lock);
    int score = follows.threads[at].score - (follows.threads[at].last ? LEFT : 0);
    int expected = thread_id && follows.threads[at].thread_id == thread_id && score >= BELIEVED;
    pthread_mutex_unlock(&follows.lock);
    return expected;
}
