/* Names of one file, fetched at one time: a part of fetch_driver.c, behind all that it uses. */

static void want(const char *name) {
    struct wanted wanted = {.directory = DIRECTORY, .name = name, .size = strlen(name)};
    jobs_ahead(&wanted, 1);
    if (wanted.error) fail("%s: %s", name, strerror(wanted.error));
}

static void link_as(const char *name) {
    unlinkat(source, name, 0); /* of a run that has failed */
    if (linkat(source, "f0", source, name, 0)) fail("%s: %s", name, strerror(errno));
}

static void until_waits(int count, int64_t reads) {
    for (int is_so = 0; !is_so; usleep(100)) {
        is_so = __atomic_load_n(&timed_waits, __ATOMIC_ACQUIRE) >= count;
        if (__atomic_load_n(&source_counts.reads, __ATOMIC_RELAXED) != reads) fail("it is read again");
    }
}

/* Whoever wants another name waits until the bytes are an object: while they are read, and while they wait for room. */
static void linked_names(void) {
    uint64_t first = 1, last = 9;
    unsigned seed = 5;
    ahead_of_largest *= 2; /* three are fetched without room */
    if (begin() || delegate()) fail("it does not start");
    write_file(0, &seed);
    link_as("second"), link_as("third");
    store_grant(&first, &last);
    store_grant_room(1);
    is_patient = 1;
    __atomic_store_n(&parking, 1, __ATOMIC_RELEASE);
    want("f0");
    while (__atomic_load_n(&parking, __ATOMIC_ACQUIRE) != 2) usleep(100);
    int64_t reads = __atomic_load_n(&source_counts.reads, __ATOMIC_RELAXED);
    want("second");
    until_waits(1, reads);
    __atomic_store_n(&parking, 3, __ATOMIC_RELEASE);
    until_waits(2, reads);
    want("third");
    until_waits(3, reads);
    store_grant_room(2 * LARGEST);
    for (int name = 0; name < 3; name++) {
        struct fetched *one = outcome();
        if (one->kind != (name ? FETCHED_HERE : FETCHED_STORED)) fail("%.*s: %d", one->name_size, one->name, one->kind);
        free(one);
    }
    take_slot(slots_id(DIRECTORY, "second", 6)), take_slot(slots_id(DIRECTORY, "third", 5));
    end(last);
    close_all();
}
