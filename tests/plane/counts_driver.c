/* Drives the counts of open handles without Python and without a mount: a daemon is killed at each store into the memory
 * that it shares with the next one, which then finds each handle with the count before or after the change that was under
 * way, and with all that belongs to it; or a free slot.
 */
#include "stores.h"

#include "plane.h"

#define HANDLES 10

enum change { NEW, NAME, ADD, SUBTRACT, FREE };

static const struct {
    enum change change;
    uint64_t handle;
} story[] = {
    {NEW, 1}, {ADD, 1}, {ADD, 1}, {NAME, 2}, {ADD, 2}, {NAME, 3}, {ADD, 3}, {SUBTRACT, 2}, {FREE, 2},
    {NAME, 4}, {ADD, 4}, {FREE, 4}, /* in the place of 2; it goes though it is open */
    {NAME, 5}, {SUBTRACT, 1}, {FREE, 1}, {NEW, 6}, {ADD, 6}, {NEW, 7}, {NAME, 8}, {ADD, 8}, {ADD, 8}, {ADD, 5},
};
#define CHANGES ((long)(sizeof story / sizeof *story))

/* What belongs to a handle follows from it. */
static size_t name_of(uint64_t handle, char *name) {
    size_t size = handle == 3 ? UINT8_MAX : 3 + handle;
    memset(name, 'a' + (int)handle, size);
    return size;
}

static struct seen seen_of(uint64_t handle) {
    struct seen seen;
    memset(&seen, 0x10 + (int)handle, sizeof seen);
    return seen;
}

static void begin(int fd) {
    int error = counts_attach(fd);
    if (error) fail("attach: %s", strerror(error));
}

static void act(long *done) {
    int64_t slots[HANDLES];
    char name[UINT8_MAX];
    for (long i = 0; i < CHANGES; i++, *done = i) {
        uint64_t handle = story[i].handle;
        struct seen seen = seen_of(handle);
        switch (story[i].change) {
        case NEW: slots[handle] = counts_new(handle); break;
        case NAME: slots[handle] = counts_name(handle, 100 + handle, &seen, name, name_of(handle, name)); break;
        case ADD: counts_add((uint32_t)slots[handle], 1); break;
        case SUBTRACT: counts_add((uint32_t)slots[handle], -1); break;
        case FREE: counts_free((uint32_t)slots[handle]); break;
        }
        if (slots[handle] < 0) fail("no slot");
    }
}

/* By handle the count after so many changes; -1: it has no slot. */
static void expect(long changes, int64_t *counts) {
    for (int handle = 0; handle < HANDLES; handle++) counts[handle] = -1;
    for (long i = 0; i < changes && i < CHANGES; i++) {
        int64_t *count = &counts[story[i].handle];
        *count = story[i].change == ADD ? *count + 1 : story[i].change == SUBTRACT ? *count - 1 : story[i].change == FREE ? -1 : 0;
    }
}

static void check_named(uint64_t handle, const struct named_slot *named) {
    char name[UINT8_MAX];
    struct seen seen = seen_of(handle);
    size_t size = name_of(handle, name);
    if (named->directory != 100 + handle || memcmp(&named->seen, &seen, sizeof seen) || named->name_size != size || memcmp(named->name, name, size))
        fail("handle %d has a part of another one", (int)handle);
}

static void check(int fd, long done) {
    int64_t before[HANDLES], after[HANDLES], found[HANDLES];
    begin(fd);
    for (int handle = 0; handle < HANDLES; handle++) found[handle] = -1;
    for (uint32_t slot = 0; slot < COUNTS_ALL; slot++) {
        uint64_t handle = counts_handle(slot);
        if (!handle) continue;
        if (handle >= HANDLES || found[handle] >= 0) fail("nobody has put handle %d there", (int)handle);
        found[handle] = counts_open(slot);
        if (counts_named(slot)) check_named(handle, counts_named(slot));
    }
    expect(done, before);
    expect(done + 1, after);
    if (memcmp(found, before, sizeof found) && memcmp(found, after, sizeof found)) fail("after %ld changes something else is there", done);
}

int main(void) {
    printf("%ld stores\n", kill_at_each_store(begin, act, check));
    return 0;
}
