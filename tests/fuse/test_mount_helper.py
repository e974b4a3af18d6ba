"""mount(8), `mount -a` with an fstab of its own, and umount(8): the real programs, which find our helper where an
administrator puts it. In a mount namespace, in which /usr/sbin has one name more."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fuse.harness import hfs_command, processes_of_run, run, wait_gone

HELPER = Path(hfs_command()).with_name("mount.fuse.hfs")

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mount(8) of a type of ours is for root"),
    pytest.mark.skipif(shutil.which("mount") is None, reason="there is no mount(8)"),
]

SETTING = """
set -u
cd "$1"
mkdir -p sbin work src mnt cache
echo 42 > src/file
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$(readlink -f /sbin),upperdir=$1/sbin,workdir=$1/work" "$(readlink -f /sbin)" ||
    exit 77
ln -s "$2" "$(readlink -f /sbin)/mount.fuse.hfs"
export HFS_LOG_FILE="$1/log"
"""


def inside(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """The script in a mount namespace in which mount(8) knows the type."""
    done = run("unshare", "--mount", "sh", "-c", SETTING + script, "sh", folder, HELPER)
    for pid in processes_of_run(folder):  # umount(8) does not wait for the daemon
        assert wait_gone(pid)
    if done.returncode == 77:
        pytest.skip(f"no overlay file system here: {done.stderr}")
    return done


def test_mount_and_umount(tmp_path: Path) -> None:
    """Generic options too; `rw`, which mount(8) gives where nobody says anything, is no fault."""
    done = inside(
        tmp_path,
        """
        mount -t fuse.hfs src "$1/mnt" -o "cache=$1/cache,noatime,nodev,x-systemd.automount,noexec" || exit 10
        cat mnt/file
        grep -c " $1/mnt .* fuse.hfs " /proc/self/mountinfo
        grep " $1/mnt .* fuse.hfs " /proc/self/mountinfo | grep -c noexec
        umount mnt || exit 11
        grep -c " $1/mnt .* fuse.hfs " /proc/self/mountinfo
        mount -i -t fuse.hfs src "$1/mnt" 2>/dev/null && exit 12
        exit 0
        """,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["42", "1", "1", "0"]), done.stderr


def test_a_line_of_fstab(tmp_path: Path) -> None:
    """`mount -a` mounts it, once; `nofail` keeps a source that is gone from failing the rest."""
    done = inside(
        tmp_path,
        """
        mkdir none
        echo "$1/src $1/mnt fuse.hfs cache=$1/cache,_netdev,nofail,x-systemd.requires=network.target 0 0" > fstab
        echo "$1/gone $1/none fuse.hfs cache=$1/cache,_netdev,nofail 0 0" >> fstab
        mount -a -T fstab
        echo "code $?"
        mount -a -T fstab
        grep -c " $1/mnt .* fuse.hfs " /proc/self/mountinfo
        cat mnt/file
        umount mnt
        """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[2:] == ["1", "42"], (done.stdout, done.stderr)
    assert f"{tmp_path}/gone" in done.stderr


def test_exit_codes(tmp_path: Path) -> None:
    """Those of mount(8), not of hfs."""
    source, mountpoint = tmp_path / "src", tmp_path / "mnt"
    source.mkdir()
    mountpoint.mkdir()
    cache = f"cache={tmp_path}/cache"
    for arguments, code, words in (
        ((source, mountpoint, "-o", f"{cache},remount"), 1, "remount"),
        ((source, mountpoint, "-o", f"{cache},rw", "-f"), 0, ""),
        ((source, mountpoint, "-t", "fuse.other", "-o", cache), 1, "fuse.hfs"),
        ((source, mountpoint, "-N", "/proc/1/ns/mnt", "-o", cache), 1, "nsenter"),
        ((source,), 1, "MOUNTPOINT"),
        ((source, mountpoint, "-o", f"{cache},as-user=nobody-of-this-name"), 1, "nobody-of-this-name"),
        ((source, mountpoint, "-o", "cache=/proc/nowhere"), 32, "/proc/nowhere"),
    ):
        done = run(HELPER, *arguments, env={"HFS_LOG_FILE": str(tmp_path / "log")})
        assert (done.returncode, words in done.stderr) == (code, True), (arguments, done)
    assert not os.path.ismount(mountpoint)
