/* Threads that nobody waits for: they end by themselves, take no signals and never run Python. A part of the data plane,
 * see plane.h.
 */
#include "plane.h"

#include <signal.h>

int detached_start(void *(*run)(void *), int number, size_t stack_bytes) {
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, stack_bytes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* Python's own thread takes them */
    int error = pthread_create(&thread, &attributes, run, (void *)(intptr_t)number);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}
