// What an operation costs: settings and presets, the virtual-time queues of the bandwidths, and the counters.
// Pure but for the counters: no clock, no sleep, no lock, so that self_test() can run it with a clock of its own.
#include "slowfs.h"

const char *const kind_name[KINDS] = {"lookup", "getattr", "opendir",  "readdir",  "open",
                                             "read",   "release", "getxattr", "readlink", "statfs"};

#define INFLIGHT_LIMIT 1024 // each place is a thread and a 1 MiB buffer
_Atomic u64 setting[SETTINGS];

static void set_preset(const u64 (*preset)[SETTINGS]) {
    for (int i = 0; i < SETTINGS; i++) setting[i] = (*preset)[i];
}
static const u64 preset_none[SETTINGS] = {[INFLIGHT] = 32};
// MORE: what the preset has besides.
#define PRESET(latency, bandwidth, ...)                                                                          \
    {[LOOKUP] = 1000 * latency, [GETATTR] = 1000 * latency, [READDIR] = 1000 * latency, /* per 1000 names */ \
     [OPEN] = 2000 * latency, [READ] = 1000 * latency, [SHARED_BPS] = 50000000ull * bandwidth,              \
     [STREAM_BPS] = 20000000ull * bandwidth, [INFLIGHT] = 32, __VA_ARGS__}
static const u64 preset_lustre[SETTINGS] = PRESET(1, 10, ), preset_busy[SETTINGS] = PRESET(10, 1, );
static const u64 preset_disk[SETTINGS] = PRESET(1, 10, [SPINDLES] = 48, [SEEK_US] = 8000);
static const u64 preset_flash[SETTINGS] = {
    [LOOKUP] = 300, [GETATTR] = 300, [READDIR] = 300, [OPEN] = 500, [READ] = 200,
    [SHARED_BPS] = 2000000000, [STREAM_BPS] = 1000000000, [INFLIGHT] = 128};

bool set(const char *key, const char *text) {
    if (!strcmp(key, "preset")) {
        if (!strcmp(text, "none")) return set_preset(&preset_none), true;
        if (!strcmp(text, "lustre")) return set_preset(&preset_lustre), true;
        if (!strcmp(text, "busy")) return set_preset(&preset_busy), true;
        if (!strcmp(text, "disk")) return set_preset(&preset_disk), true;
        if (!strcmp(text, "flash")) return set_preset(&preset_flash), true;
        return false;
    }
    char *end;
    u64 value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || value > 1000000000000000ull) return false;
    int index = -1;
    for (int i = 0; i < KINDS; i++) {
        size_t n = strlen(kind_name[i]);
        if (!strncmp(key, kind_name[i], n) && !strcmp(key + n, "_us")) index = i;
    }
    if (!strcmp(key, "shared_bps")) index = SHARED_BPS;
    if (!strcmp(key, "stream_bps")) index = STREAM_BPS;
    if (!strcmp(key, "spindles") && value <= SPINDLES_LIMIT) index = SPINDLES;
    if (!strcmp(key, "seek_us")) index = SEEK_US;
    if (!strcmp(key, "stamp_ms")) index = STAMP_MS;
    if (!strcmp(key, "clock_ahead_s")) index = CLOCK_AHEAD_S;
    if (!strcmp(key, "clock_behind_s")) index = CLOCK_BEHIND_S;
    if (!strcmp(key, "hidden_percent") && value <= 100) index = HIDDEN_PERCENT;
    if (!strcmp(key, "read_most")) index = READ_MOST;
    if (!strcmp(key, "inflight") && value >= 1 && value <= INFLIGHT_LIMIT) index = INFLIGHT;
    if (index >= 0) setting[index] = value;
    return index >= 0;
}

_Atomic u64 ops[KINDS], latency_us[KINDS], read_bytes, read_ordered, readdir_names, transfer_us, faults_struck,
    in_flight, in_flight_max, writes, refused, seeks;

void count_start(void) {
    u64 now = ++in_flight, max = in_flight_max;
    while (now > max && !atomic_compare_exchange_weak(&in_flight_max, &max, now)) {}
}

// ---- the cost model: pure, so that --self-test can run it with a clock of its own ----
u64 transfer_ns(u64 bytes, u64 bps) { return bps ? (u64)((unsigned __int128)bytes * 1000000000u / bps) : 0; }

// When a read of `bytes` begun at `now` is done. A stream and the link all share each carry one byte after the
// other (`*_free`: when they have carried what was asked of them); latency overlaps with everything.
u64 read_done(u64 now, u64 bytes, u64 latency_ns, u64 stream_bps, u64 *stream_free, u64 shared_bps,
                     u64 *shared_free) {
    *stream_free = (*stream_free > now ? *stream_free : now) + transfer_ns(bytes, stream_bps);
    *shared_free = (*shared_free > now ? *shared_free : now) + transfer_ns(bytes, shared_bps);
    return (*stream_free > *shared_free ? *stream_free : *shared_free) + latency_ns;
}

// A read needs no seek if it begins within a MiB behind where one of the last reads of its file ended.
bool needs_seek(struct trail *trail, u64 begin, u64 end) {
    bool found = false;
    for (unsigned i = 0; i < TRAIL && i < trail->reads; i++)
        found |= begin >= trail->ends[i] && begin - trail->ends[i] <= 1 << 20;
    trail->ends[trail->reads++ % TRAIL] = end;
    if (trail->reads == 2 * TRAIL) trail->reads = TRAIL; // it only has to stay above TRAIL
    return !found;
}

// The heads seek one place each: the first that is free takes it.
u64 seek_ns(u64 now, u64 each_ns, u64 *spindle_free, u64 spindles) {
    u64 *first = spindle_free;
    for (u64 i = 1; i < spindles; i++)
        if (spindle_free[i] < *first) first = &spindle_free[i];
    *first = (*first > now ? *first : now) + each_ns;
    return *first - now;
}

// What a listing costs in all once `names` were listed, in latencies: each thousand begun, at least one.
u64 readdir_units(u64 names) { return names ? (names + 999) / 1000 : 1; }

int self_test(void) {
    u64 stream = 0, other = 0, shared = 0, ms = 1000000, mib = 1 << 20, stream_bps = 200000000, shared_bps = 500000000;
    int wrong = 0;
#define CHECK(what) \
    if (!(what)) fprintf(stderr, "slowfs: line %d: not so: %s\n", __LINE__, #what), wrong = 1
#define DONE(at, bytes, stream) read_done((at) * ms, bytes, ms, stream_bps, stream, shared_bps, &shared)
    // one read: its transfer, then the latency
    CHECK(DONE(5, 200000, &stream) == 7 * ms);
    CHECK(stream == 6 * ms && shared == 5 * ms + 400000);
    // another at once on the same stream: transfers follow one another, latencies overlap
    CHECK(DONE(5, 200000, &stream) == 8 * ms);
    // another stream at once: its own bandwidth, but the link is busy until 6.2 ms with all three
    CHECK(DONE(5, 200000, &other) == 7 * ms + 200000);
    CHECK(other == 6 * ms && shared == 6 * ms + 200000);
    // idle time is not saved up; a read of nothing costs its latency
    CHECK(DONE(50, 200000, &stream) == 52 * ms);
    CHECK(DONE(90, 0, &stream) == 91 * ms);
    // more than the link carries at once: the link decides
    u64 many[8] = {0}, last = 0;
    for (int i = 0; i < 8; i++) last = DONE(100, 500000, &many[i]);
    CHECK(last == 100 * ms + 8 * ms + ms);
    // no limits; no overflow
    CHECK(read_done(200 * ms, 1ull << 40, ms, 0, &stream, 0, &shared) == 201 * ms);
    CHECK(transfer_ns(1ull << 40, 1000) == 1099511627776000000ull);
    // eight streams that never pause: the link is full, and never more than full
    u64 streams[8] = {0}, next[8] = {0}, bytes = 0, clock = 0;
    for (shared = 0; clock < 10000 * ms;) {
        int first = 0;
        for (int i = 1; i < 8; i++)
            if (next[i] < next[first]) first = i;
        clock = next[first];
        next[first] = read_done(clock, mib, ms, stream_bps, &streams[first], shared_bps, &shared);
        bytes += mib;
    }
    CHECK(bytes > 4980000000u && bytes < 5010000000u);
    // seeks: the first read, and what is far behind, before, or after eight others; not what follows
    struct trail trail = {0};
    CHECK(needs_seek(&trail, 0, 100) && !needs_seek(&trail, 100, 200) && !needs_seek(&trail, 200 + mib, 300 + mib));
    CHECK(needs_seek(&trail, 400 + 3 * mib, 500 + 3 * mib) && needs_seek(&trail, 50, 60) && !needs_seek(&trail, 60, 70));
    for (u64 i = 1; i <= 8; i++) CHECK(needs_seek(&trail, 100 * i * mib, 100 * i * mib + 1));
    CHECK(needs_seek(&trail, 70, 80) && !needs_seek(&trail, 800 * mib + 1, 800 * mib + 2));
    for (u64 i = 0; i < 100; i++) CHECK(!needs_seek(&trail, 800 * mib + 2 + i, 800 * mib + 3 + i));
    // two heads: the third seek waits for the first of them
    u64 heads[2] = {0};
    CHECK(seek_ns(100, 8, heads, 2) == 8 && seek_ns(100, 8, heads, 2) == 8 && seek_ns(104, 8, heads, 2) == 12);
    CHECK(seek_ns(500, 8, heads, 2) == 8);
    CHECK(readdir_units(0) == 1 && readdir_units(1000) == 1 && readdir_units(1001) == 2);
    CHECK(readdir_units(200000) == 200);
    if (!wrong) puts("slowfs: the cost model holds");
    return wrong;
}
