"""The suite of the mount once more in every I/O mode: the very same tests, over mounts that are made in that mode.

The fixtures here stand in for those of conftest.py. After each test `hfs status` must prove that the files were read
in the mode (tests/fuse/modes.py). The neighbours run in the mode `auto`, and over slowfs too.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fuse.harness import Hfs
from tests.fuse.modes import MODES, Mode
from tests.fuse.test_clients import (
    test_h5py,
    test_lmdb_read_only,
    test_numpy_memmap,
    test_plain_tools,
    test_pytorch_dataloader,
)
from tests.fuse.test_differential import test_the_mount_answers_as_the_directory_does
from tests.fuse.test_promises import test_kill_9_never_leads_to_a_wrong_byte, test_the_source_is_read_once
from tests.fuse.test_tree import test_bytes_from_the_cache_after_a_remount, test_every_byte_and_every_stat

__all__ = [
    "test_bytes_from_the_cache_after_a_remount",
    "test_every_byte_and_every_stat",
    "test_h5py",
    "test_kill_9_never_leads_to_a_wrong_byte",
    "test_lmdb_read_only",
    "test_numpy_memmap",
    "test_plain_tools",
    "test_pytorch_dataloader",
    "test_the_mount_answers_as_the_directory_does",
    "test_the_source_is_read_once",
]


ALL = ("passthrough", "stateless", "daemon", "no extension")
FEWER = {
    # What takes longest, where the mode matters most: who is killed, and what a job meets.
    "test_pytorch_dataloader": ("passthrough", "stateless"),
    "test_kill_9_never_leads_to_a_wrong_byte": ("passthrough", "stateless"),
    "test_the_source_is_read_once": ("passthrough", "stateless"),
    "test_bytes_from_the_cache_after_a_remount": ("passthrough", "stateless", "no extension"),
    "test_h5py": ("passthrough", "stateless", "no extension"),
    "test_plain_tools": ("passthrough", "stateless"),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    names = FEWER.get(metafunc.function.__name__, ALL)
    metafunc.parametrize("mode", [pytest.param(MODES[name], id=name, marks=MODES[name].marks) for name in names])


@pytest.fixture
def any_source() -> Callable[[Path], Path]:
    return lambda folder: folder


@pytest.fixture
def hfs_mount(hfs_mount: Callable[..., Hfs], mode: Mode) -> Iterator[Callable[..., Hfs]]:
    made: list[Hfs] = []

    def make(source: Path, *options: str, **kwargs: Any) -> Hfs:
        made.append(mode.mount(hfs_mount, source, *options, **kwargs))
        return made[-1]

    yield make
    for hfs in made:
        mode.prove(hfs)
