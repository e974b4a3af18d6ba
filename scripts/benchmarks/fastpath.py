"""`scripts/bench fastpath`: how fast staged data is read through the mount, against the staged copy itself.

Only the list of the groups of rows; `scripts/bench fastpath --only GROUP` measures one. A ratio is native time / time
through the mount, so 1 is as fast as the local disk's own file. Both are taken in turn within a run, with the pages of
the staged files warm, except in `dropped`. "First time" is one pass with nothing in the mount's own page cache (a new
mount on a warm cache directory), "second time" the same reads again. Every row says which --io-mode it is of, and is
measured only on a mount whose status says that mode.
"""

from scripts.benchmarks import fastpath_dropped, fastpath_large, fastpath_listing, fastpath_peers, fastpath_small

RUNS = 5
"""Some bars lie 5 % below 1: the median must be steadier than that."""

GROUPS = {
    "large": fastpath_large.large,
    "small": fastpath_small.small,
    "peers": fastpath_peers.peers,
    "dropped": fastpath_dropped.dropped,
    "listing": fastpath_listing.listing,
}
