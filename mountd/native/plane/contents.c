/* Slots whose bytes are here: in memory, or in an object of the cache. Opened, read and closed without Python.
 *
 * The first open puts all bytes into the kernel's page cache before it is answered, so that no READ follows; who opens the
 * same file meanwhile waits for that. Only while nobody has it open: a READ that is not answered has pages locked, and a
 * push waits for them. And never in a thread that reads requests, which would have to answer that READ: such a thread hands
 * the open over (pushes.c). All handles of a slot are its id. Each file that somebody has open is written down where the
 * next daemon finds it (counts.c), before the kernel hears of it. A part of the pipeline, see fetch.h.
 */
#include "fetch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NOTED_EVERY_NS (INT64_C(600) * 1000000000) /* evictions are ordered by it, some minutes more or less */

struct content {
    struct entry entry; /* by the slot's id */
    pthread_mutex_t lock;
    int users;          /* atomic; the table is one */
    int is_taken;       /* it is Python's */
    int is_pushed, is_pushing;
    struct waiter *waiters; /* for the end of the push */
    char *data;         /* NULL: not in memory */
    int is_storing;     /* somebody writes `data` to an object, without the lock */
    struct slot *slot;  /* of the table; NULL: not asked for yet */
    int64_t noted_ns; /* when the index was last told that it is used; 0: never */
    struct content *older, *newer; /* among those whose data may go */
    struct line_of_contents *line; /* which of them; NULL: in none */
    struct content_facts facts;
};

static struct table table = TABLE;

/* Data that may go, the oldest first: those that are in an object as well, then those that will be in none, which are to
 * be read from the source again. The lock is taken while the lock of one content is held, never before. */
enum { IN_OBJECT, UNSTORED, LINES };

static struct {
    pthread_mutex_t lock;
    struct line_of_contents {
        struct content *oldest, *newest;
        size_t bytes;
    } lines[LINES];
} spare = {.lock = PTHREAD_MUTEX_INITIALIZER};

static size_t size_of(const struct content *content) { return (size_t)content->facts.size; }

static void let_go(struct content *content) {
    if (__atomic_sub_fetch(&content->users, 1, __ATOMIC_ACQ_REL)) return;
    buffer_give(content->data, size_of(content));
    pthread_mutex_destroy(&content->lock);
    free(content);
}

static struct content *hold(uint64_t slot) {
    struct shard *held;
    struct content *content = (struct content *)table_hold(&table, slot, &held);
    if (!content) return NULL;
    __atomic_add_fetch(&content->users, 1, __ATOMIC_RELAXED);
    table_let_go(held);
    return content;
}

int contents_put(const struct content_facts *facts, char *data, struct content **held) {
    struct content *content = calloc(1, sizeof *content);
    if (!content) return ENOMEM;
    content->entry.node = facts->slot;
    content->users = data ? 2 : 1;
    content->is_storing = data != NULL;
    content->facts = *facts;
    content->data = data;
    pthread_mutex_init(&content->lock, NULL);
    int error = table_put(&table, &content->entry);
    if (error) free(content);
    *held = data && !error ? content : NULL;
    struct slot_place place;
    if (!error && !slots_place(facts->slot, 0, &place)) contents_take(facts->slot); /* it was taken before this was there */
    return error;
}

/* Of what only the kernel had: its pages are gone. */
int contents_refill(const struct content_facts *facts, char *data, struct content **held) {
    struct content *content = hold(facts->slot);
    if (!content) return ENOENT;
    pthread_mutex_lock(&content->lock);
    int is_nowhere = !content->is_taken && !content->data && !content->facts.number;
    if (is_nowhere) {
        content->facts.number = facts->number;
        content->data = data;
        content->is_storing = data != NULL;
        content->is_pushed = 0;
    }
    pthread_mutex_unlock(&content->lock);
    if (is_nowhere && data)
        *held = content;
    else
        let_go(content);
    return is_nowhere ? 0 : EEXIST;
}

int contents_find(uint64_t slot, const struct slot_place *place) {
    uint64_t checksum, number = place->object;
    struct content *none;
    if (!number) number = staged_find(&place->seen, &checksum);
    if (!number || number == STAGED_PYTHONS || !staged_knows(number)) return 0;
    struct content_facts facts = {.slot = slot, .number = number, .size = place->seen.size};
    int error = contents_put(&facts, NULL, &none);
    return !error || error == EEXIST;
}

int contents_has(uint64_t slot) { return table_has(&table, slot); }

int contents_find_opened(uint64_t slot) {
    struct slot_place place = {.opens = 0};
    if (!contents_has(slot)) slots_place(slot, 0, &place);
    return place.opens ? contents_find(slot, &place) : -1;
}

int contents_is_storing(uint64_t slot) {
    struct content *content = hold(slot);
    if (!content) return 0;
    pthread_mutex_lock(&content->lock);
    int is_storing = content->is_storing;
    pthread_mutex_unlock(&content->lock);
    let_go(content);
    return is_storing;
}

/* ---- memory ------------------------------------------------------------------------------------------------------- */

/* With the lock of the content, and of `spare`. */
static void unlist(struct content *content) {
    struct line_of_contents *line = content->line;
    if (!line) return;
    *(content->older ? &content->older->newer : &line->oldest) = content->newer;
    *(content->newer ? &content->newer->older : &line->newest) = content->older;
    content->line = NULL;
    line->bytes -= size_of(content);
}

/* With its lock: nobody needs the data, since they are elsewhere too. */
static void drop_data(struct content *content) {
    pthread_mutex_lock(&spare.lock);
    unlist(content);
    pthread_mutex_unlock(&spare.lock);
    if (content->is_storing || content->is_pushing || !content->data) return;
    buffer_give(content->data, size_of(content));
    content->data = NULL;
}

/* With its lock: as long as there is room. */
static void list(struct content *content) {
    pthread_mutex_lock(&spare.lock);
    struct line_of_contents *line = &spare.lines[content->facts.number ? IN_OBJECT : UNSTORED];
    content->older = line->newest;
    content->newer = NULL;
    *(line->newest ? &line->newest->newer : &line->oldest) = content;
    line->newest = content;
    content->line = line;
    line->bytes += size_of(content);
    pthread_mutex_unlock(&spare.lock);
}

/* With the lock, of one that is not taken, as long as it is not. NULL: it is about to be. */
static struct slot *slot_of(struct content *content) {
    if (!content->slot) content->slot = slots_find(content->facts.slot);
    return content->slot;
}

static int is_open(struct content *content) {
    struct slot *slot = slot_of(content);
    return slot && __atomic_load_n(&slot->opens, __ATOMIC_ACQUIRE);
}

/* With its lock, which is free when it returns: nobody has it open, and its bytes are nowhere. It is to be fetched anew. */
static void end_if_empty(struct content *content) {
    int is_empty = !content->is_taken && !content->data && !content->facts.number && !content->is_pushed && !content->is_pushing &&
                   !is_open(content) && size_of(content);
    if (is_empty) content->is_taken = 1;
    pthread_mutex_unlock(&content->lock);
    struct entry *entry;
    if (is_empty && !table_take(&table, content->facts.slot, &entry)) let_go((struct content *)entry);
}

void contents_stored(struct content *content, uint64_t number) {
    pthread_mutex_lock(&content->lock);
    content->is_storing = 0;
    content->facts.number = number;
    if (content->is_pushed || content->is_taken)
        drop_data(content);
    else if (content->data)
        list(content);
    pthread_mutex_unlock(&content->lock);
    let_go(content);
}

/* The oldest whose lock is free, held and locked; NULL: there is none. The lock of a content comes before that of `spare`. */
static struct content *oldest(size_t bytes_at_most) {
    struct content *content = NULL;
    pthread_mutex_lock(&spare.lock);
    int is_full = spare.lines[IN_OBJECT].bytes + spare.lines[UNSTORED].bytes > bytes_at_most;
    for (int line = 0; is_full && !content && line < LINES; line++)
        for (content = spare.lines[line].oldest; content; content = content->newer)
            if (!pthread_mutex_trylock(&content->lock)) break;
    if (content) __atomic_add_fetch(&content->users, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&spare.lock);
    return content;
}

void contents_trim(size_t bytes_at_most) {
    struct content *content;
    while ((content = oldest(bytes_at_most))) {
        drop_data(content);
        end_if_empty(content);
        let_go(content);
    }
}

size_t contents_unstored(void) {
    pthread_mutex_lock(&spare.lock);
    size_t bytes = spare.lines[UNSTORED].bytes;
    pthread_mutex_unlock(&spare.lock);
    return bytes;
}

int contents_forget(uint64_t slot, uint64_t count) {
    int is_held;
    if (!slots_forget(slot, count, &is_held)) return 0;
    struct content *content = is_held ? NULL : hold(slot);
    if (!content) return 1;
    pthread_mutex_lock(&content->lock);
    content->is_pushed = 0;
    end_if_empty(content);
    let_go(content);
    return 1;
}

/* ---- opens -------------------------------------------------------------------------------------------------------- */

/* With the lock: Python hears of it a moment later. */
static void tell(struct content *content, const struct fuse_in_header *header) {
    int64_t now_ns = monotonic_ns();
    int is_news = !content->noted_ns || now_ns - content->noted_ns > NOTED_EVERY_NS;
    if (is_news) content->noted_ns = now_ns;
    uint64_t object = is_news && !content->facts.is_awaited ? content->facts.number : 0;
    events_add(content->facts.slot, header->pid | (content->facts.is_awaited ? 0 : WAS_HERE), object);
}

/* With the lock. 0: it is Python's to answer. */
static int answer_open(int device, struct content *content, const struct fuse_in_header *header) {
    if (!slot_of(content)) return 0;
    slots_opened(content->slot, 1); /* before the reply: so the next daemon knows, and its RELEASE may be read by another thread at once */
    follows_opened(header->pid, content->facts.slot); /* before the reply: the next LOOKUP may be read at once */
    opened_file(content->facts.size, 0);
    if (reply_opened(device, header->unique, content->facts.slot, FOPEN_KEEP_CACHE, 0))
        slots_opened(content->slot, -1);
    else
        tell(content, header);
    content->facts.is_awaited = 0;
    return 1;
}

/* Without the lock. 1: all bytes are in the page cache; 0: they are here, and were not put there; -1: they are not here. */
static int push(int device, struct content *content, char *buffer) {
    const char *data = content->data;
    if (!data && buffer && staged_whole(content->facts.number, size_of(content), buffer)) data = buffer;
    return data ? !push_pages(device, content->facts.slot, data, size_of(content)) : -1;
}

/* With the lock. */
static int is_nowhere(struct content *content) { return !content->is_taken && !content->data && !staged_knows(content->facts.number); }

static void answer_waiters(int device, struct content *content, struct waiter *waiter, int is_here, struct waiter **gone) {
    struct slot_place place;
    if (!slots_place(content->facts.slot, 0, &place)) is_here = 0, gone = NULL;
    for (struct waiter *next; waiter; waiter = next) {
        next = waiter->next;
        pthread_mutex_lock(&content->lock);
        int answered = is_here && !content->is_taken && answer_open(device, content, (void *)waiter->request);
        pthread_mutex_unlock(&content->lock);
        if (!answered && gone) {
            waiter->next = *gone, *gone = waiter;
        } else {
            if (!answered) queue_put(waiter->request, waiter->size);
            free(waiter);
        }
    }
}

void contents_push(int device, struct content *content, char *buffer, struct waiter **gone) {
    int pushed = push(device, content, buffer);
    pthread_mutex_lock(&content->lock);
    content->is_pushing = 0;
    if (pushed > 0) content->is_pushed = 1;
    if (pushed > 0) drop_data(content);
    struct waiter *waiters = content->waiters;
    content->waiters = NULL;
    int is_evicted = pushed < 0 && is_nowhere(content);
    if (is_evicted) content->facts.number = 0;
    end_if_empty(content);
    answer_waiters(device, content, waiters, pushed >= 0, is_evicted ? gone : NULL);
    let_go(content);
}

/* With the lock: the request is answered when the push has ended. 0: no memory. */
static int wait_for_push(struct content *content, const void *request, size_t size) {
    struct waiter *waiter = waiter_of(request, size, content->facts.slot);
    if (waiter) waiter->next = content->waiters, content->waiters = waiter;
    return waiter != NULL;
}

/* With the lock: by the caller, or by whom it is handed over to, with the caller's hold. 0: by nobody. */
static int begin_push(struct content *content, const void *request, size_t size, int is_own) {
    if (is_open(content) || !wait_for_push(content, request, size)) return 0;
    if (is_own || pushes_add(content)) return content->is_pushing = 1;
    waiters_drop(content->waiters);
    content->waiters = NULL;
    return 0;
}

int contents_open(int device, uint64_t slot, const void *request, size_t size, struct content **to_push) {
    struct content *content = hold(slot);
    if (!content) return 0;
    struct object object;
    int answered = 0, is_begun = 0;
    pthread_mutex_lock(&content->lock);
    int is_in_pages = content->is_pushed || !size_of(content) || !pushes_are_wanted();
    int is_new = content->data || (!content->noted_ns && staged_is_new(content->facts.number)); /* pushed at a third of the cost */
    int is_passed = size_of(content) && !is_new && pushes_are_passed() && staged_committed(content->facts.number, &object);
    if (content->is_pushing && !content->is_taken) {
        answered = wait_for_push(content, request, size);
    } else if (!is_in_pages && is_nowhere(content)) {
        content->facts.number = 0;
        answered = -1;
    } else if (!content->is_taken && !is_passed) {
        is_begun = !is_in_pages && begin_push(content, request, size, to_push != NULL);
        answered = is_begun || answer_open(device, content, request);
    }
    end_if_empty(content);
    if (is_begun && to_push) *to_push = content;
    if (!is_begun) let_go(content);
    return answered;
}

ssize_t contents_read(uint64_t slot, uint64_t offset, size_t size, char *buffer) {
    struct content *content = hold(slot);
    if (!content) return -EAGAIN;
    ssize_t got = -EAGAIN;
    uint64_t end = content->facts.size, wanted = offset >= end ? 0 : size < end - offset ? size : end - offset;
    pthread_mutex_lock(&content->lock);
    int is_ours = !content->is_taken;
    if (is_ours && content->data) memcpy(buffer, content->data + offset, got = (ssize_t)wanted);
    uint64_t number = content->facts.number;
    pthread_mutex_unlock(&content->lock);
    if (got < 0 && is_ours && !number) got = -ENODATA;
    if (got < 0 && is_ours && number) got = staged_part(number, end, offset, (size_t)wanted, buffer);
    let_go(content);
    return got;
}

int contents_release(uint64_t slot, void (*reply)(void *), void *context) {
    struct content *content = hold(slot);
    if (!content) return slots_release(slot, reply, context);
    pthread_mutex_lock(&content->lock);
    int ours = !content->is_taken && is_open(content);
    if (ours) {
        reply(context); /* first, as in opens_release */
        slots_opened(content->slot, -1);
    }
    pthread_mutex_unlock(&content->lock);
    let_go(content);
    return ours;
}

void contents_take(uint64_t slot) {
    struct entry *entry;
    if (table_take(&table, slot, &entry)) return;
    struct content *content = (struct content *)entry;
    pthread_mutex_lock(&content->lock);
    content->is_taken = 1;
    drop_data(content);
    pthread_mutex_unlock(&content->lock); /* who waits is Python's once the push has ended */
    let_go(content);
}

size_t contents_count(void) { return table_count(&table); }
