"""`scripts/bench first-epoch`: small files that nobody has read before.

    cold     four readers of files of 110 KB, the source in memory, beside a server in C that does what a cache must
    ways     the same under options of the mount, beside a mount without any
    images   JPEG files decoded, 2 and 8 workers, on each simulated storage
    small    a cache that holds a tenth, on each simulated storage
    batches  1 000 batches of 32 files from a simulated Lustre, with 2, 8 and 16 workers, without a hint and with one
    warm     `hfs cache warm`, beside `cp -r` with as many threads
    objects  objects in files of their own or in packs, while old ones go
    cpu      what an epoch costs the daemon, beside what `cp -r` of the same costs

Only the list of the groups of rows. A ratio is a time of the other / the time through the mount.
"""

from scripts.benchmarks import (
    first_epoch_batches,
    first_epoch_cold,
    first_epoch_objects,
    first_epoch_presets,
    first_epoch_warm,
    first_epoch_ways,
)

RUNS = 5

GROUPS = {
    "cold": first_epoch_cold.cold,
    "ways": first_epoch_ways.ways,
    "batches": first_epoch_batches.batches,
    "images": first_epoch_presets.images,
    "small": first_epoch_presets.small,
    "warm": first_epoch_warm.warm,
    "objects": first_epoch_objects.objects,
    "cpu": first_epoch_warm.cpu,
}
