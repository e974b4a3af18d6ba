"""What tests of overlays share."""

import functools
import sys
import threading
from collections.abc import Callable

from tests.fuse.harness import run


@functools.cache
def this_kernel_has_them() -> bool:
    """Overlays with a layer of data alone, in a namespace of our own."""
    code = "from hfs.mounting import overlay_probe; exit(overlay_probe.why_none() or 0)"
    return run(sys.executable, "-c", code).returncode == 0


def until(condition: Callable[[], bool]) -> None:
    """The limit of the test ends it else."""
    while not condition():
        threading.Event().wait(0.05)
