"""A mount that somebody else has made, served by a user without rights through `/dev/fd/N`."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.fuse.given import Unprivileged, client_of, give, mount_command, mounted, open_folder
from tests.fuse.harness import hfs_command, kill, must, processes_of_run
from tests.fuse.users import User, needs_root
from tests.support.pattern import pattern, write_pattern

pytestmark = [needs_root, pytest.mark.fuse]

FILES, SIZE, LARGE = 60, 20_000, 6_000_000
OTHER = User(61002, 61002)


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
        yield made
        assert processes_of_run(made) == {}


def test_nobody_serves_a_mount_that_another_has_made(folder: Path) -> None:
    """Clients are right, before and after kill -9 of the daemon; whoever has mounted unmounts, and nothing is left."""
    place, nobody = folder / "mnt", Unprivileged(folder)
    with nobody.started(*mount_command(folder)) as (process, to):
        give(to, mounted(place))
        must("diff", "-r", folder / "source", place)
        assert OTHER.reads(place, "d1/f1") == pattern(2, 0, SIZE + 1)
        with h5py.File(place / "samples.h5") as file:
            assert int(file["samples"][150, 7]) == 150_007
        assert bytes(np.memmap(place / "large", np.uint8, "r")[LARGE - 99 :]) == pattern(500, LARGE - 99, 99)
        status = client_of(place).status()
        assert Path(f"/proc/{status['pid']}/status").read_text().count("0000000000000000\n") >= 5
        assert status["mountpoint"] == "/dev/fd/7"
        with (place / "later").open("rb") as file:
            assert file.read(99) == pattern(501, 0, 99)
            kill(status["pid"])
            assert file.read(99) == pattern(501, 99, 99)
        must("diff", "-r", folder / "source", place)
        assert client_of(place).status()["keeper"]["restarts"] == 1
        listed = nobody.beside(process.pid, "hfs", "status", "--json")  # and what else this machine has
        rows = {row["mountpoint"]: row for row in json.loads(listed.stdout)["mounts"]}
        assert (rows["/dev/fd/7"]["source"], rows["/dev/fd/7"]["answers"]) == (str(folder / "source"), True), listed
        warmed = nobody.beside(process.pid, "hfs", "cache", "warm", "/dev/fd/7/d0", "/dev/fd/7/large")
        assert warmed.returncode == 0, warmed
        refused = nobody.beside(process.pid, "hfs", "umount", "/dev/fd/7")
        assert (refused.returncode, f"kill -TERM {process.pid}" in refused.stderr) == (1, True), refused
        must("umount", str(place))
        assert process.ended() == (0, ["hfs: /dev/fd/7: mounted"])
    assert list((folder / "run").rglob("*.*")) == []


def test_it_ends_on_sigterm_and_its_readers_are_told(folder: Path) -> None:
    """The mount is not ours to take away: it stays, dead, until whoever has made it does so."""
    place, nobody = folder / "mnt", Unprivileged(folder)
    with nobody.started(*mount_command(folder)) as (process, to):
        give(to, mounted(place))
        with (place / "large").open("rb") as file:
            os.kill(process.pid, signal.SIGTERM)
            assert process.ended()[0] == 0
            with pytest.raises(OSError, match="not connected"):
                file.read(99)
    must("umount", str(place))


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ("allow_other", "fuse", "mounted without default_permissions, it lets all users in"),
        ("", "fuse.hfs", "it lets user 0 in"),
    ],
)
def test_a_mount_that_would_show_too_much_is_refused(folder: Path, options: str, kind: str, words: str) -> None:
    """Where mountinfo shows it."""
    connection = mounted(folder / "mnt", options, kind)
    nobody = Unprivileged(folder)  # its namespace is made later: it has a copy of the mount
    with nobody.started(*mount_command(folder)) as (process, to):
        give(to, connection)
        code, said = process.ended()
    assert (code, len(said), words in said[0]) == (1, 1, True), said


def test_what_is_no_connection_is_refused(folder: Path) -> None:
    """With a line that says the remedy: closed, something else, not mounted, served by another."""
    nobody = Unprivileged(folder)
    command = mount_command(folder)
    closed = nobody.run(*command)
    assert (closed.returncode, "/dev/fd/7: not open; give a descriptor" in closed.stderr) == (2, True), closed
    ended = []
    for number in range(2):
        with nobody.started(*command) as (process, to):
            connection = os.open(folder / "source" / "large", os.O_RDONLY)
            if number == 1:
                os.close(connection)
                connection = mounted(folder / "mnt")
                os.read(connection, 8192)
                served = os.dup(connection)
            give(to, connection)
            ended.append(process.ended())
    os.close(served)
    assert ended[0][0] == 2
    assert "open, but not as /dev/fuse" in ended[0][1][0]
    assert ended[1][0] == 1
    assert "somebody else has begun to serve it" in ended[1][1][0]


def test_run_mounts_by_itself(folder: Path) -> None:
    done = Unprivileged(folder).run(
        *(hfs_command(), "run", "--source", f"{folder}/source", "--at", "/dev/fd/7", "--cache", f"{folder}/own/cache"),
        *("--", "true"),
    )
    assert (done.returncode, "hfs mount" in done.stderr) == (125, True), done
