/* Where overlayfs finds what is staged of a file: two extended attributes, answered without Python.
 *
 * An overlay over the mount takes names and attributes from here, and opens the object in the cache by itself, if it is
 * told of one: `metacopy`, which is empty, and `redirect`, the object's path below the layer of data
 * (Documentation/filesystems/overlayfs.rst, "Data-only lower layers"). It asks when a name is first looked up, and keeps
 * to what it was told. So an object is told of only if it holds all bytes of the version that the node is of, and is as
 * it was left: what may be passed through. To say of one that it is not staged is always right. Who has heard that there
 * is one is told where, whatever has happened since: else its look-up would fail.
 *
 * Only who asks with our rights is told, and what was told is remembered for Python, which lets no such object go before
 * its overlay has gone (mountd/cache/told_objects.py). A part of the data plane, see plane.h.
 */
#include "fetch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FIRST_TOLD ((size_t)1 << 10)
#define MOST_TOLD ((size_t)1 << 20) /* until Python takes them, some times a second */
#define PROMISES 4096

static int is_on; /* atomic */
static uid_t our_uid;

static struct {
    pthread_mutex_t lock;
    struct overlay_told told;
    int is_broken; /* no memory for what is not to be told: then nothing is */
    struct table untold;
    struct {
        uint64_t node, number;
    } promised[PROMISES];
} overlay = {.lock = PTHREAD_MUTEX_INITIALIZER, .untold = TABLE};

void overlay_begin(int on) {
    our_uid = geteuid();
    __atomic_store_n(&is_on, on, __ATOMIC_RELEASE);
}

int overlay_is_on(void) { return __atomic_load_n(&is_on, __ATOMIC_ACQUIRE); }

/* ---- what was told ------------------------------------------------------------------------------------------------ */

/* With the lock. */
static void remember(uint64_t number) {
    struct overlay_told *told = &overlay.told;
    if (told->count && told->numbers[told->count - 1] == number) return;
    if (told->count == told->room) {
        size_t room = told->room ? told->room * 2 : FIRST_TOLD;
        uint64_t *larger = room <= MOST_TOLD ? realloc(told->numbers, room * sizeof *larger) : NULL;
        if (!larger) {
            told->some_are_lost = 1;
            return;
        }
        told->numbers = larger;
        told->room = room;
    }
    told->numbers[told->count++] = number;
}

static int tell(uint64_t node, uint64_t number) {
    pthread_mutex_lock(&overlay.lock);
    int may = !overlay.is_broken && !table_has(&overlay.untold, number);
    if (may) {
        remember(number);
        overlay.promised[node % PROMISES].node = node;
        overlay.promised[node % PROMISES].number = number;
    }
    pthread_mutex_unlock(&overlay.lock);
    return may;
}

static uint64_t promised(uint64_t node) {
    pthread_mutex_lock(&overlay.lock);
    uint64_t number = overlay.promised[node % PROMISES].node == node ? overlay.promised[node % PROMISES].number : 0;
    pthread_mutex_unlock(&overlay.lock);
    return number;
}

static void take_back(uint64_t node) {
    pthread_mutex_lock(&overlay.lock);
    if (overlay.promised[node % PROMISES].node == node) overlay.promised[node % PROMISES].number = 0;
    pthread_mutex_unlock(&overlay.lock);
}

void overlay_stop_telling(const uint64_t *numbers, size_t count, struct overlay_told *told) {
    pthread_mutex_lock(&overlay.lock);
    for (size_t i = 0; i < count; i++) {
        struct entry *entry = calloc(1, sizeof *entry);
        if (entry) entry->node = numbers[i];
        int error = entry ? table_put(&overlay.untold, entry) : ENOMEM;
        if (error) free(entry);
        overlay.is_broken |= error && error != EEXIST;
    }
    *told = overlay.told;
    memset(&overlay.told, 0, sizeof overlay.told);
    pthread_mutex_unlock(&overlay.lock);
}

void overlay_tell_again(const uint64_t *numbers, size_t count) {
    struct entry *entry;
    pthread_mutex_lock(&overlay.lock);
    for (size_t i = 0; i < count; i++)
        if (!table_take(&overlay.untold, numbers[i], &entry)) free(entry);
    pthread_mutex_unlock(&overlay.lock);
}

/* ---- answers ------------------------------------------------------------------------------------------------------ */

/* The rest of the name of such an attribute; NULL: it is another one. */
static const char *ours(const char *name) {
    static const char *const prefixes[] = {"user.overlay.", "trusted.overlay."};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (!strncmp(name, prefixes[i], strlen(prefixes[i]))) return name + strlen(prefixes[i]);
    return NULL;
}

static void reply_value(const struct look *look, const char *value, size_t size) {
    struct fuse_getxattr_out length = {.size = (uint32_t)size};
    if (!look->value_room)
        reply_to(look->device, look->unique, 0, &length, sizeof length);
    else
        reply_to(look->device, look->unique, size > look->value_room ? ERANGE : 0, value, size > look->value_room ? 0 : size);
}

static void reply_place(const struct look *look, uint64_t number) {
    char path[OBJECT_NAME_BYTES + 1] = "/";
    object_name(number, path + 1);
    reply_value(look, path, strlen(path));
}

static void looked(const struct look *look, int is_left) {
    if (!is_left) take_back(look->node);
    if (is_left && look->is_redirect) {
        reply_place(look, look->number);
    } else if (is_left && tell(look->node, look->number)) {
        __atomic_add_fetch(&answered.overlay_look_ups, 1, __ATOMIC_RELAXED);
        __atomic_add_fetch(&answered.overlay_look_up_bytes, (int64_t)look->object.size, __ATOMIC_RELAXED);
        reply_value(look, "", 0);
    } else {
        reply_to(look->device, look->unique, ENODATA, NULL, 0);
    }
}

int overlay_may_tell(uint64_t node) {
    struct slot_place place;
    struct object object;
    uint64_t checksum, number = slots_place(node, 0, &place) ? staged_find(&place.seen, &checksum) : 0;
    return number && staged_committed(number, &object);
}

int overlay_answer(int device, const struct fuse_in_header *header, const char *name, size_t value_room) {
    struct slot_place place;
    const char *wanted = overlay_is_on() ? ours(name) : NULL;
    if (!wanted) return 0;
    struct look look = {.looked = looked, .device = device, .unique = header->unique, .node = header->nodeid, .value_room = value_room};
    look.is_redirect = !strcmp(wanted, "redirect");
    if (header->uid != our_uid || (!look.is_redirect && strcmp(wanted, "metacopy"))) {
        reply_to(device, header->unique, ENODATA, NULL, 0);
        return 1;
    }
    uint64_t number = look.is_redirect ? promised(header->nodeid) : 0, checksum;
    if (number) {
        reply_place(&look, number);
        return 1;
    }
    if (!slots_place(header->nodeid, monotonic_ns(), &place) || place.seen.size > LARGEST_SMALL /* of several chunks, perhaps */) {
        if (!look.is_redirect) take_back(header->nodeid); /* Python promises another one, perhaps */
        return 0;
    }
    look.number = staged_find(&place.seen, &checksum);
    int is_left = look.number && staged_committed(look.number, &look.object) ? is_as_left_now(&look.object) : 0;
    if (is_left >= 0 || !looks_add(&look)) looked(&look, is_left > 0);
    return 1;
}
