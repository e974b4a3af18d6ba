"""How bytes get here: the resolver, one fetch for each chunk, small-file batches, prefetch, siblings, what peers ask.

A fetch belongs to the daemon, not to the first who waits for it. Demand goes first everywhere. It never knows who opens
or hints.
"""

from mountd.fetch.batch_reader import BATCH_FILES, BatchReader
from mountd.fetch.chunks.batches import Place
from mountd.fetch.chunks.fetcher import Fetcher, Goal
from mountd.fetch.chunks.held import UNSTAGED_SHARE, HeldChunks
from mountd.fetch.chunks.owners import Owners
from mountd.fetch.chunks.page_pusher import PUSH_STEP_BYTES, PageCache, PagePusher, Push
from mountd.fetch.fetches_ahead import FetchesAhead
from mountd.fetch.history import History
from mountd.fetch.lending import Lending, LendingTerms
from mountd.fetch.misses import Misses
from mountd.fetch.neighbour_demand import NeighbourDemand, OwnWaits
from mountd.fetch.prefetch import Prefetch
from mountd.fetch.prefetch_queue import PrefetchQueue
from mountd.fetch.resolver import Ensured, Resolved, Resolver
from mountd.fetch.serving import Serving
from mountd.fetch.sibling_fetches import SiblingFetches
from mountd.fetch.sibling_watch import SiblingWatch
from mountd.fetch.small_file_lookups import Become, Small, SmallFileLookups
from mountd.fetch.small_files import SmallFiles
from mountd.fetch.small_files_demand import SmallDemand
from mountd.fetch.small_pipeline import SmallPipeline, Staged
from mountd.fetch.status import FetchStatus
from mountd.fetch.stepping_back import SteppingBack

__all__ = [
    "BATCH_FILES",
    "PUSH_STEP_BYTES",
    "UNSTAGED_SHARE",
    "BatchReader",
    "Become",
    "Ensured",
    "FetchStatus",
    "Fetcher",
    "FetchesAhead",
    "Goal",
    "HeldChunks",
    "History",
    "Lending",
    "LendingTerms",
    "Misses",
    "NeighbourDemand",
    "OwnWaits",
    "Owners",
    "PageCache",
    "PagePusher",
    "Place",
    "Prefetch",
    "PrefetchQueue",
    "Push",
    "Resolved",
    "Resolver",
    "Serving",
    "SiblingFetches",
    "SiblingWatch",
    "Small",
    "SmallDemand",
    "SmallFileLookups",
    "SmallFiles",
    "SmallPipeline",
    "Staged",
    "SteppingBack",
]
