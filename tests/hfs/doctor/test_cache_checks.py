"""The cache and the sockets as doctor sees them: kind of file system, room, indexes; in made up surroundings."""

import os
import socket
from pathlib import Path

import pytest

from hfs.doctor import cache, mounts
from tests.hfs.doctor.surroundings import found, made_up

# -- the cache --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "level", "text"),
    [
        ("nfs4", "fault", "on nfs4, a shared file system"),
        ("lustre", "fault", "on lustre, a shared file system"),
        ("fuse.sshfs", "fault", "on fuse.sshfs, a shared file system"),
        ("overlay", "limit", "on overlay, the container's own layer"),
        ("tmpfs", "fault", "on tmpfs, in memory; say how much it may take: --cache-size"),
        ("xfs", "good", "on xfs, can be made"),
    ],
)
def test_the_kind_of_file_system_of_the_cache(tmp_path: Path, kind: str, level: str, text: str) -> None:
    root = tmp_path.resolve()
    around = made_up(
        root, mounts=f"1 0 0:1 / {root} rw - {kind} server:/x rw", cache=f"{root}/new/cache", uid=os.geteuid()
    )
    told = found(cache.check(around))
    assert told["cache"][0] == level
    assert text in told["cache"][1]
    assert sorted(os.listdir(root)) == ["proc"], "nothing was made"


def test_a_cache_in_the_source_is_a_fault(tmp_path: Path) -> None:
    around = made_up(tmp_path, source=str(tmp_path.resolve()), cache=str(tmp_path.resolve() / "c"), uid=os.geteuid())
    assert "inside SOURCE" in found(cache.check(around))["cache"][1]


def test_more_than_is_free_is_a_limit(tmp_path: Path) -> None:
    around = made_up(tmp_path, cache=str(tmp_path), cache_size_bytes=1 << 60, uid=os.geteuid())
    assert found(cache.check(around))["cache-room"][0] == "limit"
    assert sorted(os.listdir(tmp_path)) == ["proc"]


# -- caches and sockets -----------------------------------------------------------------------------------------------


def test_an_index_that_is_damaged_is_seen_from_outside(tmp_path: Path) -> None:
    folder = tmp_path / "1-0123456789abcdef"
    folder.mkdir(mode=0o700)
    assert cache.damage(str(folder)) is None
    index = folder / "index.sqlite"
    index.write_bytes(b"")
    assert cache.damage(str(folder)) is None
    header = bytearray(100)
    header[:16], header[16:18], header[28:32], header[68:72] = b"SQLite format 3\0", b"\x10\0", b"\0\0\0\x02", b"hfs1"
    index.write_bytes(header + bytes(8192 - 100))
    assert cache.damage(str(folder)) is None
    index.write_bytes(header + bytes(5000))
    assert cache.damage(str(folder)) == "5100 bytes long instead of 8192"
    (folder / "index.sqlite-wal").touch()
    assert cache.damage(str(folder)) is None
    index.write_bytes(bytes(8192))
    assert cache.damage(str(folder)) == "it does not begin as one"
    index.write_bytes(b"SQLite")
    assert cache.damage(str(folder)) == "6 bytes are left of it"
    (folder / "index.damaged").touch()
    assert cache.damage(str(folder)) == "a damaged page was met"


def test_a_damaged_index_is_named_once_and_where_it_is(tmp_path: Path) -> None:
    root = tmp_path.resolve() / "root"
    root.mkdir(mode=0o700)
    around = made_up(tmp_path, cache=str(root), uid=os.geteuid())
    assert found(cache.check_indexes(around)) == {}
    for number, name in enumerate(("0" * 16, "1" * 16)):
        own = root / f"{os.geteuid()}-{name}"
        own.mkdir(mode=0o700)
        (own / "index.sqlite").write_bytes(bytes(100) if number else b"")
    told = found(cache.check_indexes(around))
    assert told["cache-index"][0] == "limit"
    assert f"{root}/{os.geteuid()}-{'1' * 16}: its index is damaged" in told["cache-index"][1]


def test_sockets_are_told_apart(tmp_path: Path) -> None:
    """One that is listened at, one that nobody listens at, what is no socket; a directory that others may write to."""
    ours = tmp_path / "ours"
    ours.mkdir(mode=0o700)
    around = made_up(tmp_path, uid=os.geteuid())
    with socket.socket(socket.AF_UNIX) as listens:
        listens.bind(str(ours / "a.sock"))
        listens.listen(1)
        (ours / "b.keeper").touch()
        assert found(mounts.check_sockets(around, [str(ours), str(tmp_path / "none")]))["sockets"][0] == "good"
        with socket.socket(socket.AF_UNIX) as gone:
            gone.bind(str(ours / "c.keeper"))
        level, line = found(mounts.check_sockets(around, [str(ours)]))["stale-sockets"]
    assert level == "note"
    assert "1 socket that" in line
    assert "c.keeper" in line
    ours.chmod(0o777)
    assert found(mounts.check_sockets(around, [str(ours)]))["socket-directory"][0] == "note"
