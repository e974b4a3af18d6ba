"""A mount as a unit of systemd: what it is told, and what it says of the unit file."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.fuse.harness import ROOT, environment, hfs_command, run

UNIT = ROOT / "docs" / "systemd" / "hfs@.service"


def test_it_is_told_when_the_mount_answers_and_when_it_ends(tmp_path: Path) -> None:
    source, mountpoint = tmp_path / "source", tmp_path / "mnt"
    source.mkdir()
    mountpoint.mkdir()
    (source / "file").write_text("42")
    configuration = tmp_path / "imagenet.toml"
    configuration.write_text(f'source = "{source}"\nmountpoint = "{mountpoint}"\ncache = "{tmp_path}/cache"\n')
    with (
        tempfile.TemporaryDirectory(prefix="hfs-", dir="/tmp") as short,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
    ):
        manager.bind(f"{short}/notify")
        manager.settimeout(60)
        started = subprocess.Popen(
            [hfs_command(), "mount", "--foreground", "--config", configuration],
            env=environment({"NOTIFY_SOCKET": f"{short}/notify", "WATCHDOG_USEC": "200000"}),
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert manager.recv(99) == b"READY=1"
            assert (mountpoint / "file").read_text() == "42"
            assert [manager.recv(99) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        finally:
            started.send_signal(signal.SIGTERM)
            _, said = started.communicate(timeout=60)
        assert started.returncode == 0, said
        manager.setblocking(False)
        words = []
        while b"STOPPING=1" not in words:
            words.append(manager.recv(99))
    assert not os.path.ismount(mountpoint)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_the_unit_is_one(tmp_path: Path) -> None:
    """ExecStart must be there for systemd-analyze: ours stands for /usr/bin/hfs."""
    unit = tmp_path / "hfs@imagenet.service"
    unit.write_text(UNIT.read_text().replace("/usr/bin/hfs", str(hfs_command())))
    done = run("systemd-analyze", "verify", "--man=no", unit)
    assert (done.returncode, done.stderr) == (0, ""), done
