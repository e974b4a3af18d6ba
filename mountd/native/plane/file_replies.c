/* Replies about files that the tables know, to requests that have just come, or that have waited until they did.
 *
 * Asks nobody: what is not in the tables is for whoever called. A part of the pipeline, see fetch.h.
 */
#include "fetch.h"

struct question {
    int device;
    const struct fuse_in_header *header;
};

static int reply_name(const struct slot *facts, void *context) {
    const struct question *question = context;
    follows_looked_up(question->header->pid, facts->id); /* before the reply: its OPEN may be read by another thread at once */
    return reply_entry(question->device, question->header->unique, facts);
}

int reply_looked_up(int device, const struct fuse_in_header *header, const char *name, size_t size) {
    struct question question = {device, header};
    if (!slots_look_up(header->nodeid, name, size, monotonic_ns(), reply_name, &question)) return 0;
    __atomic_add_fetch(&answered.look_ups, 1, __ATOMIC_RELAXED);
    return 1;
}

static int reply_seen(const struct slot *facts, void *context) {
    const struct question *question = context;
    return reply_attributes(question->device, question->header->unique, facts);
}

int reply_attributes_of_slot(int device, const struct fuse_in_header *header) {
    struct question question = {device, header};
    if (!slots_attributes(header->nodeid, monotonic_ns(), reply_seen, &question)) return 0;
    __atomic_add_fetch(&answered.attributes, 1, __ATOMIC_RELAXED);
    return 1;
}

int reply_read_of_slot(int device, const struct fuse_in_header *header, char *buffer) {
    const struct fuse_read_in *in = (const void *)(header + 1);
    ssize_t size = contents_read(in->fh, in->offset, in->size, buffer);
    if (size < 0) return (int)-size;
    reply_to(device, header->unique, 0, buffer, (size_t)size);
    served(header->pid, size);
    return 0;
}

static int answer_one(const struct waiter *waiter, int device, const struct slot_place *place, char *buffer, struct waiter **gone) {
    const struct fuse_in_header *header = (const void *)waiter->request;
    struct content *to_push = NULL;
    if (!waiter->slot) return reply_looked_up(device, header, place->name, place->name_size);
    if (header->opcode == FUSE_READ) return !reply_read_of_slot(device, header, buffer);
    int answered = contents_open(device, waiter->slot, header, waiter->size, &to_push);
    if (to_push) contents_push(device, to_push, buffer, gone);
    return answered > 0;
}

/* `opens`: where those go that open the file; NULL: they are answered too. */
static void answer_each(struct waiter *waiter, int device, const struct slot_place *place, char *buffer, struct waiter **opens,
                        struct waiter **gone) {
    for (struct waiter *next; waiter; waiter = next) {
        next = waiter->next;
        if (opens && ((const struct fuse_in_header *)(void *)waiter->request)->opcode == FUSE_OPEN) {
            waiter->next = *opens;
            *opens = waiter;
            continue;
        }
        if (!answer_one(waiter, device, place, buffer, gone)) queue_put(waiter->request, waiter->size);
        waiter_done(waiter);
    }
}

struct waiter *waiters_answer(struct waiter *first, int device, const struct slot_place *place, char *buffer) {
    struct waiter *opens = NULL, *gone = NULL;
    answer_each(first, device, place, buffer, &opens, &gone);
    answer_each(opens, device, place, buffer, NULL, &gone); /* last: an open may push, and a READ has pages locked */
    return gone;
}
