"""Fixtures of real mounts, and the rule that a test leaves none of its mounts, processes and descriptors behind.

`hfs_mount(source, *options)` runs the real `hfs mount` in the test's process, with a keeper and a daemon of their own
(tests/fuse/warm.py); `slow_source(backing)` puts scripts/slowfs in front of a folder; `any_source` gives a test each
kind of source in turn. All are ended after the test, whatever has happened. A mount costs half a second, so tests that
only look share one: `shared_mount`, `shared_slow_source`, by a fixture of their module.

A test marked `in_modes` runs in the mode `auto`, and once more in each of these I/O modes: then all its mounts are made
in that mode, over a plain folder, and `hfs status` must prove that they were read in it (tests/fuse/modes.py).
"""

import contextlib
import gc
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from hfs.cli.shared import printable
from tests.fuse.guard import RUN_KEY, SHARED
from tests.fuse.harness import (
    RUN_ID,
    WARM,
    Guard,
    Hfs,
    environment,
    kill,
    mounts_below,
    open_files,
    processes_of_run,
    unmount_lazily,
    wait_gone,
)
from tests.fuse.modes import MODES, Mode
from tests.fuse.slowfs import SlowFs

# Before the time limit of the test, whose runner cannot end a thread that waits in the kernel.
BEFORE_LIMIT_S = 8

# What has been told to end does so, later where the machine is busy.
ENDING_S = 5

# Many chunks from small files.
SMALL_CHUNK_BYTES = 64 << 10


# What `any_source` is in turn.
SOURCES = ("plain", "slowfs")
KINDS = [pytest.param((None, kind), id=kind) for kind in SOURCES]
KINDS += [pytest.param((mode, "plain"), id=name, marks=mode.marks) for name, mode in MODES.items() if not mode.covered]
"""For a module's shared mounts: each kind of source in the mode that the daemon chooses, a plain one in the others."""

MOUNTS = pytest.StashKey[list[Hfs]]()
FOR_ALL = {RUN_KEY: RUN_ID + SHARED}
"""The environment of what the tests of a module share."""
# Of a long daemon log the end is what tells.
LOG_TAIL_CHARACTERS = 20_000


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        module = item.getparent(pytest.Module)
        for hfs in [*item.stash.get(MOUNTS, []), *(module.stash.get(MOUNTS, []) if module else [])]:
            for title, text in (
                (hfs.log.name, hfs.log_text()[-LOG_TAIL_CHARACTERS:]),
                (f"hfs status {hfs.path.name}", hfs.status_text()),
            ):  # names of tests may be no UTF-8, and then the report could not be sent
                report.sections.append((printable(f"{title} ({report.when})"), printable(text)))
    return report


VARIANTS = {
    "test_pytorch_dataloader": {"slowfs", "stateless", "passthrough"},
    "test_kill_9_never_leads_to_a_wrong_byte": {"passthrough", "stateless"},
    "test_a_training_reads_what_it_would_read_and_the_source_once": {"young-0", "delegated-2"},
    "test_prefetch_of_one_steps_back_while_a_reader_of_the_other_waits_and_still_comes_to_its_end": {"7"},
    "test_what_is_pinned_stays_whatever_else_is_read": {"lru"},
    "test_bytes_from_the_cache_after_a_remount": {"slowfs"},
    "test_all_of_it_is_right_for_the_user_and_for_root_also_after_a_crash_and_warm": {"private", "squashes, asked"},
    "test_small_files_are_fetched_without_python_all_the_same": {"private, asked", "squashes"},
    "test_another_image_on_the_same_loop_device": {"ext4-s"},
    "test_a_tree_is_warmed_once": {"immutable"},
    "test_a_listing_does_not_fail_for_a_name_that_nobody_has_asked_for": {"eio forever"},
    "test_all_is_read_with_few_descriptors": {"slowfs"},
    "test_commands_and_jobs_beside_modules_of_our_names": {"modules"},
    "test_the_mount_answers_as_the_directory_does": {"daemon"},
}
"""Run with --long only: what they show is shown of each half by others. Five seconds each are too much for every
commit."""


@pytest.hookimpl(tryfirst=True)  # before what is long is taken out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.fuse)
            name, _, variant = item.name.partition("[")
            if variant[:-1] in VARIANTS.get(name, ()):
                item.add_marker(pytest.mark.long)


@pytest.hookimpl(tryfirst=True)  # before pytest looks at the parametrize marks
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("in_modes")
    if marker is None:
        return
    modes = [pytest.param(MODES[name], id=name, marks=MODES[name].marks) for name in marker.args or MODES]
    if "any_source" in metafunc.fixturenames:
        rows = [pytest.param(None, kind, id=kind) for kind in SOURCES]
        rows += [pytest.param(*mode.values, "plain", id=mode.id, marks=mode.marks) for mode in modes]
        each = pytest.mark.parametrize(("io_mode", "any_source"), rows, indirect=True)
    else:
        each = pytest.mark.parametrize("io_mode", [pytest.param(None, id="auto"), *modes], indirect=True)
    metafunc.definition.add_marker(each)


@pytest.fixture
def io_mode(request: pytest.FixtureRequest) -> Mode | None:
    """The mode of a test marked `in_modes`; None where the daemon chooses."""
    return getattr(request, "param", None)


@pytest.fixture
def connections_end(_nothing_left: None) -> Iterator[None]:
    """A hinted sampler leaves the daemon when it is collected, and it may be in a reference cycle."""
    yield
    gc.collect()


def left_behind(folder: Path, run_id: str) -> list[str]:
    """Mounts and processes that should have ended; they are ended now."""
    faults = [f"mount left behind: {point}" for point in mounts_below(folder)]
    for point in mounts_below(folder):
        unmount_lazily(point)
    for pid, command in processes_of_run(folder, run_id).items():
        if wait_gone(pid, ENDING_S):
            continue
        faults.append(f"process left behind: {pid} {command}")
        with contextlib.suppress(PermissionError):
            kill(pid)
    return faults


def left_open(before: Mapping[int, str]) -> list[tuple[int, str]]:
    """Descriptors of this process that were not there, or led elsewhere."""
    mine = [each for each in open_files().items() if each[0] not in WARM.descriptors]
    return [(number, target) for number, target in mine if before.get(number) != target]


@pytest.fixture(scope="session", autouse=True)
def _warm_processes() -> Iterator[None]:
    """The first of them imports while the first test begins."""
    WARM.of(environment())
    yield
    WARM.close()


@pytest.fixture(scope="session")
def guard() -> Iterator[Guard]:
    """It ends what a test has started that hangs."""
    with contextlib.closing(Guard()) as made:
        yield made


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path, request: pytest.FixtureRequest, guard: Guard) -> Iterator[None]:
    marker = request.node.get_closest_marker("timeout")
    limit_s = float(marker.args[0] if marker else request.config.getini("timeout"))
    before = open_files()
    with guard.unblock_after(limit_s - BEFORE_LIMIT_S, tmp_path):
        yield
    faults = left_behind(tmp_path, RUN_ID)
    if left_open(before):
        gc.collect()  # errors of commands that ran in this process hold frames, and these what the test had
    faults += [f"descriptor left open: {number} -> {target}" for number, target in left_open(before)]
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


class SlowSources:
    """Mounts scripts/slowfs before folders. Each `.path` is what to use as source."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._folder, self._env = folder, env
        self._made: list[SlowFs] = []

    def __call__(self, backing: Path, preset: str = "none", *options: str, at: Path | None = None) -> SlowFs:
        slow = SlowFs(backing, at or self._folder / f"slow-{len(self._made)}", preset, options, self._env)
        self._made.append(slow)
        slow.mount()
        return slow

    def close(self) -> None:
        for slow in reversed(self._made):
            slow.close()


class Mounts:
    """Mounts by the real command, in a folder. `made` are all of them."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._folder, self._env = folder, env
        self.made: list[Hfs] = []

    def __call__(
        self,
        source: Path,
        *options: str,
        chunk_bytes: int = SMALL_CHUNK_BYTES,
        cache_size: str = "2G",
        cache: Path | None = None,
        at: Path | None = None,
        env: Mapping[str, str] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> Hfs:
        number = len(self.made)
        hfs = Hfs(
            source,
            at or self._folder / f"mnt-{number}",
            cache or self._folder / "cache",
            self._folder / f"daemon-{number}.log",
            ("--chunk", str(chunk_bytes), "--cache-size", cache_size, *options),
            {**self._env, **(env or {})},
            prefix,
        )
        self.made.append(hfs)
        hfs.mount()
        return hfs

    def close(self) -> None:
        """End all of them; fails the test where one did not end well, or has warned of what nobody expected."""
        if faults := [fault for hfs in reversed(self.made) for fault in hfs.close()]:
            pytest.fail("\n".join(faults), pytrace=False)


@pytest.fixture
def slow_source(tmp_path: Path, _nothing_left: None) -> Iterator[SlowSources]:
    """slow_source(backing, preset="none", *options, at=...): a mounted slowfs."""
    with contextlib.closing(SlowSources(tmp_path, {})) as sources:
        yield sources


@pytest.fixture
def hfs_mount(
    tmp_path: Path, slow_source: SlowSources, io_mode: Mode | None, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Hfs]]:
    """hfs_mount(source, *options, chunk_bytes=..., cache=..., at=..., env=...): a mount by the real command.

    The cache has a fixed size: how full the test machine's disk is is not what most tests are about. The daemon's log
    is shown if the test fails; an undeclared warning in it fails the test.
    """
    with contextlib.closing(Mounts(tmp_path, {})) as mounts:
        request.node.stash[MOUNTS] = mounts.made
        yield mounts if io_mode is None else partial(io_mode.mount, mounts)
        if io_mode:
            for hfs in mounts.made:
                io_mode.prove(hfs)


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the sources, mounts and caches lie that the tests of a module share."""
    folder = tmp_path_factory.mktemp("shared")
    yield folder
    if faults := left_behind(folder, FOR_ALL[RUN_KEY]):
        pytest.fail("\n".join(faults), pytrace=False)


@pytest.fixture(scope="module")
def shared_slow_source(shared_folder: Path) -> Iterator[SlowSources]:
    """As slow_source, for all tests of the module."""
    with contextlib.closing(SlowSources(shared_folder, FOR_ALL)) as sources:
        yield sources


@pytest.fixture(scope="module")
def shared_mount(
    shared_folder: Path, shared_slow_source: SlowSources, request: pytest.FixtureRequest
) -> Iterator[Mounts]:
    """As hfs_mount, for all tests of the module: each mount ends behind the last of them."""
    with contextlib.closing(Mounts(shared_folder, FOR_ALL)) as mounts:
        request.node.stash[MOUNTS] = mounts.made
        yield mounts


class Shown(NamedTuple):
    """A tree, and a mount that shows it to all tests of a module."""

    tree: Path
    source: Path
    hfs: Hfs
    mode: Mode | None

    def prove(self) -> None:
        """It was read in its mode."""
        if self.mode is not None:
            self.mode.prove(self.hfs)


Show = Callable[[Callable[[Path], object]], Shown]


@pytest.fixture(scope="module", params=KINDS)
def show(
    request: pytest.FixtureRequest, shared_folder: Path, shared_slow_source: SlowSources, shared_mount: Mounts
) -> Show:
    """show(make): the tree that `make` makes once for the module, in a mount of each kind."""
    mode, kind = request.param

    def shown(make: Callable[[Path], object]) -> Shown:
        tree = shared_folder / "tree"
        if not tree.exists():
            make(tree)
        source = shared_slow_source(tree).path if kind == "slowfs" else tree
        mount = shared_mount if mode is None else partial(mode.mount, shared_mount)
        return Shown(tree, source, mount(source, cache=shared_folder / f"cache-{request.param_index}"), mode)

    return shown


@pytest.fixture(params=SOURCES)
def any_source(
    request: pytest.FixtureRequest, tmp_path: Path, slow_source: Callable[..., SlowFs]
) -> Callable[[Path], Path]:
    """any_source(folder): the path to give to hfs, once the folder itself, once a slowfs mount that shows it."""

    def source(folder: Path) -> Path:
        return folder if request.param == "plain" else slow_source(folder).path

    return source
