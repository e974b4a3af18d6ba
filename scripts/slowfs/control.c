// The control file MOUNTPOINT/.slowfs: what it says when read and does when written (see README.md).
#include "slowfs.h"

size_t write_report(char *text) {
    size_t n = 0;
#define PUT(...) n += (size_t)snprintf(text + n, REPORT_SIZE - n, __VA_ARGS__)
    PUT("{");
    for (int i = 0; i < KINDS; i++) PUT("\"%s\": %" PRIu64 ", ", kind_name[i], ops[i]);
    PUT("\"writes\": %" PRIu64 ", \"refused\": %" PRIu64 ", \"seeks\": %" PRIu64 ", ", writes, refused, seeks);
    PUT("\"read_bytes\": %" PRIu64 ", \"read_ordered\": %" PRIu64 ", \"readdir_names\": %" PRIu64 ", \"transfer_us\": %" PRIu64 ", \"latency_us\": {",
        read_bytes, read_ordered, readdir_names, transfer_us);
    for (int i = 0; i < KINDS; i++) PUT("%s\"%s\": %" PRIu64, i ? ", " : "", kind_name[i], latency_us[i]);
    pthread_mutex_lock(&lock);
    PUT("}, \"in_flight\": %" PRIu64 ", \"in_flight_max\": %" PRIu64 ", \"busy_us\": %" PRIu64 ", \"queued\": %" PRIu64 ", \"parked\": %" PRIu64
        ", \"faults_struck\": %" PRIu64 ", \"faults_set\": %d, \"pid\": %d, \"settings\": {",
        in_flight, in_flight_max, busy_so_far_us(), queued, parked, faults_struck, fault_count, getpid());
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < KINDS; i++) PUT("\"%s_us\": %" PRIu64 ", ", kind_name[i], setting[i]);
    PUT("\"shared_bps\": %" PRIu64 ", \"stream_bps\": %" PRIu64 ", \"inflight\": %" PRIu64 ", \"spindles\": %" PRIu64 ", \"seek_us\": %" PRIu64,
        setting[SHARED_BPS], setting[STREAM_BPS], setting[INFLIGHT], setting[SPINDLES], setting[SEEK_US]);
    PUT(", \"stamp_ms\": %" PRIu64 ", \"clock_ahead_s\": %" PRIu64 ", \"clock_behind_s\": %" PRIu64
        ", \"hidden_percent\": %" PRIu64 ", \"read_most\": %" PRIu64 "}}\n", setting[STAMP_MS], setting[CLOCK_AHEAD_S],
        setting[CLOCK_BEHIND_S], setting[HIDDEN_PERCENT], setting[READ_MOST]);
    return n;
}

bool obey(char *line) {
    char key[32], value[32];
    bool ok = true;
    line += strspn(line, " ");
    if (!*line || *line == '#') return true;
    if (!strcmp(line, "clear") || !strcmp(line, "release")) {
        pthread_mutex_lock(&lock);
        remove_faults(*line == 'r');
        pthread_mutex_unlock(&lock);
        unpark_all(0);
    } else if (!strcmp(line, "reset")) {
        for (int i = 0; i < KINDS; i++) ops[i] = latency_us[i] = 0;
        read_bytes = read_ordered = readdir_names = transfer_us = faults_struck = writes = refused = seeks = 0;
        in_flight_max = (u64)in_flight;
        pthread_mutex_lock(&lock);
        forget_busy();
        pthread_mutex_unlock(&lock);
    } else if (sscanf(line, "set %31s %31s", key, value) == 2) {
        pthread_mutex_lock(&lock);
        ok = set(key, value);
        pthread_cond_broadcast(&work); // there may be more places now
        pthread_mutex_unlock(&lock);
    } else if (!strncmp(line, "fault ", 6)) {
        pthread_mutex_lock(&lock);
        ok = add_fault(line + 6);
        pthread_mutex_unlock(&lock);
    } else if (!strcmp(line, "squash")) {
        squashes = true;
    } else if (!strncmp(line, "guard ", 6) || !strcmp(line, "unguard")) {
        pthread_mutex_lock(&lock);
        if (*line == 'g') ok = add_guard(line + 6);
        else remove_guards();
        pthread_mutex_unlock(&lock);
    } else {
        ok = false;
    }
    return ok;
}
