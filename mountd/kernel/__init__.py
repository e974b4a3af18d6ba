"""What this kernel and this libfuse can do for a mount: the fast path, its settings, its page cache.

Passthrough, stateless opens, limits in fusectl and /sys, and whose pages are in memory. Imported before pyfuse3, so
that the extension stands before libfuse. It never learns of sources, caches or names.
"""

from mountd.kernel import fastpath
from mountd.kernel.disk_reads import DiskReads
from mountd.kernel.leaves import LeafFigures, PlaneLeaves
from mountd.kernel.names import expire_names, forget_all_names, forget_attributes, forget_names
from mountd.kernel.plane import Backing, Counted, DataPlane, PlaneFigures, ReadProgress, StagedObject
from mountd.kernel.processor import waited_for_core_s
from mountd.kernel.residency import resident
from mountd.kernel.small_fetches import Fetched, FetchFigures, FetchKind, SmallFetches
from mountd.kernel.tuning import KernelSettings, tune

__all__ = [
    "Backing",
    "Counted",
    "DataPlane",
    "DiskReads",
    "FetchFigures",
    "FetchKind",
    "Fetched",
    "KernelSettings",
    "LeafFigures",
    "PlaneFigures",
    "PlaneLeaves",
    "ReadProgress",
    "SmallFetches",
    "StagedObject",
    "expire_names",
    "fastpath",
    "forget_all_names",
    "forget_attributes",
    "forget_names",
    "resident",
    "tune",
    "waited_for_core_s",
]
