"""Bad input of `hfs mount` and `hfs run`: one line that says what is wrong and what to do, the documented exit code,
nothing mounted, no process left."""

import os
from pathlib import Path

import pytest

from hfs.client.client import Client, Refused
from tests.fuse.harness import HfsMount, here, hfs_command, mounts_below, run

FAILED, USAGE, RUN_FAILED = 1, 2, 125

Places = dict[str, Path]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """Good places, which a test makes bad."""
    found = {name: tmp_path.resolve() / name for name in ("source", "mnt", "cache")}
    for path in found.values():
        path.mkdir()
    (found["source"] / "file").write_text("contents")
    return found


def refused(places: Places, code: int, *options: str, beside: int = 1) -> str:
    """Both commands refuse, and leave nothing. Returns what they said, of `beside` lines."""
    source, mnt, cache = places["source"], places["mnt"], places["cache"]
    before = mounts_below(mnt.parent)
    mount = here("mount", source, mnt, "--cache", cache, *options)
    assert (mount.returncode, mount.stdout) == (code, ""), mount.stderr
    lines = mount.stderr.splitlines()
    assert len(lines) == beside, mount.stderr
    assert all(line.startswith("hfs: ") for line in lines)
    where = ("--source", source, "--at", mnt, "--cache", cache)
    with_command = run(hfs_command(), "run", *where, *options, "--", "touch", mnt.parent / "ran")
    assert (with_command.returncode, with_command.stderr) == (RUN_FAILED, mount.stderr)
    assert not (mnt.parent / "ran").exists()
    assert mounts_below(mnt.parent) == before
    return mount.stderr


def test_all_faults_together(places: Places) -> None:
    said = refused(places, USAGE, "--cache-size", "10Q", "--ttl", "x", "-o", "nope=1", beside=3)
    assert [line.split(": ")[1] for line in said.splitlines()] == ["nope", "cache-size", "ttl"]
    for name in places:
        places[name] = Path("/absent") / name
    assert len(refused(places, USAGE, beside=2).splitlines()) == 2


def test_a_control_socket_that_cannot_be(places: Places) -> None:
    assert "--control PATH" in refused(places, FAILED, "--control", "/absent/directory/socket")
    assert "something else" in refused(places, FAILED, "--control", str(places["source"] / "file"))


def test_already_mounted_by_hfs(places: Places, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(places["source"], at=places["mnt"])
    places["cache"] = places["cache"].parent / "second"
    for options in ([], ["--over"]):
        said = refused(places, FAILED, *options)
        assert f"process {hfs.pid}" in said
        assert f"hfs umount {places['mnt']}" in said
    assert (places["mnt"] / "file").read_text() == "contents"


def test_a_cache_that_another_daemon_owns(places: Places, hfs_mount: HfsMount, tmp_path: Path) -> None:
    """It serves the same source, and can be joined only with the options that it has."""
    hfs = hfs_mount(places["source"], "--ttl", "77", cache=places["cache"], at=tmp_path / "first")
    said = refused(places, USAGE)
    assert f"already served by the mount {hfs.path}, made with other options" in said
    assert "ttl: it has 77, and 60 is asked for" in said


def test_requests_that_no_client_of_ours_makes(places: Places, hfs_mount: HfsMount) -> None:
    """The daemon answers them, or refuses with the reason, and goes on."""
    hfs = hfs_mount(places["source"])
    client = Client(str(hfs.socket))
    for jobs in (-1, 1 << 30):
        with pytest.raises(Refused, match="jobs"):
            client.warm([b""], jobs)
    done = client.warm([b"a\0b", b"../..", b"file"], 2)
    assert (done.failed, done.files) == (2, 1)
    assert hfs.status()["pid"] == hfs.pid


# Permission bits mean nothing to root. Without these two capabilities they do, and /dev/fuse can still be opened.
OBEYING = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search") if os.geteuid() == 0 else ()


@pytest.mark.parametrize(
    ("bad", "mode", "words"),
    [
        ("source", 0o000, "may not be read by user"),
        ("source", 0o444, "may not be read by user"),
        ("cache", 0o555, "cannot be written to (Permission denied); give a directory that you can write to"),
    ],
)
def test_places_without_permission(places: Places, bad: str, mode: int, words: str) -> None:
    places[bad].chmod(mode)
    command = (*OBEYING, hfs_command(), "mount", places["source"], places["mnt"], "--cache", places["cache"])
    done = run(*command)
    places[bad].chmod(0o755)
    assert (done.returncode, done.stdout) == (FAILED, "")
    (line,) = done.stderr.splitlines()
    assert words in line
    assert mounts_below(places["mnt"]) == []
