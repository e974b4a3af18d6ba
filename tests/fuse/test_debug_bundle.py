"""`hfs debug bundle` of a real mount: what a report needs is in it, and no name of any file of the data set."""

import json
import os
import signal
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hfs.doctor import bundle
from tests.fuse.harness import BIN, Hfs, HfsMount, environment, hfs_command, must, run
from tests.fuse.hinted import wait_until
from tests.fuse.slowfs import SlowFs, SlowSource

FOLDER = "zebra crossing"
FILES = [
    f"{FOLDER}/{name}"
    for name in ("n01440764_10026.JPEG", "my cat, 7: a=b.h5", "straße'quoted\".bin", "20240131", "x\ny")
]
LINK = "shortcut42"
PARTS = (
    "zebra",
    "crossing",
    "n01440764",
    "10026.JPEG",
    "a=b.h5",
    "cat,",
    "straße",
    "stra\\u",
    "quoted",
    "20240131",
    LINK,
)
"""What would tell a name, whole or in part."""
LEARNER = "experiment-of-alice"


@pytest.fixture
def busy(tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount) -> Iterator[tuple[Hfs, SlowFs]]:
    """A mount whose daemon has had reasons to name files: errors of the source, links that lead away, an order."""
    tree = tmp_path / "tree"
    (tree / FOLDER).mkdir(parents=True)
    for name in FILES:
        (tree / name).write_bytes(os.urandom(300_000))
    slow = slow_source(tree)
    (tree / LINK).symlink_to(slow.path / FILES[0])
    hfs = hfs_mount(slow.path, "-o", "log-level=debug,push=no")
    hfs.expect_warning("WARNING|ERROR|Traceback")
    os.readlink(hfs.path / LINK)
    for name in FILES:
        (hfs.path / name).stat()
    slow.order("fault read eio 1 forever")
    for name in (FILES[1], FILES[4]):  # a read that fails is tried again, and takes a second
        with pytest.raises(OSError, match="Input/output error"):
            (hfs.path / name).read_bytes()
    slow.order("clear")
    (tmp_path / "list.txt").write_text("".join(f"{name}\n" for name in (*FILES[:3], f"{FOLDER}/no-such-zebra")))
    np.save(tmp_path / "order.npy", np.arange(4))
    given = (
        "--order",
        tmp_path / "order.npy",
        "--files",
        tmp_path / "list.txt",
        "--mount",
        hfs.path,
        "--name",
        LEARNER,
    )
    send = ["env", "--default-signal=INT", str(BIN / "hfs-hint"), "send", *map(str, given)]
    with subprocess.Popen(send, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "are known to the daemon" in process.stderr.readline()
        while b"a hint names what cannot be had" not in hfs.log.read_bytes():
            assert process.poll() is None
        with (hfs.path / FILES[0]).open("rb"):
            yield hfs, slow
        process.send_signal(signal.SIGINT)
        process.communicate()


def asked(slow: SlowFs) -> list[int]:
    """What the source was asked for. Not the attributes of its root, which stand on the way to these figures."""
    found = slow.counters()
    return [found[kind] for kind in ("lookup", "opendir", "readdir", "open", "read", "readlink", "getxattr")]


def packed(hfs: Hfs, output: Path, *options: str, env: dict[str, str] | None = None) -> dict[str, str]:
    """The files of a bundle, by name."""
    said = must(hfs_command(), "debug", "bundle", hfs.path, "-o", output, *options, env=env)
    assert str(output) in said
    with tarfile.open(output) as archive:
        members = archive.getmembers()
        assert all(member.isfile() and member.name.startswith("hfs-debug/") for member in members)
        texts = [archive.extractfile(member) for member in members]
        return {
            member.name.removeprefix("hfs-debug/"): text.read().decode()
            for member, text in zip(members, texts, strict=True)
            if text is not None
        }


def test_what_a_report_needs_is_in_it_and_no_name(tmp_path: Path, busy: tuple[Hfs, SlowFs]) -> None:
    hfs, slow = busy
    log = hfs.log.read_text()
    assert "zebra crossing" in log, "else there would be nothing to mask"
    named = packed(hfs, tmp_path / "named.tar.gz", "--with-names")
    assert "zebra crossing" in named["mount-0/log.txt"]
    assert LEARNER in named["mount-0/status.json"]
    output = tmp_path / "bundle.tar.gz"
    env = {"SECRET_TOKEN": "swordfish", "HFS_TTL": "17", "HFS_SERVICE_HOST": "10.9.8.7", "HFS_SOURCE": str(slow.path)}
    wait_until(hfs, lambda status: not any(status["queues"].values()))
    before = asked(slow)
    files = packed(hfs, output, env=env)
    assert asked(slow) == before, "something below the source was looked at"
    everything = "\n".join(files.values())
    for part in (*PARTS, LEARNER, "swordfish", "SECRET_TOKEN", "10.9.8.7"):
        assert part not in everything, [line for line in everything.splitlines() if part in line]
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    assert output.stat().st_size < 1 << 20

    assert json.loads(files["versions.json"])["packages"]["trio"]
    assert json.loads(files["config.json"])["ttl"] == {"value": 17.0, "origin": "environment HFS_TTL"}
    assert json.loads(files["environment.json"])["HFS_TTL"] == "17"
    assert json.loads(files["limits.json"])["limits"]["RLIMIT_NOFILE"]
    assert f" {hfs.path} " in files["mounts.txt"]
    assert any(str(hfs.path) in found["text"] for found in json.loads(files["doctor.json"])["findings"])
    status = json.loads(files["mount-0/status.json"])
    assert status["source"]["path"] == str(slow.path)
    assert status["source"]["absolute_links"] == 1
    assert status["source"]["absolute_links_named"] == [status["source"]["absolute_links_named"][0]]
    assert status["counters"]["source_errors"]["value"] > 0
    assert json.loads(files["mount-0/keeper.json"])["pid"] == hfs.keeper
    shown = files["mount-0/log.txt"]
    assert f"{hfs.path}: serving {slow.path}" in shown
    assert "a hint names what cannot be had, <name-" in shown
    assert len(shown.splitlines()) == len(log.splitlines())


def test_a_bundle_of_a_dead_mount_is_made_too_and_none_is_overwritten(tmp_path: Path, hfs_mount: HfsMount) -> None:
    (tmp_path / "source").mkdir()
    hfs = hfs_mount(tmp_path / "source")
    hfs.kill()
    output = tmp_path / "bundle.tar.gz"
    files = packed(hfs, output)
    assert "is not connected" in json.loads(files["mount-0/status.json"])["error"]
    again = run(hfs_command(), "debug", "bundle", "-o", output)
    assert again.returncode == 1
    assert f"{output}: is there already" in again.stderr
    elsewhere = run(hfs_command(), "debug", "bundle", tmp_path)
    assert elsewhere.returncode == 2
    assert "not in a mount of hfs" in elsewhere.stderr


def test_a_log_below_the_source_is_not_looked_at(tmp_path: Path, hfs_mount: HfsMount) -> None:
    (tmp_path / "source").mkdir()
    hfs = hfs_mount(tmp_path / "source", env={"HFS_LOG_FILE": str(tmp_path / "source" / "log")})
    files = packed(hfs, tmp_path / "bundle.tar.gz")
    assert files["mount-0/log.txt"] == "(the log lies below SOURCE or a mount, where nothing is looked at)"


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    """Bounded, and private from the first byte, whatever the umask."""
    path = tmp_path / "bundle.tar.gz"
    code = (
        "import os, resource, signal, sys; os.umask(0); signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from hfs.doctor.bundle import write\n"
        "if sys.argv[2] == 'small': resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
        "write(sys.argv[1], {'a.txt': 'x' * (5 << 20)})"
    )
    failed = run(sys.executable, "-c", code, path, "small")
    assert "File too large" in failed.stderr
    assert not path.exists()
    must(sys.executable, "-c", code, path, "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as archive:
        assert [member.size for member in archive.getmembers()] == [bundle._FILE_BYTES]
