"""The order of an epoch, as learners tell it, and what is made of it: fetched in time, kept, freed, pushed.

A hint can only make reads faster: whatever is wrong with it is an answer to its sender and a counter.
"""

from hfs.mountd.hints.followed_plans import FollowedPlans
from hfs.mountd.hints.hints import HintFollower
from hfs.mountd.hints.learners import Learners
from hfs.mountd.hints.page_cache_warmer import PageCacheWarmer, ReadWays
from hfs.mountd.hints.plan_changes import PlanChanges
from hfs.mountd.hints.planned_chunks import PlannedChunks
from hfs.mountd.hints.planned_files import PlannedFiles
from hfs.mountd.hints.readable_files import ReadableFiles
from hfs.mountd.hints.space_reservation import SpaceReservation

__all__ = [
    "FollowedPlans",
    "HintFollower",
    "Learners",
    "PageCacheWarmer",
    "PlanChanges",
    "PlannedChunks",
    "PlannedFiles",
    "ReadWays",
    "ReadableFiles",
    "SpaceReservation",
]
