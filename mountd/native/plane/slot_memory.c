/* The memory of the table: one slot of a fixed size for each file, in a memfd that the keeper holds, so that the next daemon
 * of the mount finds there what this one has told the kernel.
 *
 * A daemon may be killed at any store. So a slot's id is stored last, and taken out first; what must not tear (where the
 * file is, and its version) is written once, and has a checksum; whoever changes the rest takes the time until which it is
 * good to zero before. A slot whose checksum is wrong is free. Look-ups and opens are counted before the kernel is told: one
 * that was not told is counted for ever, and a file is kept for nobody.
 *
 * Slots lie in segments, which come and go as wholes: for names as nearly all are, and for longer ones. A part of the data plane, see plane.h. Finds nothing: slots.c does.
 */
#include "plane.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEGMENT_BYTES ((off_t)2 << 20)
#define SEGMENTS 16384 /* 134 million slots */
#define HEADER_BYTES 4096
#define SHORT_BYTES ((size_t)256) /* of a slot: names of 95 bytes */
#define LONG_BYTES ((size_t)512)  /* of any length */
#define MOST_SLOTS ((uint32_t)(SEGMENT_BYTES / 256)) /* of a segment */
#define NAME_AT offsetof(struct slot, name)

struct header { /* of another release, or none: what is behind it is nothing */
    uint64_t magic, layout, terms;
    uint8_t are_long[SEGMENTS / 8];
};
#define MAGIC UINT64_C(0x31746f6c73736668) /* "hfsslot1" */
#define LAYOUT (NAME_AT << 32 | sizeof(struct seen) << 16 | sizeof(struct header))

_Static_assert(sizeof(struct header) <= HEADER_BYTES && LONG_BYTES - NAME_AT >= UINT8_MAX, "there is room");

static struct {
    pthread_mutex_t lock;
    int fd; /* -1: none yet */
    struct header *header;
    uint32_t count, roomy[2]; /* segments; none before `roomy` has room for a short, or a long name */
    struct segment {
        char *memory;
        size_t slot_bytes;
        struct slot *unused;  /* a chain by next_by_name */
        uint32_t used, fresh; /* from `fresh` on none was ever used */
        int is_removed;       /* its memory was given back */
    } segments[SEGMENTS];
} memory = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

static off_t offset_of(uint32_t segment) { return COUNTS_BYTES + HEADER_BYTES + segment * SEGMENT_BYTES; }

static uint32_t slots_of(const struct segment *segment) { return (uint32_t)((size_t)SEGMENT_BYTES / segment->slot_bytes); }

static struct slot *slot_in(const struct segment *of, uint32_t index) { return (struct slot *)(of->memory + index * of->slot_bytes); }

static uint32_t checksum(const struct slot *slot, uint64_t id) {
    const struct seen *seen = &slot->seen;
    uint64_t parts[] = {id, slot->directory, seen->inode, seen->size, (uint64_t)seen->seconds[1], (uint64_t)seen->seconds[2],
                        (uint64_t)seen->parts[1] << 32 | seen->parts[2], slot->name_size};
    uint64_t hash = name_key(slot->directory, slot->name, slot->name_size);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        hash = (hash ^ parts[i]) * UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 29;
    }
    return (uint32_t)(hash ^ hash >> 32);
}

int seen_have_one_version(const struct seen *one, const struct seen *other) {
    return one->inode == other->inode && one->size == other->size && one->seconds[1] == other->seconds[1] &&
           one->parts[1] == other->parts[1] && one->seconds[2] == other->seconds[2] && one->parts[2] == other->parts[2];
}

static int is_sound(const struct segment *segment, const struct slot *slot) {
    return slot->id && slot->name_size && slot->name_size <= segment->slot_bytes - NAME_AT && slot->checksum == checksum(slot, slot->id);
}

static int map_segment(uint32_t number) {
    char *mapped = mmap(NULL, (size_t)SEGMENT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd, offset_of(number));
    if (mapped == MAP_FAILED) return ENOMEM;
    int is_long = memory.header->are_long[number / 8] >> number % 8 & 1;
    memory.segments[number] = (struct segment){.memory = mapped, .slot_bytes = is_long ? LONG_BYTES : SHORT_BYTES};
    memory.count++;
    return 0;
}

static void detach(void) {
    for (uint32_t i = 0; i < memory.count; i++) munmap(memory.segments[i].memory, (size_t)SEGMENT_BYTES);
    if (memory.header) munmap(memory.header, HEADER_BYTES);
    if (memory.fd >= 0) close(memory.fd);
    memory.fd = -1;
    memory.header = NULL;
    memory.count = memory.roomy[0] = memory.roomy[1] = 0;
}

/* It is ours from now on, with its segments, if it has any. */
static int take_over(int fd) {
    struct stat is;
    int error = posix_fallocate(fd, COUNTS_BYTES, HEADER_BYTES); /* or writing to it may kill us */
    if (error) return error;
    struct header *header = mmap(NULL, HEADER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, COUNTS_BYTES);
    if (header == MAP_FAILED) return ENOMEM;
    memory.header = header;
    if (header->magic != MAGIC || header->layout != LAYOUT) {
        if (ftruncate(fd, offset_of(0))) return errno;
        *header = (struct header){.magic = MAGIC, .layout = LAYOUT};
    }
    if (fstat(fd, &is)) return errno;
    while (!error && memory.count < SEGMENTS && offset_of(memory.count + 1) <= is.st_size) error = map_segment(memory.count);
    return error;
}

static int attach(int fd) {
    detach();
    memory.fd = fd < 0 ? memfd_create("hfs-table", MFD_CLOEXEC) : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    int error = memory.fd < 0 ? errno : take_over(memory.fd);
    if (error && fd >= 0 && ftruncate(fd, COUNTS_BYTES)) error = errno; /* what is said from now on is not said there */
    if (error) detach();
    return error;
}

/* Of a segment that nobody uses; one of them stays, for whoever comes next. */
static void give_back(uint32_t number) {
    struct segment *segment = &memory.segments[number];
    for (uint32_t i = 0; i < memory.count; i++)
        if (i != number && !memory.segments[i].used && !memory.segments[i].is_removed && memory.segments[i].slot_bytes == segment->slot_bytes) {
            if (madvise(segment->memory, (size_t)SEGMENT_BYTES, MADV_REMOVE)) return;
            segment->unused = NULL;
            segment->fresh = 0;
            segment->is_removed = 1;
            return;
        }
}

/* With the lock. Nothing lies in a segment that was given back, nor in one that nobody has used. */
static int is_hole(uint32_t number) {
    off_t data = lseek(memory.fd, offset_of(number), SEEK_DATA);
    return data < 0 || data >= offset_of(number) + SEGMENT_BYTES || posix_fallocate(memory.fd, offset_of(number), SEGMENT_BYTES);
}

/* With the lock: no more than so many are there. */
static size_t most_there(void) {
    size_t most = 0;
    for (uint32_t i = 0; i < memory.count; i++) most += (memory.segments[i].is_removed = is_hole(i)) ? 0 : slots_of(&memory.segments[i]);
    return most;
}

/* What is found there is told once, and the rest is free. Under other terms it is not known until when it is good. */
int slot_memory_attach(int fd, uint64_t terms, void (*expected)(size_t), int (*found)(struct slot *)) {
    pthread_mutex_lock(&memory.lock);
    int error = attach(fd), are_same = !error && memory.header->terms == terms;
    expected(most_there());
    for (uint32_t i = 0; i < memory.count; i++) {
        struct segment *segment = &memory.segments[i];
        if (segment->is_removed) continue;
        segment->fresh = slots_of(segment);
        for (uint32_t index = 0; index < segment->fresh; index++) {
            struct slot *slot = slot_in(segment, index);
            slot->segment = i;
            slot->object = 0; /* which index numbers it is not known here */
            if (!are_same) slot->until_ns = 0;
            if (is_sound(segment, slot) && found(slot)) {
                segment->used++;
                continue;
            }
            slot->id = 0;
            slot->next_by_name = segment->unused;
            segment->unused = slot;
        }
        if (!segment->used) give_back(i);
    }
    if (!error) memory.header->terms = terms; /* last: who is killed before has changed nothing that is believed then */
    pthread_mutex_unlock(&memory.lock);
    return error;
}

/* With the lock: its memory is there. */
static int have_memory(uint32_t number) {
    struct segment *segment = &memory.segments[number];
    int error = segment->is_removed ? posix_fallocate(memory.fd, offset_of(number), SEGMENT_BYTES) : 0;
    if (!error) segment->is_removed = 0;
    return error;
}

static int add_segment(int is_long) {
    if (memory.fd < 0 && attach(-1)) return ENOMEM;
    uint32_t number = memory.count;
    uint8_t bit = (uint8_t)(1 << number % 8);
    if (number == SEGMENTS) return ENOMEM;
    uint8_t *are_long = &memory.header->are_long[number / 8];
    *are_long = (uint8_t)(is_long ? *are_long | bit : *are_long & ~bit); /* before it is there */
    return posix_fallocate(memory.fd, offset_of(number), SEGMENT_BYTES) ? ENOMEM : map_segment(number);
}

static struct segment *with_room(int is_long) {
    for (uint32_t *at = &memory.roomy[is_long]; *at < memory.count; ++*at) {
        struct segment *segment = &memory.segments[*at];
        if ((segment->slot_bytes == LONG_BYTES) == is_long && segment->used < slots_of(segment) && !have_memory(*at)) return segment;
    }
    return add_segment(is_long) ? NULL : &memory.segments[memory.roomy[is_long] = memory.count - 1];
}

struct slot *slot_new(size_t name_size) {
    pthread_mutex_lock(&memory.lock);
    struct segment *segment = with_room(name_size > SHORT_BYTES - NAME_AT);
    struct slot *slot = NULL;
    if (segment) {
        slot = segment->unused ? segment->unused : slot_in(segment, segment->fresh++);
        if (segment->unused) segment->unused = slot->next_by_name;
        segment->used++;
        memset(slot, 0, segment->slot_bytes);
        slot->segment = (uint32_t)(segment - memory.segments);
    }
    pthread_mutex_unlock(&memory.lock);
    return slot;
}

uint32_t slot_number(const struct slot *slot) {
    const struct segment *segment = &memory.segments[slot->segment];
    return slot->segment * MOST_SLOTS + (uint32_t)((size_t)((const char *)slot - segment->memory) / segment->slot_bytes);
}

struct slot *slot_at(uint32_t number) { return slot_in(&memory.segments[number / MOST_SLOTS], number % MOST_SLOTS); }

void slot_publish(struct slot *slot, uint64_t id) {
    slot->checksum = checksum(slot, id);
    __atomic_store_n(&slot->id, id, __ATOMIC_RELEASE);
}

void slot_free(struct slot *slot) {
    __atomic_store_n(&slot->id, 0, __ATOMIC_RELEASE);
    pthread_mutex_lock(&memory.lock);
    uint32_t number = slot->segment;
    struct segment *segment = &memory.segments[number];
    slot->next_by_name = segment->unused;
    segment->unused = slot;
    uint32_t *roomy = &memory.roomy[segment->slot_bytes == LONG_BYTES];
    if (number < *roomy) *roomy = number;
    if (!--segment->used) give_back(number);
    pthread_mutex_unlock(&memory.lock);
}
