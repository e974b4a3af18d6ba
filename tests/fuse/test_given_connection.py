"""A mount that somebody else has made, served by a user without rights through `/dev/fd/N`."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from hfs.mountd.core.errors import MountError
from hfs.mounting.given import take
from scripts.benchmarks.plain_user import UID
from tests.fuse.given import Unprivileged, client_of, give, mount_command, mounted, open_folder, pod
from tests.fuse.harness import children, hfs_command, kill, mounts_below, must, processes_of_run, run
from tests.fuse.users import User, needs_root
from tests.support.pattern import pattern, write_pattern

pytestmark = [needs_root, pytest.mark.fuse]

FILES, SIZE, LARGE = 60, 20_000, 6_000_000
OTHER = User(61002, 61002)

FUSEMOUNT = Path(__file__).parent / "clients" / "fusemount.py"
CONSUMER = """
while read line; do
    if [ -z "$(ls -A shared/data 2>&1)" ]; then echo empty
    elif ! ls shared/data > /dev/null 2>&1; then echo dead
    elif diff -r source/d1 shared/data/d1; then echo right; fi
done
"""
CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as made:
        for number in range(FILES):
            path = made / "source" / f"d{number % 3}" / f"f{number}"
            path.parent.mkdir(exist_ok=True)
            write_pattern(path, number + 1, SIZE + number)
        write_pattern(made / "source" / "large", 500, LARGE)
        write_pattern(made / "source" / "later", 501, LARGE)
        with h5py.File(made / "source" / "samples.h5", "w") as file:
            file["samples"] = np.arange(200_000, dtype=np.int64).reshape(200, 1000)
        (made / "source" / "open").mkdir()
        write_pattern(made / "source" / "own", 502, 99)
        (made / "source" / "own").chmod(0o600)
        for name in ("open", "own"):
            os.chown(made / "source" / name, UID, UID)
        yield made
        assert processes_of_run(made) == {}


def test_nobody_serves_a_mount_that_another_has_made(folder: Path) -> None:
    """Clients are right, before and after kill -9 of the daemon; whoever has mounted unmounts, and nothing is left."""
    place, nobody = folder / "mnt", Unprivileged(folder, own_pids=True)
    with nobody.started(*mount_command(folder)) as (process, to):
        give(to, mounted(place, "allow_other"))  # that the kernel is to ask for permissions is said by who serves it
        must("diff", "-r", folder / "source", place)
        assert OTHER.reads(place, "d1/f1") == pattern(2, 0, SIZE + 1)
        assert OTHER.reads(place, "own") is None
        with h5py.File(place / "samples.h5") as file:
            assert int(file["samples"][150, 7]) == 150_007
        assert bytes(np.memmap(place / "large", np.uint8, "r")[LARGE - 99 :]) == pattern(500, LARGE - 99, 99)
        status = client_of(place).status()
        (keeper,) = children(process.pid)
        (daemon,) = children(keeper)
        rights = Path(f"/proc/{daemon}/status").read_text().split()
        assert {rights[rights.index(f"Cap{name}:") + 1] for name in ("Inh", "Prm", "Eff", "Amb")} == {"0" * 16}
        assert status["mountpoint"] == "/dev/fd/7"
        assert {reader["pid"] for reader in status["readers"]} == {0}, "the mount may be of another pid namespace"
        with (place / "later").open("rb") as file:
            assert file.read(99) == pattern(501, 0, 99)
            kill(daemon)
            assert file.read(99) == pattern(501, 99, 99)
        must("diff", "-r", folder / "source", place)
        assert client_of(place).status()["keeper"]["restarts"] == 1
        listed = nobody.beside(keeper, "hfs", "status", "--json")  # and what else this machine has
        rows = {row["mountpoint"]: row for row in json.loads(listed.stdout)["mounts"]}
        assert (rows["/dev/fd/7"]["source"], rows["/dev/fd/7"]["answers"]) == (str(folder / "source"), True), listed
        warmed = nobody.beside(keeper, "hfs", "cache", "warm", "/dev/fd/7/d0", "/dev/fd/7/large")
        assert warmed.returncode == 0, warmed
        next_release = mount_command(folder, "-o", f"log-file={folder}/own/log", "--take-over")
        next_release.remove("--foreground")
        taken = nobody.beside(keeper, *next_release)
        assert (taken.returncode, "taken over by process" in taken.stderr) == (0, True), taken
        must("diff", "-r", folder / "source", place)
        refused = nobody.beside(keeper, "hfs", "umount", "/dev/fd/7")
        assert (refused.returncode, "kill -TERM 1\n" in refused.stderr) == (1, True), refused
        must("umount", str(place))
        assert process.ended() == (0, ["hfs: /dev/fd/7: mounted"])
    assert list((folder / "run").rglob("*.*")) == []


def test_it_ends_on_sigterm_and_its_readers_are_told(folder: Path) -> None:
    """In the background, here. The mount is not ours to take away: it stays, dead, until its maker does so."""
    place, nobody = folder / "mnt", Unprivileged(folder)
    command = mount_command(folder, "-o", f"log-file={folder}/own/log")
    command.remove("--foreground")
    with nobody.started(*command) as (process, to):
        give(to, mounted(place))
        assert process.ended() == (0, [])
    opened = os.open(place / "large", os.O_RDONLY)
    kill(client_of(place).status()["keeper"]["pid"], signal.SIGTERM)
    with pytest.raises(OSError, match="not connected"):
        os.read(opened, 99)
    with contextlib.suppress(OSError):  # the kernel asks for a flush
        os.close(opened)
    must("umount", str(place))


@pytest.fixture
def shared(folder: Path) -> Path:
    """A directory of the node that pods share: what one mounts in it others see, if they want."""
    path = folder / "shared"
    (path / "data").mkdir(parents=True)
    must("mount", "--bind", path, path)
    must("mount", "--make-shared", path)
    return path


def test_fd_mount_mounts_for_who_may_not(folder: Path, shared: Path) -> None:
    """For one at a time, again and again. When who serves it is killed the mount is dead, and never an empty directory;
    the next one lies on top. The end of who has mounted it ends both. A pod from before (HostToContainer) sees each
    mount of the other (Bidirectional)."""
    place, path, nobody = shared / "data", folder / "run" / "data.sock", Unprivileged(folder)
    helper = (hfs_command(), "fd-mount", str(place), "--socket", str(path), "--user", str(UID))
    command = mount_command(folder, at=str(path))
    with (
        pod(folder, "slave", "sh", "-c", CONSUMER) as consumer,
        nobody.privileged("unshare", "--mount", "--propagation", "unchanged", *helper) as giver,
    ):
        assert consumer.stdin is not None
        assert consumer.stdout is not None

        def seen() -> str:
            print(file=consumer.stdin, flush=True)
            return consumer.stdout.readline()

        assert giver.line() == f"hfs: {path}: gives user {UID} a mount at {place}"
        assert b"Permission denied" in OTHER.run(folder, "python3", "-c", CONNECT, "run/data.sock").stderr
        assert seen() == "empty\n"
        with nobody.begun(*command) as process:
            assert giver.line() == f"hfs: {place}: given to user {UID}, process {process.pid}"
            assert seen() == "right\n"
            assert OTHER.reads(place, "d1/f1") == pattern(2, 0, SIZE + 1)
            with pytest.raises(MountError, match="served by another process already"):
                take(str(path))
            ready = nobody.beside(process.pid, "hfs", "status", str(path), "--ready")
            assert ready.returncode == 0, ready
            pids = {reader["pid"] for reader in client_of(place).status()["readers"]}
            assert pids, "somebody has read"
            assert 0 not in pids, "the mount is of the same pid namespace"
            (folder / "source").rename(folder / "gone")
            unready = nobody.beside(process.pid, "hfs", "status", str(path), "--ready")
            (folder / "gone").rename(folder / "source")
            assert (unready.returncode, "source cannot be read: No such file" in unready.stderr) == (1, True), unready
            process.kill()
            assert giver.line() == f"hfs: {place}: not served any more"
            assert seen() == "dead\n"
        for _ in range(10):  # one that fails again and again
            take(str(path)).close()
            assert giver.line().startswith(f"hfs: {place}: given to user 0, process ")
            assert giver.line() == f"hfs: {place}: not served any more"
        assert 1 < len(mounts_below(place)) < 10
        assert seen() == "dead\n"
        with nobody.begun(*command) as process:
            assert giver.line() == f"hfs: {place}: given to user {UID}, process {process.pid}"
            assert seen() == "right\n"
            os.kill(giver.pid, signal.SIGTERM)
            assert giver.ended() == (0, [])
            assert process.ended()[0] == 0
    assert mounts_below(place) == []
    assert list((folder / "run").rglob("*.sock")) == []


IN_CONTAINER = """
set -e
cd "$FOLDER"
diff -r source mnt
cat mnt/d1/f1 > /dev/null
touch mnt/open/new 2>&1 | grep -o "Read-only file system"
mkdir mnt/open/new 2>&1 | grep -o "Read-only file system"
python3 -c 'import h5py; print(h5py.File("mnt/samples.h5")["samples"][150, 7])'
hfs status mnt --json | grep -o '"mountpoint": "[^"]*"'
hfs cache warm mnt/d2 | grep -o "warmed 20 files"
"""


def test_as_apptainer_gives_it(folder: Path) -> None:
    """A stand-in for `apptainer run --fusemount host:...`: a mount of the type `fuse`, which is not read-only, in a
    user namespace. Programs in it are told that nothing can be written, and find the daemon through the mount."""
    nobody = Unprivileged(folder)
    program = [hfs_command(), "mount", "-f", "-o", "allow-other=false", "--cache", f"{folder}/own/cache"]
    done = run(
        *nobody.prefix(),
        *("env", f"FOLDER={folder}", "python3", str(FUSEMOUNT), str(folder / "mnt"), IN_CONTAINER),
        *(*program, str(folder / "source")),
        env=nobody.env,
    )
    assert done.stdout.splitlines() == [
        *["Read-only file system"] * 2,
        "150007",
        '"mountpoint": "/dev/fd/3"',
        "warmed 20 files",
        "container 0, program 0",
    ], done.stderr
