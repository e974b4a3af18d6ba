"""`--io-mode overlay`: what is staged is opened by the kernel itself, in the place of the source, by one command's own
overlays. Real mounts, real overlays; as a plain user as well."""

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hfs.mounting import overlay
from scripts.benchmarks.plain_user import UID, as_plain_user
from tests.fuse.harness import Hfs, environment, must, processes_of_run, run, wait_gone
from tests.support.pattern import pattern

HfsMount = Callable[..., Hfs]

SMALL, LARGE = 50_000, 9 << 20
NAMES = ("metacopy", "redirect")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")


def filled(folder: Path, names: tuple[str, ...] = ("a", "b", "c")) -> Path:
    folder.mkdir()
    for number, name in enumerate(names):
        (folder / name).write_bytes(pattern(number + 1, 0, SMALL))
    (folder / "large").write_bytes(pattern(9, 0, LARGE))
    return folder


def told(path: Path) -> list[bytes | None]:
    """What an overlay would be told of this file."""
    found: list[bytes | None] = []
    for name in NAMES:
        try:
            found.append(os.getxattr(path, f"trusted.overlay.{name}"))
        except OSError:
            found.append(None)
    return found


def test_what_is_staged_says_where_it_lies(tmp_path: Path, hfs_mount: HfsMount) -> None:
    source = filled(tmp_path / "source")
    hfs = hfs_mount(source, "--io-mode", "overlay", "--immutable")
    assert told(hfs.path / "a") == told(hfs.path / "large") == [None, None], "nothing is staged"
    must("hfs", "cache", "warm", hfs.path)
    objects = Path(hfs.status()["io_mode"]["overlays"]["objects"])
    for name in ("a", "b", "c", "large"):
        empty, place = told(hfs.path / name)
        assert empty == b""
        assert place is not None
        assert place.startswith(b"/")
        assert (objects / os.fsdecode(place[1:])).read_bytes() == (source / name).read_bytes()
        with pytest.raises(OSError, match="No data"):
            os.getxattr(hfs.path / name, "user.overlay.opaque")


def test_an_object_that_somebody_has_changed_is_told_to_nobody(tmp_path: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(filled(tmp_path / "source"), "--io-mode", "overlay", "--immutable")
    must("hfs", "cache", "warm", hfs.path)
    objects = Path(hfs.status()["io_mode"]["overlays"]["objects"])
    for name in ("a", "large"):
        _, place = told(hfs.path / name)
        assert place is not None
        os.utime(objects / os.fsdecode(place[1:]))  # which moves its ctime
        assert told(hfs.path / name) == [None, None]
    hfs.expect_warning("changed")


def test_other_mounts_tell_nothing(tmp_path: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(filled(tmp_path / "source"), "--immutable")
    must("hfs", "cache", "warm", hfs.path)
    assert told(hfs.path / "a") == [None, None]
    assert hfs.status()["io_mode"]["overlays"] is None


def test_what_the_source_calls_so_is_not_shown_to_overlays(tmp_path: Path, hfs_mount: HfsMount) -> None:
    source = filled(tmp_path / "source")
    os.setxattr(source / "a", "user.overlay.redirect", b"/00/1")
    (source / "folder").mkdir()
    os.setxattr(source / "folder", "user.overlay.opaque", b"y")
    hfs = hfs_mount(source, "--io-mode", "overlay", "--immutable")
    for name, attribute in (("a", "user.overlay.redirect"), ("folder", "user.overlay.opaque")):
        with pytest.raises(OSError, match="No data"):
            os.getxattr(hfs.path / name, attribute)


def test_nothing_goes_as_long_as_it_may_be_told(tmp_path: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(filled(tmp_path / "source"), "--io-mode", "overlay", "--immutable")
    must("hfs", "cache", "warm", hfs.path)
    done = run("hfs", "cache", "evict", hfs.path)
    assert done.returncode == 2
    assert "nothing is evicted" in done.stderr
    assert told(hfs.path / "a")[0] == b""


# --- A command in place


class Job:
    """A command of `hfs run`, which does what it is told line by line and says what came of it."""

    CODE = """
import json, os, sys
for line in sys.stdin:
    names = json.loads(line)
    try:
        said = {name: open(f"{sys.argv[1]}/{name}", "rb").read().hex()[:40] for name in names}
        said["overlays"] = [line.split()[0] for line in open("/proc/self/mountinfo") if " overlay hfs" in line]
        said["uid"] = os.getuid()
    except OSError as error:
        said = {"error": str(error)}
    print(json.dumps(said), flush=True)
"""

    def __init__(self, folder: Path, *options: str, plain: bool = False) -> None:
        self.source = folder / "source"
        cache = str(folder / ("own" if plain else "cache") / "cache")
        given = ["--source", str(self.source), "--cache", cache, "--immutable", "--io-mode", "overlay", *options]
        self.errors = folder / "errors"
        user = [*as_plain_user(folder), "env", f"HOME={folder}/own", f"HFS_LOG_FILE={folder}/own/log"] if plain else []
        with self.errors.open("w") as errors:
            self._process = subprocess.Popen(
                [*user, "hfs", "run", *given, "--", "python3", "-c", self.CODE, str(self.source)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment(),
                text=True,
            )

    def reads(self, *names: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(names) + "\n")
        self._process.stdin.flush()
        said: dict[str, Any] = json.loads(self._process.stdout.readline())
        return said

    def is_right(self, *names: str) -> bool:
        said = self.reads(*names)
        return all(said.get(name) == (self.source / name).read_bytes().hex()[:40] for name in names)

    def end(self) -> str:
        assert self._process.communicate(timeout=30) == ("", None)
        assert self._process.returncode == 0
        return self.errors.read_text()


PUT = """
import os, sys
from hfs.mounting import overlay
names, objects, top = (f"{sys.argv[1]}/{name}" for name in ("names", "objects", "top"))
for made in (names, objects, top):
    os.mkdir(made)
overlay.put(overlay.Layers(names, objects, "hfs#probe", top, ""), names)
"""


@functools.cache
def this_kernel_has_them() -> bool:
    """Overlays with a layer of data alone, in a namespace of our own."""
    with tempfile.TemporaryDirectory() as place:
        return run("unshare", "--mount", sys.executable, "-c", PUT, place).returncode == 0


@pytest.fixture
def folder() -> Iterator[Path]:
    if not this_kernel_has_them():
        pytest.skip("this kernel has no overlayfs with a layer of data alone")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        made = Path(name)
        made.chmod(0o755)
        (made / "own").mkdir()
        shutil.chown(made / "own", UID, UID)
        filled(made / "source")
        yield made
        assert all(wait_gone(pid) for pid in processes_of_run(made))


@contextlib.contextmanager
def silent(folder: Path) -> Iterator[None]:
    """Keeper and daemon do nothing."""
    ours = [
        pid for pid, command in processes_of_run(folder).items() if "supervisor" in command or "own_process" in command
    ]
    assert len(ours) >= 2
    for pid in ours:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in ours:
            os.kill(pid, signal.SIGCONT)


def until(condition: Callable[[], bool]) -> None:
    """The limit of the test ends it else."""
    while not condition():
        threading.Event().wait(0.05)


def test_commands_within_find_the_daemon(folder: Path) -> None:
    given = ["--source", folder / "source", "--cache", folder / "cache", "--immutable", "--io-mode", "overlay"]
    within = f"hfs status {folder}/source --json && hfs cache warm {folder}/source >&2"
    done = run("hfs", "run", *given, "--quiet", "--", "sh", "-c", within)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["io_mode"]["mode"] == "overlay"


@pytest.mark.parametrize(
    "plain", [pytest.param(False, marks=pytest.mark.long, id="root"), pytest.param(True, id="plain")]
)
def test_what_is_staged_is_read_while_nobody_serves(folder: Path, plain: bool) -> None:
    job = Job(folder, plain=plain)
    first = job.reads("a", "large")
    assert first["overlays"], job.errors.read_text()
    assert first["uid"] == (UID if plain else 0)
    # What is staged is worth a new overlay, which takes the place of the first.
    until(lambda: job.reads()["overlays"] != first["overlays"])
    assert len(job.reads("a", "large")["overlays"]) == 1
    with silent(folder):
        assert job.is_right("a", "large")
    assert "no overlay" not in job.end()


@pytest.mark.long
def test_after_a_killed_daemon_a_new_overlay_has_all(folder: Path) -> None:
    job = Job(folder)
    for _ in range(3):
        assert job.is_right("a", "b", "c", "large")
        for pid, command in processes_of_run(folder).items():
            if "daemon_process" in command:
                os.kill(pid, signal.SIGKILL)
        until(lambda: job.is_right("a", "b", "c", "large"))  # what was not staged is ESTALE until the next overlay
    job.end()


def test_where_no_overlay_can_be_made_all_is_read_through_the_daemon(folder: Path, tmp_path: Path) -> None:
    at = tmp_path / "at"
    at.mkdir()
    done = run(
        "hfs", "run", "--source", folder / "source", "--at", at, "--cache", folder / "cache", "--immutable",
        "--io-mode", "overlay", "--", "sh", "-c", f"sleep 1; cmp {at}/a {folder}/source/a",
    )  # fmt: skip
    assert done.returncode == 0
    assert "no overlay, all is read through the daemon: --at shows the mount itself" in done.stderr


def test_an_overlay_of_layers_that_are_none_is_refused(tmp_path: Path) -> None:
    names, objects, top, number = (str(tmp_path / name) for name in ("names", "objects", "top", "number"))
    layers = overlay.Layers(names, objects, "hfs#x", top, number, noexec=True)
    with pytest.raises(OSError, match="No such file"):
        overlay.put(layers, str(tmp_path))


def test_what_is_staged_is_read_on_over_a_killed_daemon(folder: Path) -> None:
    job = Job(folder)
    first = job.reads("a", "large")
    until(lambda: job.reads()["overlays"] != first["overlays"])
    assert job.is_right("a", "large")
    for _ in range(5):
        for pid, command in processes_of_run(folder).items():
            if "daemon_process" in command:
                os.kill(pid, signal.SIGKILL)
        assert job.is_right("a", "large")
    job.end()
