/* The nodes whose reads are answered without Python: from the staged object, as far as its pages are in memory.
 *
 * Whoever would have to wait for the disk is Python's: threads there may wait. A part of the data plane, see plane.h.
 * Decides nothing.
 */
#include "plane.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

static struct table table = TABLE;

int reads_put(const struct reads *reads) {
    struct reads *copy = malloc(sizeof *copy);
    if (!copy) return ENOMEM;
    *copy = *reads;
    int error = table_put(&table, &copy->entry);
    if (error) free(copy);
    return error;
}

int reads_take(uint64_t node) {
    struct entry *entry;
    int error = table_take(&table, node, &entry);
    if (error) return error;
    close(((struct reads *)entry)->object.fd);
    free(entry);
    return 0;
}

static size_t wanted_of(const struct reads *reads, uint64_t offset, size_t size) {
    uint64_t end = reads->object.size;
    return offset >= end ? 0 : size < end - offset ? size : (size_t)(end - offset);
}

static void given(struct reads *reads, uint64_t offset, size_t size) {
    uint64_t before = __atomic_exchange_n(&reads->end, offset + size, __ATOMIC_RELAXED);
    read_file(reads->object.size, size);
    if (offset != before) __atomic_add_fetch(&reads->bytes, size, __ATOMIC_RELAXED);
}

ssize_t reads_read(uint64_t node, uint64_t offset, size_t size, char *buffer) {
    struct shard *held;
    struct reads *reads = (struct reads *)table_hold(&table, node, &held);
    if (!reads) return -EAGAIN;
    size_t wanted = wanted_of(reads, offset, size);
    ssize_t got = 0;
    if (wanted) {
        struct iovec part = {buffer, wanted};
        got = is_as_left(&reads->object) ? preadv2(reads->object.fd, &part, 1, (off_t)offset, RWF_NOWAIT) : -1;
    }
    if (got == (ssize_t)wanted) given(reads, offset, wanted);
    table_let_go(held);
    return got == (ssize_t)wanted ? got : -EAGAIN;
}

size_t reads_splice(uint64_t node, uint64_t offset, size_t size, int device, uint64_t unique) {
    struct shard *held;
    struct reads *reads = (struct reads *)table_hold(&table, node, &held);
    if (!reads) return 0;
    size_t wanted = wanted_of(reads, offset, size);
    if (wanted && !(is_as_left(&reads->object) && splice_reply(device, unique, &reads->object, offset, wanted))) wanted = 0;
    if (wanted) given(reads, offset, wanted);
    table_let_go(held);
    return wanted;
}

int reads_progress(uint64_t node, uint64_t *bytes, uint64_t *end) {
    struct shard *held;
    struct reads *reads = (struct reads *)table_hold(&table, node, &held);
    if (!reads) return 0;
    *bytes = __atomic_load_n(&reads->bytes, __ATOMIC_RELAXED);
    *end = __atomic_load_n(&reads->end, __ATOMIC_RELAXED);
    table_let_go(held);
    return 1;
}

size_t reads_count(void) { return table_count(&table); }
