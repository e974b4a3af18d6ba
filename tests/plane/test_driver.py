"""The data plane's C under sanitizers, without Python and without a mount: see *driver.c; and its order."""

from __future__ import annotations

import contextlib
import fcntl
import graphlib
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.layers import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]  # compiled with sanitizers, once for each

PLANE = ROOT / "mountd" / "native" / "plane"
WRAPPED = {
    "driver": ("malloc", "calloc", "mmap", "eventfd", "epoll_create1", "epoll_ctl", "pthread_create"),
    "slots_driver": ("malloc", "calloc", "mmap", "posix_fallocate"),
    "staged_driver": ("malloc", "calloc", "fstat"),
    "fetch_driver": ("malloc", "calloc", "pthread_create", "writev", "statx", "pthread_cond_timedwait"),
    "looks_driver": ("malloc", "calloc", "pthread_create", "is_as_left"),
}
"""Calls that each driver stands before."""
SANITIZERS = {"addresses": "-fsanitize=address,undefined", "threads": "-fsanitize=thread"}


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For all test processes: to compile takes longer than to run."""
    own = tmp_path_factory.getbasetemp()
    made = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "plane"
    made.mkdir(exist_ok=True)
    return made


@contextlib.contextmanager
def alone_at(place: Path) -> Iterator[None]:
    """Who else makes this waits."""
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


FLAGS = ("-O1", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fno-sanitize-recover=all", f"-I{PLANE}")


def driver(build: Path, sanitizer: str, name: str = "driver") -> Path:
    program = build / f"{name}-{sanitizer}"
    with alone_at(program):
        if not program.exists():
            wraps = [f"-Wl,--wrap={call}" for call in WRAPPED[name]]
            sources = [Path(__file__).with_name(f"{name}.c"), *objects(build, sanitizer)]
            made = program.with_suffix(".part")
            subprocess.run(
                ["gcc", *FLAGS, SANITIZERS[sanitizer], *sources, "-o", made, *wraps, "-lpthread"], check=True
            )
            made.rename(program)  # a test that comes to its limit meanwhile leaves no part of it
    return program


def objects(build: Path, sanitizer: str) -> list[Path]:
    """The plane, compiled once for all drivers."""
    folder = build / sanitizer
    with alone_at(folder):
        if not folder.exists():
            made = Path(tempfile.mkdtemp(dir=build))
            sources = [path for path in sorted(PLANE.glob("*.c")) if not path.name.startswith("python")]
            subprocess.run(["gcc", *FLAGS, SANITIZERS[sanitizer], "-c", *sources], check=True, cwd=made)
            made.rename(folder)
    return sorted(folder.glob("*.o"))


def run(folder: Path, *command: str | Path, limit_s: float) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as own:  # they make files there
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False, cwd=own)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("seed", [pytest.param("1", marks=pytest.mark.long), "20261123"])
def test_random_requests_while_entries_come_and_go(build: Path, name: str, sanitizer: str, seed: str) -> None:
    run(build, driver(build, sanitizer, name), "fuzz", "1.5", seed, limit_s=50)


@pytest.mark.long
@pytest.mark.timeout(700)
@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_ten_minutes_of_random_requests(build: Path, name: str, sanitizer: str) -> None:
    run(build, driver(build, sanitizer, name), "fuzz", "600", "3", limit_s=690)


@pytest.mark.parametrize("name", WRAPPED)
def test_every_call_that_may_fail_fails_once(build: Path, name: str) -> None:
    run(build, driver(build, "addresses", name), "fail", limit_s=50)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the processor does not stop after each store")
def test_who_is_killed_at_any_store_leaves_each_handle_and_file_as_before_or_after(tmp_path: Path) -> None:
    program = tmp_path / "stores_driver"
    sources = [
        Path(__file__).with_name("stores_driver.c"),
        PLANE / "counts.c",
        PLANE / "slot_memory.c",
        PLANE / "slots.c",
        PLANE / "names.c",
        PLANE / "table.c",
    ]
    subprocess.run(["gcc", *FLAGS, "-O2", *sources, "-o", program, "-Wl,--wrap=mmap", "-lpthread"], check=True)
    run(tmp_path, program, limit_s=50)


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_what_is_fetched_waits_for_room_that_comes_a_moment_late(build: Path, sanitizer: str) -> None:
    run(build, driver(build, sanitizer, "fetch_driver"), "late", limit_s=50)


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_what_was_looked_at_before_a_recall_is_entered_nowhere(build: Path, sanitizer: str) -> None:
    run(build, driver(build, sanitizer, "fetch_driver"), "recalled", limit_s=50)


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_a_file_that_is_wanted_by_two_names_is_read_once(build: Path, sanitizer: str) -> None:
    run(build, driver(build, sanitizer, "fetch_driver"), "linked", limit_s=50)


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_a_thread_that_hands_on_what_was_interrupted_while_the_queue_is_full_is_not_hung(
    build: Path, sanitizer: str
) -> None:
    run(build, driver(build, sanitizer, "fetch_driver"), "full", limit_s=50)


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_threads_that_the_source_has_kept_come_back(build: Path, sanitizer: str) -> None:
    """As many as there may be hang, and once no thread can be had."""
    run(build, driver(build, sanitizer, "fetch_driver"), "hang", limit_s=50)


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_threads_that_the_cache_disk_has_kept_look_on(build: Path, sanitizer: str) -> None:
    """Whoever waits for them is answered meanwhile, once."""
    run(build, driver(build, sanitizer, "looks_driver"), "hang", limit_s=50)


LADDER = (
    ("buffers", "detached", "events", "follows", "names", "object", "queue", "reply", "splice", "user"),
    ("table", "counts", "slot_memory", "slots", "delegated", "opens", "reads", "waiters"),
    ("contents", "file_replies", "looks", "overlay", "pushes", "staged"),
    ("jobs", "lines", "placement", "source", "store", "workers"),
    ("answers", "threads"),
)
"""What calls nothing of ours; tables; objects, in memory and on the disk; the engine; answers. A file uses its own rung
and those before it."""


def uses(build: Path) -> dict[str, set[str]]:
    """Which files of the plane each file of it uses, by the symbols of its object."""
    symbols = subprocess.run(
        ["nm", "-A", "-g", *objects(build, "addresses")], check=True, capture_output=True, text=True
    ).stdout
    defined, wanted = {}, []
    for line in symbols.splitlines():
        place, kind, symbol = line.split()[0], *line.split()[-2:]
        name = Path(place.split(":")[0]).stem
        if kind == "U":
            wanted.append((name, symbol))
        else:
            defined[symbol] = name
    found: dict[str, set[str]] = {name: set() for name in defined.values()}
    for name, symbol in wanted:
        if symbol in defined:
            found[name].add(defined[symbol])
    return found


def test_the_files_stand_on_a_ladder(build: Path) -> None:
    found = uses(build)
    rung = {name: number for number, names in enumerate(LADDER) for name in names}
    assert found.keys() == rung.keys()
    assert not [
        f"{name} uses {other}" for name, others in found.items() for other in others if rung[name] < rung[other]
    ]
    graphlib.TopologicalSorter(found).prepare()  # CycleError names the files of a circle
