"""The I/O modes in tests: how a mount is made in one, and the proof that it was read in it.

A mount whose passthrough does not work reads every byte right, by the daemon; so each mode is proved by what
`hfs status` counts.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hfs.mounting import keeper
from tests.fuse.harness import ROOT, Hfs, HfsMount, here
from tests.fuse.overlaid import this_kernel_has_them


def why_no_passthrough() -> str | None:
    """The reason why nothing can be passed through here, or None. Not asked of hfs, which is what is tested."""
    if os.geteuid() != 0:
        return "passthrough needs root"
    code = "from hfs.mountd.native import _fastpath; exit(not _fastpath.HAS_PASSTHROUGH and 'libfuse is before 3.17')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    major, minor = (int(part) for part in os.uname().release.split(".")[:2])
    return None if (major, minor) >= (6, 9) else f"the kernel {os.uname().release} has no passthrough"


_MISSING = why_no_passthrough()

needs_passthrough = pytest.mark.skipif(_MISSING is not None and not os.environ.get("CI"), reason=_MISSING or "")
"""In CI, which is root on a new kernel, it is never skipped: the tests fail."""

needs_overlays = pytest.mark.skipif(
    os.geteuid() != 0 or not this_kernel_has_them(), reason="this kernel has no overlayfs with a layer of data alone"
)


@dataclass(frozen=True)
class Mode:
    """A way to mount, and what the status of a mount that was read in it says."""

    mode: str
    options: tuple[str, ...]
    opens: Mapping[str, bool]
    """Kinds of opens (see `hfs status`) of which there must have been some (True) or none (False)."""
    warm: bool = False
    """Stage all files before they are read: only complete and durable ones are passed through."""
    marks: tuple[pytest.MarkDecorator, ...] = ()
    covered: bool = False
    """By an overlay that knows of all that was staged."""

    def mount(self, hfs_mount: HfsMount, source: Path, *options: str, **kwargs: Any) -> Hfs:
        """`hfs_mount` in this mode."""
        hfs = hfs_mount(source, *self.options, *options, **kwargs)
        if self.warm:
            warm(hfs)
        if self.covered:
            cover(hfs)
        return hfs

    def prove(self, hfs: Hfs) -> None:
        """Fail if the mount was read in another mode, or not at all."""
        status = hfs.status()
        io_mode, opens = status["io_mode"], status["opens"]
        assert io_mode["mode"] == self.mode, io_mode
        assert {kind: opens[kind] > 0 for kind in self.opens} == self.opens, (opens, io_mode)
        assert not self.covered or status["by_kernel"]["look_ups"] > 0, status["by_kernel"]


MODES = {
    "passthrough": Mode(
        "passthrough", ("--io-mode", "passthrough"), {"passed": True}, warm=True, marks=(needs_passthrough,)
    ),
    "stateless": Mode(
        "stateless",
        ("--io-mode", "stateless", "--immutable"),
        # The one open that is counted is the one that ends them all.
        {"stateless": True, "cached": False, "passed": False},
        marks=(needs_passthrough,),
    ),
    "overlay": Mode(
        "overlay",
        ("--io-mode", "overlay", "--immutable"),
        {},
        warm=True,
        marks=(needs_overlays, pytest.mark.long),
        covered=True,
    ),
    "daemon": Mode("daemon", ("--io-mode", "daemon"), {"cached": True, "passed": False}),
}


def warm(hfs: Hfs, *paths: Path) -> None:
    """Stage everything, or `paths`: complete and durable when this returns."""
    warmed = here("cache", "warm", *(paths or (hfs.path,)))
    faults = [
        line for line in warmed.stderr.splitlines() if "which jobs read there and not through the mount" not in line
    ]
    # Of links that lead out of SOURCE nothing is staged, which is said, and is no matter here.
    assert warmed.returncode in {0, 3}, warmed
    assert not any(faults), warmed


def cover(hfs: Hfs) -> None:
    """With a new overlay over the mountpoint, in the place of the one that is there."""
    kept, layers = keeper.find(str(hfs.path)), hfs.status()["io_mode"]["overlays"]
    assert kept is not None
    for each in (None, layers):
        why = kept.make_overlay(each)
        assert bool(why) == (each is None), why
