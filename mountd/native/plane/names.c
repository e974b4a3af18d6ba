/* A run of names, each behind its directory, for Python; sets of node ids that ascend; and by what a name is found.
 *
 * A part of the data plane, see plane.h. Locks nothing.
 */
#include "plane.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint64_t name_key(uint64_t directory, const char *name, size_t size) { /* FNV-1a, and the finish of MurmurHash3 */
    uint64_t hash = UINT64_C(14695981039346656037) ^ directory;
    for (size_t i = 0; i < size; i++) hash = (hash ^ (unsigned char)name[i]) * UINT64_C(1099511628211);
    hash ^= hash >> 33;
    hash *= UINT64_C(0xff51afd7ed558ccd);
    return hash ^ hash >> 33;
}

int ids_have(const uint64_t *ascending, size_t count, uint64_t id) {
    size_t first = 0, end = count;
    while (first < end) {
        size_t middle = first + (end - first) / 2;
        if (ascending[middle] == id) return 1;
        if (ascending[middle] < id)
            first = middle + 1;
        else
            end = middle;
    }
    return 0;
}

int names_add(struct name_run *run, uint64_t directory, const char *name, uint8_t name_size) {
    size_t more = sizeof directory + 1 + name_size;
    if (run->size + more > run->room) {
        size_t room = (run->size + more) * 2;
        char *bytes = realloc(run->bytes, room);
        if (!bytes) return ENOMEM;
        run->bytes = bytes;
        run->room = room;
    }
    char *at = run->bytes + run->size;
    memcpy(at, &directory, sizeof directory);
    at[sizeof directory] = (char)name_size;
    memcpy(at + sizeof directory + 1, name, name_size);
    run->size += more;
    return 0;
}
