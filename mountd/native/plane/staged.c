/* Reads of slots that have the number of an object: it is opened, read as far as it is in memory, and closed.
 *
 * Only in a mount where opens do not reach us, of sources that never change: the slot that the kernel reads by names its
 * object, as long as it is a slot. Which objects are right is said by Python, which takes one out before
 * that changes or goes. A part of the pipeline, see fetch.h. Keeps no descriptors, and waits for no disk.
 */
#include "fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

struct staged {
    struct entry entry; /* by the number of the object */
    struct staged_object object;
};

struct named { /* an object by its version */
    struct entry entry; /* by a hash of that; of two that have the same one is not found */
    struct staged_version version;
    uint64_t number, checksum;
    int is_pythons;
};

static struct table table = TABLE, versions = TABLE;
static int objects_fd = -1, all_objects_fd = -1; /* atomic */
static size_t version_count;                     /* atomic */
static uint64_t new_from = UINT64_MAX;           /* atomic */

void staged_in(int directory_fd) { __atomic_store_n(&objects_fd, directory_fd, __ATOMIC_RELEASE); }

void staged_at(int directory_fd) { __atomic_store_n(&all_objects_fd, directory_fd, __ATOMIC_RELEASE); }

void staged_settle(void) { __atomic_store_n(&new_from, UINT64_MAX, __ATOMIC_RELAXED); }

int staged_is_new(uint64_t number) { return number >= __atomic_load_n(&new_from, __ATOMIC_RELAXED); }

static uint64_t key_of(const struct staged_version *version) {
    uint64_t key = version->inode * UINT64_C(0x9E3779B97F4A7C15) ^ version->size;
    key = (key ^ key >> 29) * UINT64_C(0xBF58476D1CE4E5B9) ^ (uint64_t)version->mtime_ns;
    return (key ^ key >> 31) * UINT64_C(0x94D049BB133111EB) ^ (uint64_t)version->ctime_ns;
}

struct staged_version staged_version_of(const struct seen *seen) {
    const int64_t second = 1000000000;
    return (struct staged_version){seen->inode, seen->size, seen->seconds[1] * second + seen->parts[1], seen->seconds[2] * second + seen->parts[2]};
}

static void forget_version(const struct staged_object *object) {
    struct entry *entry;
    struct shard *held;
    if (!object->has_version) return;
    struct named *named = (struct named *)table_hold(&versions, key_of(&object->version), &held);
    int is_mine = named && named->number == object->number;
    if (named) table_let_go(held);
    if (!is_mine || table_take(&versions, key_of(&object->version), &entry)) return;
    free(entry);
    __atomic_sub_fetch(&version_count, 1, __ATOMIC_RELAXED);
}

static void note_version(const struct staged_object *object) {
    struct named *named = object->has_version ? malloc(sizeof *named) : NULL;
    if (!named) return;
    *named = (struct named){.entry.node = key_of(&object->version), .version = object->version, .number = object->number, .checksum = object->checksum, .is_pythons = object->is_pythons};
    if (table_put(&versions, &named->entry))
        free(named);
    else
        __atomic_add_fetch(&version_count, 1, __ATOMIC_RELAXED);
}

/* 1: it was there, and has what is new of it now. */
static int prove(const struct staged_object *object) {
    struct shard *held;
    struct staged *staged = (struct staged *)table_hold(&table, object->number, &held);
    if (!staged) return 0;
    const struct staged_object *known = &staged->object;
    int is_same = known->inode == object->inode && known->size == object->size && known->ctime_ns == object->ctime_ns &&
                  (known->has_version || !object->has_version);
    if (is_same && object->is_right) __atomic_store_n(&staged->object.is_right, 1, __ATOMIC_RELAXED);
    if (is_same && object->is_committed) __atomic_store_n(&staged->object.is_committed, 1, __ATOMIC_RELAXED);
    table_let_go(held);
    return is_same;
}

int staged_put(const struct staged_object *object) {
    uint64_t none = UINT64_MAX; /* numbers only grow */
    if (object->is_right && object->has_version) __atomic_compare_exchange_n(&new_from, &none, object->number, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    if (((object->is_right && !object->has_version) || object->is_committed) && prove(object)) return 0;
    struct staged *staged = malloc(sizeof *staged);
    if (!staged) return ENOMEM;
    *staged = (struct staged){.entry.node = object->number, .object = *object};
    int error = table_put(&table, &staged->entry);
    if (error == EEXIST && !(error = staged_take(object->number))) error = table_put(&table, &staged->entry);
    if (error)
        free(staged);
    else
        note_version(object);
    return error;
}

int staged_take(uint64_t number) {
    struct entry *entry;
    int error = table_take(&table, number, &entry);
    if (error) return error;
    forget_version(&((struct staged *)entry)->object);
    free(entry);
    return 0;
}

int staged_knows(uint64_t number) {
    struct shard *held;
    struct staged *staged = (struct staged *)table_hold(&table, number, &held);
    if (!staged) return 0;
    int knows = staged->object.has_version && !staged->object.is_pythons;
    table_let_go(held);
    return knows;
}

int staged_committed(uint64_t number, struct object *object) {
    struct shard *held;
    int directory = __atomic_load_n(&all_objects_fd, __ATOMIC_ACQUIRE);
    struct staged *staged = directory >= 0 ? (struct staged *)table_hold(&table, number, &held) : NULL;
    if (!staged) return 0;
    const struct staged_object *known = &staged->object;
    *object = (struct object){.fd = directory, .inode = known->inode, .size = known->size, .ctime_ns = known->ctime_ns};
    object_name(number, object->name);
    int may = known->has_version && !known->is_pythons && __atomic_load_n(&known->is_committed, __ATOMIC_RELAXED);
    table_let_go(held);
    return may;
}

size_t staged_versions(void) { return __atomic_load_n(&version_count, __ATOMIC_RELAXED); }

uint64_t staged_find(const struct seen *seen, uint64_t *checksum) {
    if (!staged_versions()) return 0;
    struct staged_version version = staged_version_of(seen);
    struct shard *held;
    struct named *named = (struct named *)table_hold(&versions, key_of(&version), &held);
    if (!named) return 0;
    int is_it = !memcmp(&named->version, &version, sizeof version);
    uint64_t number = !is_it ? 0 : named->is_pythons ? STAGED_PYTHONS : named->number;
    if (is_it) *checksum = named->checksum;
    table_let_go(held);
    return number;
}

static int open_object(int directory, uint64_t number) {
    char name[OBJECT_NAME_BYTES];
    object_name(number, name);
    struct open_how how = {.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, .resolve = RESOLVE_NO_SYMLINKS | RESOLVE_CACHED};
    return (int)syscall(SYS_openat2, directory, name, &how, sizeof how);
}

/* The bytes of [offset, offset + size), which lie before the end. */
static ssize_t read_object(int directory, const struct staged_object *staged, uint64_t offset, size_t size, char *buffer) {
    struct object object = {.inode = staged->inode, .size = staged->size, .ctime_ns = staged->ctime_ns};
    object.fd = open_object(directory, staged->number);
    if (object.fd < 0) return -EAGAIN;
    struct iovec part = {buffer, size};
    ssize_t got = preadv2(object.fd, &part, 1, (off_t)offset, RWF_NOWAIT);
    int is_right = got == (ssize_t)size && is_as_left(&object); /* afterwards: so it was before */
    close(object.fd);
    return is_right ? got : -EAGAIN;
}

/* All bytes of a small one into `buffer` of ANSWER_BYTES, found right now or before. 1: they are there. */
static int read_whole(int directory, struct staged *staged, char *buffer) {
    const struct staged_object *object = &staged->object;
    size_t size = (size_t)object->size;
    if (object->is_pythons || size > ANSWER_BYTES || read_object(directory, object, 0, size, buffer) != (ssize_t)size) return 0;
    if (__atomic_load_n(&staged->object.is_right, __ATOMIC_RELAXED)) return 1;
    if (!object->has_version || checksum_of(buffer, size) != object->checksum) return 0;
    __atomic_store_n(&staged->object.is_right, 1, __ATOMIC_RELAXED);
    return 1;
}

static ssize_t read_part(int directory, uint64_t number, uint64_t offset, size_t size, char *buffer) {
    struct shard *held;
    struct staged *staged = directory >= 0 && number ? (struct staged *)table_hold(&table, number, &held) : NULL;
    if (!staged) return -EAGAIN;
    uint64_t end = staged->object.size;
    size_t wanted = offset >= end ? 0 : size < end - offset ? size : (size_t)(end - offset);
    ssize_t got = -EAGAIN;
    if (__atomic_load_n(&staged->object.is_right, __ATOMIC_RELAXED)) {
        got = wanted ? read_object(directory, &staged->object, offset, wanted, buffer) : 0;
    } else if (read_whole(directory, staged, buffer)) {
        memmove(buffer, buffer + (wanted ? offset : 0), wanted);
        got = (ssize_t)wanted;
    }
    table_let_go(held);
    return got;
}

ssize_t staged_read(uint64_t number, uint64_t offset, size_t size, char *buffer) {
    return read_part(__atomic_load_n(&objects_fd, __ATOMIC_ACQUIRE), number, offset, size, buffer);
}

ssize_t staged_part(uint64_t number, uint64_t end, uint64_t offset, size_t size, char *buffer) {
    if (offset >= end) return 0;
    return read_part(__atomic_load_n(&all_objects_fd, __ATOMIC_ACQUIRE), number, offset, size, buffer);
}

int staged_whole(uint64_t number, size_t size, char *buffer) {
    int directory = __atomic_load_n(&all_objects_fd, __ATOMIC_ACQUIRE);
    struct shard *held;
    struct staged *staged = directory >= 0 && number ? (struct staged *)table_hold(&table, number, &held) : NULL;
    if (!staged) return 0;
    int is_here = staged->object.size == size && read_whole(directory, staged, buffer);
    table_let_go(held);
    return is_here;
}

size_t staged_count(void) { return table_count(&table); }
