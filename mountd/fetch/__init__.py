"""How bytes get here: one fetch for each chunk, small files in batches, prefetch queue, siblings, what peers ask.

A fetch belongs to the daemon, not to the first who waits for it. Demand goes first everywhere. It never knows who opens
or hints.
"""

from mountd.fetch.batches import Place
from mountd.fetch.fetcher import PUSH_STEP_BYTES, UNSTAGED_SHARE, Fetcher, Push
from mountd.fetch.prefetch import Prefetch
from mountd.fetch.prefetch_queue import PrefetchQueue
from mountd.fetch.readers import Readers
from mountd.fetch.recorder import Recorder
from mountd.fetch.serving import Serving
from mountd.fetch.sibling_watch import SiblingWatch
from mountd.fetch.small_files import BATCH_FILES, Become, Small, SmallFiles
from mountd.fetch.small_files_demand import SmallDemand
from mountd.fetch.status import FetchStatus

__all__ = [
    "BATCH_FILES",
    "PUSH_STEP_BYTES",
    "UNSTAGED_SHARE",
    "Become",
    "FetchStatus",
    "Fetcher",
    "Place",
    "Prefetch",
    "PrefetchQueue",
    "Push",
    "Readers",
    "Recorder",
    "Serving",
    "SiblingWatch",
    "Small",
    "SmallDemand",
    "SmallFiles",
]
