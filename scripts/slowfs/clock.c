// A clock of its own: time stamps as a file system shows them whose clock is off, or that keeps whole seconds. And sizes
// that are smaller than what is there.
#include "slowfs.h"

static void show(struct timespec *time) {
    u64 step_ms = setting[STAMP_MS];
    if (step_ms) {
        u64 ms = (u64)time->tv_sec * 1000 + (u64)time->tv_nsec / 1000000;
        ms -= ms % step_ms;
        time->tv_sec = (time_t)(ms / 1000), time->tv_nsec = (long)(ms % 1000) * 1000000;
    }
    time->tv_sec += (time_t)setting[CLOCK_AHEAD_S] - (time_t)setting[CLOCK_BEHIND_S];
}

void stamp(struct stat *st) {
    show(&st->st_atim);
    show(&st->st_mtim);
    show(&st->st_ctim);
    if (S_ISREG(st->st_mode)) st->st_size -= st->st_size * (off_t)setting[HIDDEN_PERCENT] / 100;
}
