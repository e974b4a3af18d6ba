"""The order of an epoch, as learners tell it, and what is made of it: fetched in time, kept, freed, pushed.

A hint can only make reads faster: whatever is wrong with it is an answer to its sender and a counter.
"""

from mountd.hints.followed_plans import FollowedPlans
from mountd.hints.hints import HintFollower
from mountd.hints.learners import Learners
from mountd.hints.page_cache_warmer import PageCacheWarmer
from mountd.hints.plan_changes import PlanChanges
from mountd.hints.planned_chunks import PlannedChunks
from mountd.hints.planned_files import PlannedFiles
from mountd.hints.planned_leaves import PlannedLeaves
from mountd.hints.readable_files import ReadableFiles
from mountd.hints.space_reservation import SpaceReservation
from mountd.hints.status import HintsStatus

__all__ = [
    "FollowedPlans",
    "HintFollower",
    "HintsStatus",
    "Learners",
    "PageCacheWarmer",
    "PlanChanges",
    "PlannedChunks",
    "PlannedFiles",
    "PlannedLeaves",
    "ReadableFiles",
    "SpaceReservation",
]
