"""A mount that is started from an environment and from options that were not made for it."""

import os
import subprocess
from pathlib import Path

import pytest

from hfs.mounting import mountinfo
from tests.fuse.harness import HfsMount, hfs_command, must, run


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    script = folder / "script"
    script.write_text("#!/bin/sh\necho it runs\n")
    script.chmod(0o755)
    return folder


def test_a_pod_beside_a_service_named_hfs(source: Path, hfs_mount: HfsMount, tmp_path: Path) -> None:
    """Kubernetes puts such variables into every pod of the namespace; the mount says so and is made."""
    env = {"HFS_PORT": "tcp://10.0.0.7:80", "HFS_SERVICE_HOST": "10.0.0.7", "HFS_TLT": "5"}
    hfs = hfs_mount(source, env=env)
    assert (hfs.path / "script").read_text().startswith("#!")
    shown = run(hfs_command(), "config", env=env)
    assert shown.returncode == 0
    assert shown.stderr.splitlines() == [
        "hfs: environment HFS_TLT: no such key, passed over; did you mean ttl? hfs config lists all",
        "hfs: environment HFS_PORT, HFS_SERVICE_HOST: made for a service of that name, not for hfs; passed over",
    ]


def test_options_of_fstab(source: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(source, "-o", "defaults,dev,suid,exec,sync,noatime,_netdev,nofail,x-systemd.automount")
    assert must(hfs.path / "script") == "it runs\n"
    mount = mountinfo.at(str(hfs.path))
    assert mount is not None
    assert {"ro", "nosuid", "nodev"} <= set(mount.options.split(","))


def test_noexec(source: Path, hfs_mount: HfsMount) -> None:
    hfs = hfs_mount(source, "-o", "noexec")
    assert os.access(hfs.path / "script", os.R_OK)
    with pytest.raises(PermissionError):
        subprocess.run([hfs.path / "script"], check=False)
