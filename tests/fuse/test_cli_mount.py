"""The life of a mount through the `hfs` command: mount, status, run, umount, with signals, dead daemons and busy files.

What the files in it look like is for other tests; here it is exit codes, processes and what is left mounted.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fuse.harness import HfsMount, environment, hfs_command, mounts_below, must, processes_of_run, run, wait_gone
from tests.fuse.slowfs import SlowFs, SlowSource
from tests.support.pattern import pattern, write_pattern

SIZE = 300_000


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "source"
    (folder / "sub").mkdir(parents=True)
    write_pattern(folder / "file", 1, SIZE)
    write_pattern(folder / "sub" / "other", 2, SIZE)
    return folder


@pytest.fixture
def mnt(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "mnt"
    folder.mkdir()
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path.resolve() / "cache"


def start(*command: str | os.PathLike[str], **options: Any) -> "subprocess.Popen[str]":
    """A command that goes on while the test does something else; both its ends are text."""
    return subprocess.Popen(
        [os.fspath(part) for part in command],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def run_arguments(source: Path, mnt: Path, cache: Path, *options: str) -> list[str]:
    places = ("--source", source, "--at", mnt, "--cache", cache)
    return [hfs_command(), "run", *map(str, places), *options, "--"]


# -- mount, status, umount --------------------------------------------------------------------------------------------


def test_mount_status_umount(source: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(source)
    assert (hfs.path / "file").read_bytes() == pattern(1, 0, SIZE)
    found = hfs.status()
    assert found["mountpoint"] == str(hfs.path)
    assert found["source"]["path"] == str(source)
    assert found["source"]["bytes"] >= SIZE
    assert found["source"]["reads"] >= 1
    assert sum(found["reads"].values()) >= 1
    assert found["staged"].keys() >= {"files", "bytes"}
    assert found["config"]["chunk"] == {"value": 65536, "origin": "command line"}
    assert found["config"]["log-file"]["origin"] == "environment HFS_LOG_FILE"
    assert json.loads(must(hfs_command(), "status", hfs.path / "sub", "--json"))["pid"] == hfs.pid
    assert "never reach the daemon" in must(hfs_command(), "status", "--all", hfs.path)
    assert "since start   jobs read about" in must(hfs_command(), "status", hfs.path)
    hfs.umount()
    assert list(hfs.path.iterdir()) == []
    assert run(hfs_command(), "status", hfs.path).returncode == 2
    again = run(hfs_command(), "umount", hfs.path)
    assert (again.returncode, again.stderr) == (
        1,
        f"hfs: {hfs.path}: nothing is mounted there; hfs status lists the mounts\n",
    )
    hfs.mount()  # the cache is free again
    hfs.umount()


def test_all_mounts_are_listed_and_a_control_socket_is_where_it_is_wanted(
    source: Path, hfs_mount: HfsMount, tmp_path: Path
) -> None:
    place = tmp_path / "socket"
    mounts = [hfs_mount(source), hfs_mount(source, "--control", str(place), cache=tmp_path / "second")]
    listed = json.loads(run(hfs_command(), "status", "--json").stdout)["mounts"]
    found = {row["mountpoint"]: row for row in listed}
    for hfs in mounts:
        row = found[str(hfs.path)]
        assert (row["pid"], row["answers"], row["source"]) == (hfs.pid, True, str(source))
    assert os.getxattr(hfs.path, "user.hfs.socket") == os.fsencode(place)
    assert json.loads(must(hfs_command(), "status", "--control", place, "--json"))["pid"] == hfs.pid
    must("fusermount3", "-u", hfs.path)  # which ends the daemon too
    assert wait_gone(hfs.pid)
    assert not place.exists()
    hfs.mounted = False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, None], ids=["SIGTERM", "SIGINT", "hfs umount"])
def test_foreground(source: Path, mnt: Path, cache: Path, number: signal.Signals | None) -> None:
    with start(hfs_command(), "mount", "-f", source, mnt, "--cache", cache) as process:
        found = json.loads(must(hfs_command(), "status", mnt, "--json", "--wait", "30"))
        assert found["keeper"]["pid"] == process.pid
        assert (mnt / "file").read_bytes() == pattern(1, 0, SIZE)
        if number is None:
            must(hfs_command(), "umount", mnt)
        else:
            process.send_signal(number)
        _, said = process.communicate(timeout=40)
    assert process.returncode == 0, said
    assert f"hfs: {mnt}: mounted\n" in said
    assert mounts_below(mnt) == []


def test_default_log_and_its_place(source: Path, mnt: Path, cache: Path, tmp_path: Path) -> None:
    must(hfs_command(), "mount", source, mnt, "--cache", cache)
    must(hfs_command(), "umount", mnt)
    (log,) = (cache / "logs").iterdir()
    assert "INFO" in log.read_text()
    must(hfs_command(), "mount", source, mnt, "--cache", cache, env={"XDG_STATE_HOME": str(tmp_path / "state")})
    must(hfs_command(), "umount", mnt)
    assert len(list((tmp_path / "state" / "hfs").iterdir())) == 1


# -- dead daemons, busy mounts ----------------------------------------------------------------------------------------


def test_a_stale_mount_is_cleaned_up(source: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(source)
    (hfs.path / "file").read_bytes()
    hfs.kill()
    with pytest.raises(OSError, match="not connected"):
        os.listdir(hfs.path)
    assert run(hfs_command(), "status", hfs.path).returncode == 1
    done = run(hfs_command(), "mount", source, hfs.path, "--cache", hfs.cache, env={"HFS_LOG_FILE": str(hfs.log)})
    assert (done.returncode, done.stderr) == (0, f"hfs: {hfs.path}: removed the mount that a dead daemon had left\n")
    assert (hfs.path / "file").read_bytes() == pattern(1, 0, SIZE)
    assert mounts_below(hfs.path) == [str(hfs.path)]
    status = hfs.status()
    hfs.pid, hfs.keeper = status["pid"], status["keeper"]["pid"]
    with start("sh", "-c", "echo; read x", cwd=hfs.path) as process:  # also while a process stands in it
        assert process.stdout is not None
        process.stdout.readline()
        hfs.kill()
        must(hfs_command(), "umount", hfs.path)
        assert mounts_below(hfs.path) == []
        hfs.mounted = False
        process.communicate("\n")


def test_umount_of_a_busy_mount(source: Path, hfs_mount: HfsMount) -> None:
    """Our own working directory does not keep it busy; a shell's does, and an open file, and they are named."""
    hfs = hfs_mount(source)
    with start("sh", "-c", f"cd {hfs.path}/sub && {hfs_command()} umount ..; echo $?; exec 1>&-; read x") as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "1\n"
        _, said = shell.communicate("\n")
    assert f"process {shell.pid} (sh): its working directory is {hfs.path}/sub" in said
    done = subprocess.run([hfs_command(), "umount", "../"], cwd=hfs.path / "sub", env=environment(), check=False)
    assert done.returncode == 0
    hfs.mount()
    with start(
        sys.executable, "-c", "import sys; f = open(sys.argv[1]); print(flush=True); input()", hfs.path / "file"
    ) as user:
        assert user.stdout is not None
        user.stdout.readline()
        refused = run(hfs_command(), "umount", hfs.path)
        assert refused.returncode == 1
        assert f"process {user.pid} (" in refused.stderr
        assert f"has {hfs.path}/file open" in refused.stderr
        assert (hfs.path / "file").read_bytes() == pattern(1, 0, SIZE)
        must(hfs_command(), "umount", "--lazy", hfs.path)
        hfs.mounted = False
        assert list(hfs.path.iterdir()) == []
        assert not wait_gone(hfs.pid, 0)
        user.communicate("\n")
    assert wait_gone(hfs.pid)


# -- run --------------------------------------------------------------------------------------------------------------


def test_run_shows_the_files_and_ends_with_the_commands_code(source: Path, mnt: Path, cache: Path) -> None:
    code = "import os, sys; sys.stdout.write(open(sys.argv[1], 'rb').read(9).hex() + os.environ['MARK']); sys.exit(7)"
    command = (*run_arguments(source, mnt, cache), sys.executable, "-c", code, mnt / "file")
    done = run(*command, env={"MARK": "x"})
    assert (done.returncode, done.stdout) == (7, pattern(1, 0, 9).hex() + "x")
    for words in ("mounted after", "the source gave", "staged", "read"):
        assert words in done.stderr
    assert mounts_below(mnt) == []
    quiet = run(*run_arguments(source, mnt, cache, "--quiet"), "cat", mnt / "file")
    assert (quiet.returncode, quiet.stderr) == (0, "")
    absent = run(*run_arguments(source, mnt, cache), "/absent/command")
    assert (absent.returncode, absent.stderr.count("\n")) == (127, 1)  # nothing is told of what did not run
    assert mounts_below(mnt) == []


WAITER = """
import signal, sys
numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1}
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print("ready", flush=True)
for _ in numbers:
    print([int(signal.sigwait(numbers))], len(open(sys.argv[1], "rb").read()), flush=True)
sys.exit(1 if signal.sigpending() & numbers else 9)
"""


def test_run_forwards_signals_and_unmounts(source: Path, mnt: Path, cache: Path) -> None:
    """The command gets each signal once, may still read, and its code is ours."""
    command = (*run_arguments(source, mnt, cache), sys.executable, "-c", WAITER, mnt / "file")
    with start(*command, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            process.send_signal(number)
            assert process.stdout.readline() == f"[{int(number)}] {SIZE}\n"
        _, said = process.communicate(timeout=40)
    assert process.returncode == 9, said
    assert mounts_below(mnt) == []


def test_run_in_a_directory_that_is_mounted_over(source: Path, cache: Path) -> None:
    """The command's working directory is the one of the mount, not the one below it."""
    command = [*run_arguments(source, source, cache, "--over"), "sh", "-c", "touch new; cat ../file; pwd"]
    done = subprocess.run(command, cwd=source / "sub", env=environment(), capture_output=True, check=False, timeout=40)
    assert done.stdout == pattern(1, 0, SIZE) + os.fsencode(source / "sub") + b"\n"
    assert b"Read-only" in done.stderr
    assert not (source / "sub" / "new").exists()
    assert mounts_below(source) == []


# The keeper gets the file open: the command may end, and the mount go, before it has begun.
KEEPER = """
import os, sys
sys.stdin.read()
print(len(os.read(int(sys.argv[1]), 1_000_000)), flush=True)
"""
LEAVER = """
import subprocess, sys
with open(sys.argv[3], "rb") as file:
    subprocess.Popen(
        [sys.executable, "-c", sys.argv[4], str(file.fileno())],
        stdin=int(sys.argv[1]), stdout=int(sys.argv[2]), stderr=subprocess.DEVNULL, pass_fds=[file.fileno()],
    )
"""


def test_run_with_a_background_process_that_stays(source: Path, mnt: Path, cache: Path) -> None:
    """Its mount disappears all the same, and ends with it."""
    (stop, stop_end), (said, said_end) = os.pipe(), os.pipe()
    leaver = [sys.executable, "-c", LEAVER, str(stop), str(said_end), str(mnt / "file"), KEEPER]
    command = [*run_arguments(source, mnt, cache), *leaver]
    with subprocess.Popen(
        command, env=environment(), pass_fds=[stop, said_end], stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(stop)
        os.close(said_end)
        assert process.stderr is not None
        messages = process.stderr.read()
    assert process.returncode == 0, messages
    assert "its daemon goes on until these have ended" in messages
    assert mounts_below(mnt) == []
    os.close(stop_end)
    assert int(os.read(said, 100)) == SIZE
    os.close(said)
    for pid in processes_of_run(mnt.parent):
        assert wait_gone(pid)


def test_run_when_the_daemon_dies_and_when_its_keeper_dies_too(source: Path, mnt: Path, cache: Path) -> None:
    """The next one goes on. The command's code still is the result, and whoever uses the mount takes it away at the
    end."""
    find = f"{hfs_command()} status --json {mnt} | sed 's/^{{\"pid\": \\([0-9]*\\).*/\\1/'"
    script = f"kill -9 $({find}); cat {mnt}/file | cksum; pid=$({find}); "
    script += "kill -9 $(cut -d' ' -f4 /proc/$pid/stat) $pid; exit 5"
    done = run(*run_arguments(source, mnt, cache), "sh", "-c", script)
    assert (done.returncode, done.stdout) == (5, must("sh", "-c", f"cat {source}/file | cksum")), done.stderr
    assert "goes on" in done.stderr
    assert mounts_below(mnt) == []


@pytest.fixture
def hung_source(source: Path, slow_source: SlowSource) -> Iterator[SlowFs]:
    slow = slow_source(source)
    slow.order("fault lookup hang", "fault getattr hang", "fault readdir hang", "fault open hang")
    yield slow
    slow.order("clear")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_a_mount_that_waits_for_its_source(
    hung_source: SlowFs, mnt: Path, cache: Path, number: signal.Signals
) -> None:
    with start(hfs_command(), "mount", hung_source.path, mnt, "--cache", cache, start_new_session=True) as process:
        while not hung_source.counters()["parked"]:
            assert process.poll() is None
        process.send_signal(number)
        process.communicate(timeout=40)
    assert process.returncode == 1
    assert mounts_below(mnt) == []


# -- cache ------------------------------------------------------------------------------------------------------------


def test_warm_check_list_evict(source: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(source)
    warmed = hfs.cache_command("warm", hfs.path, "--json")
    assert warmed.returncode == 0, warmed.stderr
    last = json.loads(warmed.stdout.splitlines()[-1])
    assert (last["final"], last["files"], last["bytes"], last["failed"]) == (True, 2, 2 * SIZE, 0)
    reads = hfs.source_bytes()
    assert (hfs.path / "file").read_bytes() == pattern(1, 0, SIZE)
    assert hfs.source_bytes() == reads
    again = json.loads(hfs.cache_command("warm", hfs.path, "--json").stdout.splitlines()[-1])
    assert (again["files"], again["skipped"]) == (2, 2)

    partly = hfs.cache_command("warm", hfs.path / "absent", hfs.path / "file")
    assert partly.returncode == 3
    assert f"hfs: {hfs.path}/absent: " in partly.stderr
    assert hfs.cache_command("warm", hfs.path / "absent").returncode == 1

    for options in ([], ["--against-source"]):
        checked = hfs.cache_command("check", hfs.path, *options)
        assert checked.returncode == 0, checked.stderr
        assert checked.stdout.startswith("checked 2 files")

    listed = [json.loads(line) for line in hfs.cache_command("list", hfs.path, "--json").stdout.splitlines()]
    assert {row["path"] for row in listed[:-1]} == {f"{hfs.path}/file", f"{hfs.path}/sub/other"}
    assert listed[-1]["staged_bytes"] == 2 * SIZE

    assert hfs.cache_command("evict", hfs.path / "sub").returncode == 0
    assert hfs.status()["staged"]["files"] == 1
    assert hfs.cache_command("evict", "--all", hfs.path).returncode == 0
    assert hfs.status()["staged"]["files"] == 0


def test_a_cache_with_nothing_mounted(source: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(source)
    assert hfs.cache_command("warm", hfs.path).returncode == 0
    in_use = hfs.cache_command("check", "--cache", hfs.cache)
    assert in_use.returncode == 1
    assert str(hfs.pid) in in_use.stderr
    hfs.umount()
    listed = [
        json.loads(line) for line in hfs.cache_command("list", "--cache", hfs.cache, "--json").stdout.splitlines()
    ]
    assert listed[-1]["staged_bytes"] == 2 * SIZE
    assert hfs.cache_command("check", "--cache", hfs.cache).stdout.startswith("checked 2 files")
    assert hfs.cache_command("evict", "--cache", hfs.cache, "file").returncode == 0
    assert hfs.cache_command("evict", "--cache", hfs.cache, "--all").returncode == 0
    assert hfs.cache_command("list", "--cache", hfs.cache).stdout.split()[:5] == ["0", "bytes", "staged", "of", "0"]
    absent = hfs.cache_command("list", "--cache", hfs.cache / "absent")
    assert absent.returncode == 2
