"""`scripts/bench planes`: what is answered without Python, beside a server in C that promises nothing (the floor).

    warm    files that were read before are opened, read and closed again
    order   the same in the order of the epoch before, and in a new one
    threads the first with 1, 2 and 4 threads of the data plane
    later   the first epoch of a job that finds all of it staged
    random  random reads of a large staged file, through a mount of which the kernel has no page
    names   a tree is looked through by find, which was never seen before

Only the list of the groups of rows. Native, floor and mount are read in turns by the same readers within a run; a ratio
is a time of the other / the time through the mount, so 1 is as fast.
"""

from scripts.benchmarks import planes_later, planes_names, planes_random, planes_threads, planes_warm

RUNS = 5

GROUPS = {
    "warm": planes_warm.warm,
    "order": planes_warm.order,
    "threads": planes_threads.threads,
    "later": planes_later.later,
    "random": planes_random.random,
    "names": planes_names.names,
}
