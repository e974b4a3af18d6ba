/* Where overlayfs finds what is staged of a file: two extended attributes, answered without Python.
 *
 * An overlay over the mount takes names and attributes from here, and opens the object in the cache by itself, if it is
 * told of one: `metacopy`, which is empty, and `redirect`, the object's path below the layer of data
 * (Documentation/filesystems/overlayfs.rst, "Data-only lower layers"). It asks when a name is first looked up, and keeps
 * to what it was told. So an object is told of only if it holds all bytes of the version that the node is of, and is as
 * it was left: what may be passed through. To say of one that it is not staged is always right. A part of the data plane,
 * see plane.h.
 */
#include "fetch.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int is_on; /* atomic */

void overlay_begin(int on) { __atomic_store_n(&is_on, on, __ATOMIC_RELEASE); }

int overlay_is_on(void) { return __atomic_load_n(&is_on, __ATOMIC_ACQUIRE); }

/* The rest of the name of such an attribute; NULL: it is another one. */
static const char *ours(const char *name) {
    static const char *const prefixes[] = {"user.overlay.", "trusted.overlay."};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (!strncmp(name, prefixes[i], strlen(prefixes[i]))) return name + strlen(prefixes[i]);
    return NULL;
}

static void reply_value(int device, uint64_t unique, const char *value, size_t size, size_t room) {
    struct fuse_getxattr_out length = {.size = (uint32_t)size};
    if (!room)
        reply_to(device, unique, 0, &length, sizeof length);
    else
        reply_to(device, unique, size > room ? ERANGE : 0, value, size > room ? 0 : size);
}

int overlay_answer(int device, const struct fuse_in_header *header, const char *name, size_t value_room) {
    struct leaf_place place;
    const char *wanted = overlay_is_on() ? ours(name) : NULL;
    if (!wanted || !leaves_place(header->nodeid, monotonic_ns(), &place)) return 0;
    int is_empty = !strcmp(wanted, "metacopy"), is_known = is_empty || !strcmp(wanted, "redirect");
    if (is_known && place.seen.size > LARGEST_SMALL) return 0; /* of several chunks, perhaps */
    uint64_t checksum, number = is_known ? staged_find(&place.seen, &checksum) : 0;
    if (!number || !staged_is_as_left(number)) {
        reply_to(device, header->unique, ENODATA, NULL, 0);
        return 1;
    }
    char path[OBJECT_NAME_BYTES + 1];
    int size = is_empty ? 0 : snprintf(path, sizeof path, "/%02x/%llu", (unsigned)(number & 0xff), (unsigned long long)number);
    reply_value(device, header->unique, path, (size_t)size, value_room);
    return 1;
}
