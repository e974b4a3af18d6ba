"""How bytes get here: the resolver, one fetch for each chunk, small files, prefetch, siblings, what peers ask.

A fetch belongs to the daemon, not to the first who waits for it. Demand goes first everywhere. It never knows who opens
or hints.
"""

from hfs.mountd.fetch.chunks.fetcher import Fetcher, Goal
from hfs.mountd.fetch.chunks.held import UNSTAGED_SHARE, ChunkMemory
from hfs.mountd.fetch.chunks.owners import Owners
from hfs.mountd.fetch.chunks.page_pusher import PUSH_STEP_BYTES, PageCache, PagePusher, Push
from hfs.mountd.fetch.directory_delegations import DelegationTerms, DirectoryDelegations
from hfs.mountd.fetch.fetches_ahead import FetchesAhead, SiblingFetches
from hfs.mountd.fetch.misses import History, Misses
from hfs.mountd.fetch.prefetch import Prefetch, PrefetchQueue
from hfs.mountd.fetch.resolver import Ensured, Resolved, Resolver, SparseFiles, Unsized
from hfs.mountd.fetch.serving import Serving
from hfs.mountd.fetch.sibling_watch import SiblingWatch
from hfs.mountd.fetch.small_files import SmallFiles
from hfs.mountd.fetch.small_pipeline import WAS_HERE, Become, Place, Small, SmallPipeline
from hfs.mountd.fetch.stepping_back import OwnWaits, SteppingBack, WhatYields
