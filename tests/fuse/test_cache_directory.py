"""A cache directory that others could write to is refused, whatever they have put there; through `hfs mount` itself."""

import os
from pathlib import Path

import pytest

from hfs.mountd.core.config import Config
from hfs.mounting.logs import default_log_file
from tests.fuse.harness import HfsMount, here, hfs_command, run
from tests.support.pattern import pattern

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's files")


STRANGER = 4242
"""A user who is neither we nor root."""


def refused(tmp_path: Path, cache: Path) -> str:
    """What `hfs mount` says, which must be a usage error; nothing is mounted."""
    source, at = tmp_path / "source", tmp_path / "mnt"
    for folder in (source, at):
        folder.mkdir(exist_ok=True)
    done = here("mount", source, at, "--cache", cache, "--cache-size", "1G")
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert not os.path.ismount(at)
    return done.stderr


def given_to(path: Path, user: int = STRANGER) -> Path:
    os.chown(path, user, user, follow_symlinks=False)
    return path


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of root's that nobody may touch."""
    path = tmp_path / "shadow"
    path.write_text("root:secret\n")
    return path


def scratch(tmp_path: Path) -> Path:
    """A directory for everybody, as /scratch is on a node."""
    path = tmp_path / "scratch"
    path.mkdir()
    path.chmod(0o1777)
    return path


def test_a_lock_that_leads_elsewhere_overwrites_nothing(tmp_path: Path, victim: Path) -> None:
    """Somebody has made the directory first, and in it `lock` as a symbolic link to a file of root's."""
    cache = scratch(tmp_path) / "hfs"
    cache.mkdir()
    (cache / "lock").symlink_to(victim)
    given_to(cache / "lock")
    given_to(cache)
    said = refused(tmp_path, cache)
    assert victim.read_text() == "root:secret\n"
    assert f"hfs: cache {cache}: belongs to user {STRANGER}" in said


@pytest.mark.parametrize("how", ["symbolic link", "hard link"])
@pytest.mark.parametrize("name", ["lock", "index.sqlite", "index.sqlite-wal", "index.damaged"])
def test_links_in_a_directory_of_our_own_are_not_followed(tmp_path: Path, victim: Path, name: str, how: str) -> None:
    """It was open to others for a while, and they have used it."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    (cache / name).symlink_to(victim) if how == "symbolic link" else (cache / name).hardlink_to(victim)
    said = refused(tmp_path, cache)
    assert victim.read_text() == "root:secret\n"
    assert f"cache {cache}: {name} " in said
    assert how in said


def test_the_directory_itself_as_a_link_of_somebody(tmp_path: Path) -> None:
    """/scratch/hfs leads to a directory of root's, which is to be filled."""
    private = tmp_path / "root"
    private.mkdir(mode=0o700)
    (private / "lock").write_text("of another program")
    link = scratch(tmp_path) / "hfs"
    link.symlink_to(private)
    given_to(link)
    said = refused(tmp_path, link)
    assert f"cache {link}: {link} is a symbolic link of user {STRANGER}" in said
    assert os.listdir(private) == ["lock"]
    assert (private / "lock").read_text() == "of another program"


def test_a_link_of_our_own_is_followed(tmp_path: Path, hfs_mount: HfsMount) -> None:
    """An administrator points /scratch/hfs to the disk that is there."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "f").write_bytes(pattern(1, 0, 1000))
    (tmp_path / "disk").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to("disk")
    hfs = hfs_mount(tmp_path / "source", cache=tmp_path / "link")
    assert (hfs.path / "f").read_bytes() == pattern(1, 0, 1000)
    assert list((tmp_path / "disk").glob("*/index.sqlite"))


def test_a_planted_index_is_not_believed(tmp_path: Path, hfs_mount: HfsMount) -> None:
    """A cache that somebody else has filled: its index would name whatever bytes lie in its objects."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "f").write_bytes(pattern(1, 0, 1000))
    hfs = hfs_mount(tmp_path / "source")
    assert (hfs.path / "f").read_bytes() == pattern(1, 0, 1000)
    assert hfs.cache_command("warm", hfs.path).returncode == 0
    hfs.umount()
    hfs.mount()  # as it is made today it is taken again
    hfs.umount()
    for folder, _, names in os.walk(hfs.cache):
        for name in names:
            given_to(Path(folder, name))
    assert "belongs to user 4242" in refused(tmp_path, hfs.cache)


@pytest.mark.parametrize("name", ["", "objects", "objects/00", "index.sqlite"])
def test_what_others_may_write_to_is_refused_with_the_remedy(tmp_path: Path, hfs_mount: HfsMount, name: str) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "f").write_bytes(b"x")
    hfs = hfs_mount(tmp_path / "source")
    hfs.umount()
    (hfs.own_cache / "objects" / "00").mkdir(exist_ok=True)
    path = hfs.own_cache / name if name else hfs.cache
    path.chmod(0o775)
    said = refused(tmp_path, hfs.cache)
    assert "may be written to by others (mode 0775)" in said
    assert f"chmod go-w {path}" in said
    path.chmod(0o755)
    hfs.mount()


@pytest.mark.parametrize("command", ["check", "list", "evict"])
def test_a_command_without_a_mount_trusts_nobody_either(tmp_path: Path, victim: Path, command: str) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "index.sqlite").touch()
    (cache / "lock").symlink_to(victim)
    arguments = ["--all"] if command == "evict" else []
    done = here("cache", command, "--cache", cache, *arguments)
    assert done.returncode == 2, done.stderr
    assert "lock is a symbolic link" in done.stderr
    assert victim.read_text() == "root:secret\n"


def test_a_log_of_the_cache_goes_where_no_link_leads(tmp_path: Path, victim: Path) -> None:
    """Without a state directory the log lies below the cache."""
    cache = tmp_path / "cache"
    (cache / "logs").mkdir(parents=True)
    (source := tmp_path / "source").mkdir()
    (at := tmp_path / "mnt").mkdir()
    command = (hfs_command(), "mount", source, at, "--cache", cache, "--cache-size", "1G")
    name = os.path.basename(default_log_file(Config(source=str(source), mountpoint=str(at), cache=str(cache)), None))
    (cache / "logs" / name).symlink_to(victim)
    done = run(*command)
    assert done.returncode == 2, done.stderr
    assert f"logs/{name} is a symbolic link" in done.stderr
    assert victim.read_text() == "root:secret\n"
