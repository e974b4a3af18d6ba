"""Fixtures of real mounts, and the rule that a test leaves none of its mounts, processes and descriptors behind.

`hfs_mount(source, *options)` runs the real `hfs mount`; `slow_source(backing)` puts scripts/slowfs in front of a
folder; `any_source` gives a test each kind of source in turn. All are ended after the test, whatever has happened.
"""

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path

import pytest

from tests.fuse.harness import Hfs, kill, mounts_below, open_files, processes_of_run, unblock_after, unmount_lazily
from tests.fuse.slowfs import SlowFs

# Below the 60 s of the test runner, which cannot end a thread that waits in the kernel.
HANG_S = 52

# Many chunks from small files.
SMALL_CHUNK_BYTES = 64 << 10


MOUNTS = pytest.StashKey[list[Hfs]]()
# Of a long daemon log the end is what tells.
LOG_TAIL_CHARACTERS = 20_000


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for hfs in item.stash.get(MOUNTS, []):
            report.sections.append((f"{hfs.log.name} ({report.when})", hfs.log_text()[-LOG_TAIL_CHARACTERS:]))
            report.sections.append((f"hfs status {hfs.path.name} ({report.when})", hfs.status_text()))
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.fuse)


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path) -> Iterator[None]:
    before = open_files()
    with unblock_after(HANG_S, tmp_path):
        yield
    faults = [f"mount left behind: {point}" for point in mounts_below(tmp_path)]
    for point in mounts_below(tmp_path):
        unmount_lazily(point)
    for pid, command in processes_of_run(tmp_path).items():
        faults.append(f"process left behind: {pid} {command}")
        with contextlib.suppress(PermissionError):
            kill(pid)
    faults += [
        f"descriptor left open: {number} -> {target}"
        for number, target in open_files().items()
        if before.get(number) != target
    ]
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


@pytest.fixture
def slow_source(tmp_path: Path, _nothing_left: None) -> Iterator[Callable[..., SlowFs]]:
    """slow_source(backing, preset="none", *options, at=...): a mounted slowfs; `.path` is what to use as source."""
    made: list[SlowFs] = []

    def make(backing: Path, preset: str = "none", *options: str, at: Path | None = None) -> SlowFs:
        slow = SlowFs(backing, at or tmp_path / f"slow-{len(made)}", preset, *options)
        made.append(slow)
        slow.mount()
        return slow

    yield make
    for slow in reversed(made):
        slow.close()


@pytest.fixture
def hfs_mount(
    tmp_path: Path, slow_source: Callable[..., SlowFs], request: pytest.FixtureRequest
) -> Iterator[Callable[..., Hfs]]:
    """hfs_mount(source, *options, chunk_bytes=..., cache=..., at=..., env=...): a mount by the real command.

    The cache has a fixed size: how full the test machine's disk is is not what most tests are about. The daemon's log
    is shown if the test fails; an undeclared warning in it fails the test.
    """
    made: list[Hfs] = []

    def make(
        source: Path,
        *options: str,
        chunk_bytes: int = SMALL_CHUNK_BYTES,
        cache_size: str = "2G",
        cache: Path | None = None,
        at: Path | None = None,
        env: Mapping[str, str] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> Hfs:
        number = len(made)
        hfs = Hfs(
            source,
            at or tmp_path / f"mnt-{number}",
            cache or tmp_path / "cache",
            tmp_path / f"daemon-{number}.log",
            ("--chunk", str(chunk_bytes), "--cache-size", cache_size, *options),
            env,
            prefix,
        )
        made.append(hfs)
        hfs.mount()
        return hfs

    request.node.stash[MOUNTS] = made
    yield make
    faults = [fault for hfs in reversed(made) for fault in hfs.close()]
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


@pytest.fixture(params=["plain", "slowfs"])
def any_source(
    request: pytest.FixtureRequest, tmp_path: Path, slow_source: Callable[..., SlowFs]
) -> Callable[[Path], Path]:
    """any_source(folder): the path to give to hfs, once the folder itself, once a slowfs mount that shows it."""

    def source(folder: Path) -> Path:
        return folder if request.param == "plain" else slow_source(folder).path

    return source
