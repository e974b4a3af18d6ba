"""`--io-mode overlay`: what is staged is opened by the kernel itself, in the place of the source, by one command's own
overlays. Real mounts, real overlays; as a plain user as well."""

import contextlib
import json
import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hfs.client.client import Client
from hfs.mountd.supervisor import overlay
from hfs.mountd.supervisor.table import overlay_lies_at
from scripts.benchmarks.plain_user import UID, as_plain_user
from tests.fuse.conftest import Mounts
from tests.fuse.harness import Hfs, HfsMount, environment, kill, must_here, processes_of_run, run, stopped
from tests.fuse.overlaid import LARGE, SMALL, SOON, filled, folder_for_overlays, told, uncovered, until, until_another

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")


@pytest.fixture(scope="module")
def shown(shared_folder: Path, shared_mount: Mounts) -> Hfs:
    source = filled(shared_folder / "source")
    (source / "folder").mkdir()
    shutil.copy(source / "a", source / "other")
    os.setxattr(source / "other", "user.overlay.redirect", b"/00/1")
    os.setxattr(source / "folder", "user.overlay.opaque", b"y")
    os.setxattr(source / "other", "user.note", b"of the source")
    hfs = uncovered(shared_mount(source, "--io-mode", "overlay", "--immutable"))
    assert told(hfs.path / "a") == told(hfs.path / "large") == [None, None], "nothing is staged"
    must_here("cache", "warm", *(hfs.path / name for name in ("a", "b", "c", "large")))
    return hfs


def test_what_is_staged_says_where_it_lies(shown: Hfs) -> None:
    objects = Path(shown.status()["io_mode"]["overlays"]["objects"])
    before = shown.status()["by_kernel"]
    for name in ("a", "b", "c", "large"):
        empty, place = told(shown.path / name)
        assert empty == b""
        assert place is not None
        assert place.startswith(b"/")
        assert (objects / os.fsdecode(place[1:])).read_bytes() == (shown.source / name).read_bytes()
        with pytest.raises(OSError, match="No data"):
            os.getxattr(shown.path / name, "user.overlay.opaque")
    after = shown.status()["by_kernel"]
    assert [after[name] - before[name] for name in ("look_ups", "bytes")] == [4, 3 * SMALL + LARGE]


def test_an_object_that_somebody_has_changed_is_told_to_nobody(shown: Hfs) -> None:
    objects = Path(shown.status()["io_mode"]["overlays"]["objects"])
    for name in ("b", "large"):
        _, place = told(shown.path / name)
        assert place is not None
        os.utime(objects / os.fsdecode(place[1:]))  # which moves its ctime
        assert told(shown.path / name)[0] is None
    until(lambda: told(shown.path / "large")[0] == b"")  # all of it was read again, and is right
    shown.expect_warning("changed")


def test_what_the_source_calls_so_is_not_shown_to_overlays(shown: Hfs) -> None:
    def look() -> list[str]:
        for name, attribute in (("other", "user.overlay.redirect"), ("folder", "user.overlay.opaque")):
            with pytest.raises(OSError, match="No data"):
                os.getxattr(shown.path / name, attribute)
        return [name for path in ("other", "folder") for name in os.listxattr(shown.path / path)]

    found = [look()]
    # While somebody records nothing is told, and an overlay may lie there all the same.
    for _ in Client(str(shown.socket)).touches(lambda: found.append(look()), lambda: len(found) > 1):
        pass
    assert found == 2 * [["user.note"]]


# --- A command in place


class Job:
    """A command of `hfs run`, which does what it is told line by line and says what came of it."""

    CODE = """
import json, os, sys
for line in sys.stdin:
    names = json.loads(line)
    try:
        said = {name: open(f"{sys.argv[1]}/{name}", "rb").read().hex()[:40] for name in names}
        table = [line for line in open("/proc/self/mountinfo") if f" {sys.argv[1]} " in line]
        said["overlays"] = [line.split()[0] for line in table if " overlay hfs" in line]
        said["uid"] = os.getuid()
    except OSError as error:
        said = {"error": str(error)}
    print(json.dumps(said), flush=True)
"""

    def __init__(
        self,
        folder: Path,
        *options: str,
        plain: bool = False,
        place: Path | None = None,
        code: str = CODE,
        arguments: tuple[str, ...] = (),
    ) -> None:
        """`place`: where it reads; None: in place."""
        self.source = folder / "source"
        cache = str(folder / ("own" if plain else "cache") / "cache")
        given = ["--source", str(self.source), "--cache", cache, "--immutable", "--io-mode", "overlay", *options]
        self.errors = folder / "errors"
        user = [*as_plain_user(folder), "env", f"HOME={folder}/own", f"HFS_LOG_FILE={folder}/own/log"] if plain else []
        with self.errors.open("w") as errors:
            self._process = subprocess.Popen(
                [*user, "hfs", "run", *given, "--", "python3", "-c", code, str(place or self.source), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment(SOON),
                text=True,
            )

    def reads(self, *names: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(names) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, self.errors.read_text()
        said: dict[str, Any] = json.loads(line)
        return said

    def is_right(self, *names: str) -> bool:
        said = self.reads(*names)
        return all(said.get(name) == (self.source / name).read_bytes().hex()[:40] for name in names)

    def kill_maker(self) -> None:
        """`hfs run`, and not its command."""
        kill(self._process.pid)

    def close(self) -> None:
        """Of one whose maker was killed: the command ends by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.stdout is not None
        assert self._process.stdout.read() == ""
        self._process.stdout.close()
        self._process.wait()

    def end(self) -> str:
        assert self._process.communicate(timeout=30) == ("", None)
        assert self._process.returncode == 0
        return self.errors.read_text()


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_for_overlays() as made:
        made.chmod(0o755)
        (made / "own").mkdir()
        shutil.chown(made / "own", UID, UID)
        filled(made / "source")
        yield made


@contextlib.contextmanager
def silent(folder: Path) -> Iterator[None]:
    """Keeper and daemon do nothing."""
    ours = [
        pid for pid, command in processes_of_run(folder).items() if "supervisor" in command or "own_process" in command
    ]
    assert len(ours) >= 2
    with stopped(*ours):
        yield


def kill_daemons(folder: Path) -> None:
    for pid, command in processes_of_run(folder).items():
        if "daemon_process" in command:
            os.kill(pid, signal.SIGKILL)


def renewed(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Another overlay has taken the place of that one."""
    return len(now["overlays"]) == 1 and now["overlays"] != before["overlays"]


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
    until(lambda: renewed(first, job.reads()))
    job.reads("a", "large")
    with silent(folder):
        assert job.is_right("a", "large")
    assert "no overlay" not in job.end()


@pytest.mark.long
def test_after_a_killed_daemon_a_new_overlay_has_all(folder: Path) -> None:
    job = Job(folder)
    for _ in range(3):
        assert job.is_right("a", "b", "c", "large")
        kill_daemons(folder)
        until(lambda: job.is_right("a", "b", "c", "large"))  # what was not staged is ESTALE until the next overlay
    job.end()


def test_where_no_overlay_is_offered_a_line_says_so_to_who_asks(folder: Path) -> None:
    given = ["--source", folder / "source", "--cache", folder / "cache", "--quiet"]
    within = f"cmp {folder}/source/a {folder}/source/a"
    assert run("hfs", "run", *given, "--", "sh", "-c", within).stderr == ""
    done = run("hfs", "run", *given, "-v", "--", "sh", "-c", within)
    assert done.returncode == 0
    assert "no overlay, all is read through the daemon: the daemon offers none" in done.stderr


@pytest.mark.parametrize(("where", "count"), [(".", "0"), ("..", "1")])
def test_with_auto_there_is_one_but_for_a_command_that_begins_in_the_data(folder: Path, where: str, count: str) -> None:
    """It would keep its first generation as its working directory, and with that all that this was told of."""
    given = ["--source", folder / "source", "--cache", folder / "cache", "--immutable", "--quiet"]
    within = f"grep -c ' {folder}/source .* overlay hfs' /proc/self/mountinfo; cmp {folder}/source/a {folder}/source/a"
    command = ["hfs", "run", *given, "--", "sh", "-c", within]
    done = run("env", "-C", folder / "source" / where, *command)
    assert (done.stdout, done.returncode) == (f"{count}\n", 0)
    assert "overlay" not in done.stderr  # commands of other tests may still see the mount, which is said


@pytest.mark.parametrize("plain", [False, pytest.param(True, marks=pytest.mark.long)], ids=["root", "plain"])
def test_at_another_place_a_command_has_one_where_it_is_asked_for(folder: Path, plain: bool) -> None:
    at = folder / "own" / "at"
    at.mkdir()
    shutil.chown(at, UID, UID)
    job = Job(folder, "--at", str(at), plain=plain, place=at)
    first = job.reads("a", "large")
    assert first["overlays"], job.errors.read_text()
    assert not overlay_lies_at(str(at)), "others see the mount itself"
    until(lambda: renewed(first, job.reads()))
    job.reads("a", "large")
    with silent(folder):
        assert job.is_right("a", "large")
    assert "no overlay" not in job.end()


LEAVES = """
import os, sys, time
place, told = sys.argv[1:]
held = open(f"{place}/a", "rb")
if os.fork():
    os._exit(0)
os.setsid()
os.close(1)
overlays = lambda: [line for line in open("/proc/self/mountinfo") if f" {place} " in line and " overlay hfs" in line]
while overlays():
    time.sleep(0.02)
right = held.read(10) + open(f"{place}/b", "rb").read(10) + open(f"{place}/a", "rb").read(10)
with open(told + ".next", "wb") as file:
    file.write(right)
os.rename(told + ".next", told)
"""


def test_what_a_command_has_left_behind_sees_the_mount_itself(folder: Path) -> None:
    given = ["--source", folder / "source", "--cache", folder / "cache", "--immutable", "--io-mode", "overlay"]
    told = folder / "own" / "told"
    command = ["hfs", "run", *given, "--quiet", "--", "python3", "-c", LEAVES, folder / "source", told]
    with (folder / "errors").open("w") as errors:
        assert subprocess.run(list(map(str, command)), env=environment(), stderr=errors, check=False).returncode == 0
    until(told.exists)
    a, b = ((folder / "source" / name).read_bytes()[:10] for name in ("a", "b"))
    assert told.read_bytes() == a + b + a


def test_what_is_staged_is_read_on_over_killed_daemons_and_makers(folder: Path) -> None:
    job = Job(folder)
    first = job.reads("a", "large")
    until(lambda: renewed(first, job.reads()))
    assert job.is_right("a", "large")
    for _ in range(5):
        kill_daemons(folder)
        assert job.is_right("a", "large")
    job.kill_maker()
    assert job.is_right("a", "b", "c", "large")
    kill_daemons(folder)
    assert job.is_right("a", "large")
    job.close()


def test_a_joined_mount_is_covered_for_the_command(folder: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(
        folder / "source", "--immutable", "--io-mode", "overlay", cache=folder / "cache" / "cache", env=SOON
    )
    job = Job(folder, "--chunk", "65536", "--cache-size", "2G")
    first = job.reads("a", "large")
    assert first["overlays"], job.errors.read_text()
    until(lambda: renewed(first, job.reads()))
    job.reads("a", "large")
    with stopped(hfs.pid, hfs.keeper):
        assert job.is_right("a", "large")
    job.end()
    assert hfs.status()["io_mode"]["overlays"] is not None


OPENERS = """
import json, os, sys, threading
place, *names = sys.argv[1:]
faults, ended, opened = [], threading.Event(), [0]
def opens():
    while not ended.is_set():
        for name in names:
            try:
                with open(f"{place}/{name}", "rb") as file:
                    if not file.read(10):
                        faults.append(f"{name} is empty")
                opened[0] += 1
            except OSError as error:
                faults.append(str(error))
threads = [threading.Thread(target=opens) for _ in range(4)]
for thread in threads:
    thread.start()
for line in sys.stdin:
    table = [line for line in open("/proc/self/mountinfo") if f" {place} " in line]
    overlays = [line.split()[0] for line in table if " overlay hfs" in line]
    print(json.dumps({"overlays": overlays, "faults": faults[:3], "opened": opened[0]}), flush=True)
ended.set()
"""


@pytest.mark.parametrize("plain", [pytest.param(False, marks=pytest.mark.long), True], ids=["root", "plain"])
def test_openers_by_path_see_no_renewal(folder: Path, plain: bool) -> None:
    job = Job(folder, plain=plain, code=OPENERS, arguments=("a", "b", "c", "large"))
    first = job.reads()
    until(lambda: renewed(first, job.reads()))
    (number,) = folder.rglob("cache/*/overlays/number")
    for made in range(20):
        until_another(lambda: job.reads()["overlays"], number, 1000 + made)
    said = job.reads()
    assert said["faults"] == []
    assert said["opened"] > 0
    job.end()


@pytest.mark.parametrize("plain", [False, pytest.param(True, marks=pytest.mark.long)], ids=["root", "plain"])
def test_the_daemon_is_told_of_what_is_made_and_of_what_has_gone(folder: Path, plain: bool) -> None:
    job = Job(folder, plain=plain)
    first = job.reads("a", "large")
    (makers,) = folder.rglob("cache/*/overlays")
    (file,) = makers.glob("maker-*")
    assert len(file.read_bytes()) == 16
    until(lambda: renewed(first, job.reads()))
    number = int((makers / "number").read_text())
    until(lambda: struct.unpack("<QQ", file.read_bytes()) == (number, number))
    job.end()
    assert not file.exists()


def test_an_overlay_of_layers_that_are_none_is_refused(tmp_path: Path) -> None:
    objects, top, number = (str(tmp_path / name) for name in ("objects", "top", "number"))
    layers = overlay.Layers(objects, "hfs#x", top, number, str(tmp_path), noexec=True)
    with pytest.raises(OSError, match="No such file"):
        overlay.put(layers, str(tmp_path))


TWO_JOBS = """
set -e
hfs run $GIVEN -- hfs cache warm "$1"
hfs run $GIVEN -- sh -c '
    cat "$1/a" > /dev/null  # has all that is kept of the directory brought in
    until hfs status "$1" --json | grep -q "\\"slots\\": {\\"known\\": [23]"; do :; done
    cat "$1/b" "$1/c" > /dev/null
    hfs status "$1" --json' sh "$1"
"""


def test_a_later_job_asks_python_for_no_file_of_another_user(folder: Path) -> None:
    """The kernel asks for the ACL of each of them. That they have none was seen when they were warmed, and is kept."""
    given = f"--source {folder}/source --cache {folder}/own/cache --immutable --io-mode overlay --quiet"
    home = ["env", f"HOME={folder}/own", f"HFS_LOG_FILE={folder}/own/log", f"PATH={environment()['PATH']}"]
    words = [*as_plain_user(folder), *home, f"GIVEN={given}", "sh", "-c", TWO_JOBS, "sh", str(folder / "source")]
    done = run(*words)
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout.splitlines()[-1])
    assert status["slots"]["held"] >= 2, "Python was asked for something of b or c"
