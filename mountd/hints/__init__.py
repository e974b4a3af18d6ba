"""The order of an epoch, as learners tell it, and what is made of it: fetched in time, kept, freed, pushed.

A hint can only make reads faster: whatever is wrong with it is an answer to its sender and a counter.
"""

from hfs.mountd.hints.followed_plans import FollowedPlans, PlanChanges
from hfs.mountd.hints.hints import HintFollower, Learners, ReadableFiles
from hfs.mountd.hints.page_cache_warmer import PageCacheWarmer, ReadWays
from hfs.mountd.hints.planned_units import PlannedChunks, PlannedFiles
from hfs.mountd.hints.space_reservation import SpaceReservation
