"""The ledger of a cache root: how its size is shared out among the caches below it, and which of them has a daemon.

A folder of small files: one a cache, written by its owner alone, and a lock for sums; and a board on which the daemons
tell each other how their readers wait. It knows nothing of what the caches hold. Standard library, msgspec and xxhash
only: commands look at it before there is a daemon.
"""

from hfs.mountd.ledger.ledger import Hold, Ledger, LedgerBusy, Listed, Registration, Taken
from hfs.mountd.ledger.record import Notice, Quota, QuotaRequest, ServedSource
from hfs.mountd.ledger.root import Board, CacheRoot, NeighbourWaits, cache_name, caches_below, has_ledger
