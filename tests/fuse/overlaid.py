"""What tests of overlays share."""

import functools
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from hfs.mounting import keeper
from tests.fuse.harness import Hfs, processes_of_run, run, wait_gone
from tests.fuse.injection import injected, setting
from tests.support.pattern import pattern

SMALL, LARGE = 50_000, 9 << 20

SOON = injected(
    setting("hfs.mountd.files.overlays:_QUIET_S", 0.2),
    setting("hfs.mountd.files.overlays:_LOOK_S", 0.1),
)
"""The daemon has a new one made when nothing was staged for a moment, not for seconds."""


@functools.cache
def this_kernel_has_them() -> bool:
    """Overlays with a layer of data alone, in a namespace of our own."""
    code = "from hfs.mounting import view; exit(view.why_no_overlays() or 0)"
    return run(sys.executable, "-c", code).returncode == 0


@contextmanager
def folder_for_overlays() -> Iterator[Path]:
    """Not as deep as those of tests; at its end nothing runs there. Skips the test where there are no overlays."""
    if not this_kernel_has_them():
        pytest.skip("this kernel has no overlayfs with a layer of data alone")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)
        assert all(wait_gone(pid) for pid in processes_of_run(Path(name)))


def until(condition: Callable[[], bool]) -> None:
    """The limit of the test ends it else."""
    while not condition():
        threading.Event().wait(0.05)


def until_another(seen: Callable[[], Sequence[object]], number: Path, value: int) -> None:
    """Have makers make another one, and wait until it alone is seen. `number`: the file that they read."""
    before, following = seen(), number.with_name("next")
    following.write_text(str(value))
    os.chown(following, number.stat().st_uid, number.stat().st_gid)
    following.rename(number)
    until(lambda: len(now := seen()) == 1 and now != before)


def filled(folder: Path) -> Path:
    folder.mkdir()
    for number, name in enumerate(("a", "b", "c"), 1):
        (folder / name).write_bytes(pattern(number, 0, SMALL))
    (folder / "large").write_bytes(pattern(9, 0, LARGE))
    return folder


def told(path: Path) -> list[bytes | None]:
    """What an overlay would be told of this file."""
    found: list[bytes | None] = []
    for name in ("metacopy", "redirect"):
        try:
            found.append(os.getxattr(path, f"trusted.overlay.{name}"))
        except OSError:
            found.append(None)
    return found


def uncovered(hfs: Hfs) -> Hfs:
    """Without the overlay of root's own, which shows no such attributes."""
    kept = keeper.find(str(hfs.path))
    assert kept is not None
    assert kept.make_overlay(None)
    return hfs
