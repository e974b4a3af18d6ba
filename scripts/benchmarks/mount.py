"""`scripts/bench mount`: what an unmodified job gains from the mount, and what the daemon holds to.

Only the list of the groups of rows; `scripts/bench mount --only GROUP` measures one. Every group takes the work folder,
the options and the command that repeats it, and gives its rows.
"""

from scripts.benchmarks import mount_daemon, mount_history, mount_images, mount_large

RUNS = 3

GROUPS = {
    "images": mount_images.images,
    "samples": mount_large.samples,
    "sparse": mount_large.sparse,
    "sequential": mount_large.sequential,
    "history": mount_history.history,
    "hang": mount_daemon.hang,
    "memory": mount_daemon.memory,
}
