/* Drives what the next daemon of a mount finds without Python and without a mount: a daemon is killed at each store into the
 * memory that it shares with the next one, which then finds each handle with the count, and each file with the look-ups, opens
 * and attributes, before or after the change that was under way, and with all that belongs to it; or a free slot.
 */
#include "stores.h"

#include "plane.h"

#define THINGS 10
#define FIRST (UINT64_C(1) << 62)

/* Handles have numbers below FILES, files the others. */
enum change { NEW, ADD, SUBTRACT, FREE, PUT, ANEW, LOOK_UP, FORGET, OPEN, CLOSE, TAKE };
#define FILES 5

static const struct {
    enum change change;
    uint64_t thing;
} story[] = {
    {NEW, 1}, {ADD, 1}, {ADD, 1}, {PUT, 5}, {LOOK_UP, 5}, {PUT, 6}, {LOOK_UP, 6}, {OPEN, 6}, {LOOK_UP, 6}, {FORGET, 5}, {TAKE, 5},
    {PUT, 7}, {ANEW, 6}, {OPEN, 7}, {TAKE, 7}, /* in the place of 5; it goes though it is open */
    {PUT, 8}, {SUBTRACT, 1}, {FREE, 1}, {NEW, 2}, {ADD, 2}, {NEW, 3}, {CLOSE, 6}, {ANEW, 6}, {ANEW, 8}, {OPEN, 8}, {OPEN, 8}, {ADD, 3},
};
#define CHANGES ((long)(sizeof story / sizeof *story))

/* What belongs to a file follows from it, and from how often it was put. One name needs a long slot. */
static size_t name_of(uint64_t file, char *name) {
    size_t size = file == 8 ? UINT8_MAX : file;
    memset(name, 'a' + (int)file, size);
    return size;
}

static struct seen seen_of(uint64_t file, unsigned times) {
    struct seen seen;
    memset(&seen, 0x10 + (int)file, sizeof seen);
    seen.uid = seen.gid = seen.mode = times;
    seen.blocks = seen.rdev = times;
    return seen;
}

static struct state { /* of one thing */
    int64_t count;      /* of a handle; of a file its opens; -1: it is not there */
    uint32_t lookups;
    unsigned times;     /* it was put */
} found[THINGS];

static int note(uint64_t directory) {
    if (directory != 3) fail("a directory that nobody has put there");
    return 1;
}

static void begin(int fd) {
    char name[UINT8_MAX];
    uint64_t id;
    struct seen seen = seen_of(9, 1);
    slots_begin(FIRST);
    int error = counts_attach(fd);
    if (!error) error = slots_attach(fd, 7, note);
    for (uint64_t file = 8; !error && file <= 9; file++) { /* segments are there */
        struct slot *taken;
        error = slots_put(3, name, name_of(file, name), &seen, 0, INT64_MAX, &id);
        if (error == EEXIST || error == ESTALE) error = 0;
        else if (!error && (taken = slots_take_id(id))) slots_free(taken);
    }
    if (error) fail("attach: %s", strerror(error));
}

static int told(const struct slot *slot, void *context) { return *(uint64_t *)context = slot->id, 0; }

static void change(enum change change, uint64_t thing, int64_t *slots, uint64_t *ids, unsigned *times) {
    char name[UINT8_MAX];
    size_t size = thing >= FILES ? name_of(thing, name) : 0;
    struct slot *taken;
    struct seen seen = seen_of(thing, times[thing] + 1);
    int held, error;
    switch (change) {
    case NEW: slots[thing] = counts_new(thing); break;
    case ADD: counts_add((uint32_t)slots[thing], 1); break;
    case SUBTRACT: counts_add((uint32_t)slots[thing], -1); break;
    case FREE: counts_free((uint32_t)slots[thing]); break;
    case PUT: case ANEW:
        error = slots_put(3, name, size, &seen, thing, INT64_MAX, &ids[thing]);
        if (error != (change == PUT ? 0 : EEXIST)) fail("put: %s", strerror(error));
        times[thing]++;
        break;
    case LOOK_UP: slots_look_up(3, name, size, 1, told, &ids[thing]); break;
    case FORGET: slots_forget(ids[thing], 1, &held); break;
    case OPEN: slots_opened(slots_find(ids[thing]), 1); break;
    case CLOSE: slots_opened(slots_find(ids[thing]), -1); break;
    case TAKE:
        if (!(taken = slots_take_id(ids[thing]))) fail("it is not there");
        slots_free(taken);
    }
    if (thing < FILES && slots[thing] < 0) fail("no slot");
}

static void act(long *done) {
    int64_t slots[THINGS] = {0};
    uint64_t ids[THINGS] = {0};
    unsigned times[THINGS] = {0};
    for (long i = 0; i < CHANGES; i++, *done = i) change(story[i].change, story[i].thing, slots, ids, times);
}

static void expect(long changes, struct state *states) {
    for (int thing = 0; thing < THINGS; thing++) states[thing] = (struct state){.count = -1};
    for (long i = 0; i < changes && i < CHANGES; i++) {
        struct state *state = &states[story[i].thing];
        switch (story[i].change) {
        case NEW: *state = (struct state){0, 0, 0}; break;
        case PUT: *state = (struct state){0, 0, 1}; break;
        case ANEW: state->times++; break;
        case ADD: case OPEN: state->count++; break;
        case SUBTRACT: case CLOSE: state->count--; break;
        case LOOK_UP: state->lookups++; break;
        case FORGET: state->lookups--; break;
        case FREE: case TAKE: *state = (struct state){.count = -1};
        }
    }
}

static void find_file(uint64_t file) {
    char name[UINT8_MAX];
    size_t size = name_of(file, name);
    uint64_t id = slots_id(3, name, size);
    struct slot *slot = id ? slots_find(id) : NULL;
    if (!slot) return;
    struct seen seen = seen_of(file, slot->seen.uid);
    if (slot->seen.inode != seen.inode || slot->seen.size != seen.size) fail("file %d has another one's version", (int)file);
    if (slot->until_ns && memcmp(&slot->seen, &seen, sizeof seen)) fail("file %d has attributes of two moments", (int)file);
    if (slot->object) fail("the object of file %d is believed", (int)file);
    found[file] = (struct state){slot->opens, slot->lookups, slot->until_ns ? slot->seen.uid : 0};
}

/* Attributes that are not believed may be of any moment. */
static int is(const struct state *state, const struct state *wanted) {
    int is_doubted = state->count >= 0 && !state->times;
    return state->count == wanted->count && state->lookups == wanted->lookups && (is_doubted || state->times == wanted->times);
}

static void check(int fd, long done) {
    struct state before[THINGS], after[THINGS];
    for (int thing = 0; thing < THINGS; thing++) found[thing].count = -1;
    slots_begin(FIRST);
    if (counts_attach(fd) || slots_attach(fd, 7, note)) fail("attach");
    for (uint32_t slot = 0; slot < COUNTS_AT_MOST; slot++) {
        uint64_t handle = counts_handle(slot);
        if (!handle) continue;
        if (handle >= FILES || found[handle].count >= 0) fail("nobody has put handle %d there", (int)handle);
        found[handle] = (struct state){counts_open(slot), 0, 0};
    }
    for (uint64_t file = FILES; file < THINGS; file++) find_file(file);
    expect(done, before);
    expect(done + 1, after);
    for (int thing = 0; thing < THINGS; thing++)
        if (!is(&found[thing], &before[thing]) && !is(&found[thing], &after[thing])) fail("after %ld changes something else is known of %d", done, thing);
}

int main(void) {
    printf("%ld stores\n", kill_at_each_store(begin, act, check));
    return 0;
}
