"""What this kernel and this libfuse can do for a mount: the fast path, its settings, its page cache.

Passthrough, stateless opens, limits in fusectl and /sys. Imported before pyfuse3, so
that the extension stands before libfuse. It never learns of sources, caches or names.
"""

from hfs.mountd.kernel import fastpath
from hfs.mountd.kernel.fastpath import LOOK_AT_MOST_S, KernelSettings, XattrAnswers, tune
from hfs.mountd.kernel.plane import (
    Backing,
    Counted,
    DataPlane,
    DiskReads,
    Opened,
    PlaneFigures,
    ReadProgress,
    StagedObject,
)
from hfs.mountd.kernel.slots import (
    SlotFigures,
    SlotTable,
    TakenSlot,
    expire_names,
    forget_all_names,
    forget_attributes,
    forget_names,
    let_go_of_pages,
)
from hfs.mountd.kernel.small_fetches import (
    Fetched,
    FetchFigures,
    FetchKind,
    KnownObject,
    SmallFetches,
    let_go_of_staged_bytes,
)
