/* What each driver has: its two ways to run, an end with a line on standard error, and calls that fail.
 *
 *   driver fuzz SECONDS SEED   random requests, right and wrong ones, while entries come and go
 *   driver fail                every call of the C library that is WRAPPED fails once
 *
 * Built with each sanitizer by test_driver.py, which says for how long they run and which calls are wrapped.
 */
#include "failing.h"

static int fail_at, calls; /* the call with this number fails; 0: none */

static int failing(void) { return fail_at && ++calls == fail_at; }

/* Linked with --wrap: calls of the plane come here, and go on to the real ones. */
#define WRAPPED(result, name, parameters, arguments, failed, error) \
    result __real_##name parameters;                                \
    result __wrap_##name parameters;                                \
    result __wrap_##name parameters {                               \
        if (failing()) {                                            \
            errno = error;                                          \
            return failed;                                          \
        }                                                           \
        return __real_##name arguments;                             \
    }

WRAPPED(void *, malloc, (size_t size), (size), NULL, ENOMEM)
WRAPPED(void *, calloc, (size_t count, size_t size), (count, size), NULL, ENOMEM)

/* `once`: a little of everything; 0, or the errno that it met. */
static void fail_each(int (*once)(void)) {
    int refused = 0;
    for (int number = 1;; number += number < 300 ? 1 : 97) {
        calls = 0, fail_at = number;
        int error = once();
        fail_at = 0;
        refused += error != 0;
        if (calls < number) break; /* there is no such call: all have failed once */
        if (once()) fail("call %d failed once, and nothing goes afterwards", number);
    }
    if (refused < 5) fail("only %d calls were refused", refused);
    printf("%d refusals\n", refused);
}

/* Whether each of these, which other threads count atomically, has happened: on a busy machine that takes longer than the
 * time that a driver is given. */
#define HAVE_HAPPENED(...) have_happened((const long *const[]){__VA_ARGS__, NULL})

static int have_happened(const long *const *counts) {
    while (*counts && __atomic_load_n(*counts, __ATOMIC_RELAXED)) counts++;
    return !*counts;
}

static int drive(int count, char **arguments, void (*fuzz)(double seconds, unsigned seed), int (*once)(void)) {
    if (count == 4 && !strcmp(arguments[1], "fuzz"))
        fuzz(atof(arguments[2]), (unsigned)atoi(arguments[3]));
    else if (count == 2 && !strcmp(arguments[1], "fail"))
        fail_each(once);
    else
        fail("%s fuzz SECONDS SEED | %s fail", arguments[0], arguments[0]);
    return 0;
}
