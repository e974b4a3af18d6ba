"""`scripts/bench native`: what is staged is read by the kernel itself, through an overlay over the mount.

    large     one large staged file, by a plain user and by root, beside the same object read directly
    dropped   the same with pages dropped for both
    small     small staged files: first pass of a later job, later passes, requests, pages in memory
    stopped   daemon and keeper stopped under eight readers
    kills     kill -9 of the daemon under the same
    renewals  overlays made anew two hundred times, while files are staged, changed, refreshed and evicted
    cold      a cold first epoch, beside the same job without an overlay
    epochs    epoch 2 of a job that has staged its data in epoch 1, beside a plain copy

Only the list of the groups of rows. All are jobs in place (`hfs run`); root starts those of the plain user.
"""

from scripts.benchmarks import native_epochs, native_kills, native_large, native_renewals, native_small

RUNS = 5

GROUPS = {
    "large": native_large.large,
    "dropped": native_large.dropped,
    "small": native_small.small,
    "stopped": native_kills.stopped,
    "kills": native_kills.kills,
    "renewals": native_renewals.renewals,
    "cold": native_epochs.cold,
    "epochs": native_epochs.epochs,
}
