"""Faults and settings put into the daemon of one mount: the environment for `hfs_mount(..., env=...)`.

What no option sets and nothing outside brings about: a background task that raises, a sweep after a moment instead of
half a minute. The daemon's own code is changed after its import, by tests/fuse/injected/sitecustomize.py.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

_FOLDER = Path(__file__).parent / "injected"


def setting(at: str, value: float | str) -> dict[str, object]:
    """`at` ("hfs.mountd.daemon.service:_SWEEP_S") has this value."""
    return {"at": at, "set": value}


def raising(at: str, times: int = 1, *, task: str | None = None, after: int = 0) -> dict[str, object]:
    """`at` ("hfs.mountd.fetch.chunks.fetcher:Fetcher.push") raises RuntimeError at its first `times` calls.

    `task`: by this background task; by whom else does not count. `after`: so many calls are well before.
    """
    return {"at": at, "raises": times, "task": task, "after": after}


def hidden(module: str) -> dict[str, object]:
    """The module cannot be imported."""
    return {"hide": module}


def replaced(module: str, by: Path) -> dict[str, object]:
    """The extension module is loaded from another shared object."""
    return {"replace": module, "by": str(by)}


def injected(*changes: dict[str, object]) -> dict[str, str]:
    """The environment of a daemon with these changes."""
    path = f"{_FOLDER}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")
    return {"PYTHONPATH": path, "MOUNT_TEST_INJECTED": json.dumps(changes)}


def can_come_late(env: Mapping[str, str]) -> bool:
    """Whether this is what `injected` gives, with changes of what was imported only."""
    changes = json.loads(env.get("MOUNT_TEST_INJECTED", "[]"))
    return env == injected(*changes) and all("at" in change for change in changes)


SETTLED_CLOCK = (
    setting("hfs.mountd.source.second_looks:_COARSE_NS", 0),
    setting("hfs.mountd.source.second_looks:_FINE_NS", 0),
)
SETTLED = injected(*SETTLED_CLOCK)
"""What was written just now counts as settled: else such directories are delegated a moment later."""
