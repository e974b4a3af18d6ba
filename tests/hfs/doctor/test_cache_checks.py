"""The cache and the sockets as doctor sees them: kind of file system, room, speed, indexes; in made up surroundings."""

import os
import socket
from pathlib import Path

import pytest

from hfs.doctor import cache_place, cache_speed, caches, sockets
from hfs.doctor.cache_speed import Speed
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
    told = found(cache_place.check(around))
    assert told["cache"][0] == level
    assert text in told["cache"][1]
    assert sorted(os.listdir(root)) == ["proc"], "nothing was made"


def test_a_cache_in_the_source_is_a_fault(tmp_path: Path) -> None:
    around = made_up(tmp_path, source=str(tmp_path.resolve()), cache=str(tmp_path.resolve() / "c"), uid=os.geteuid())
    assert "inside SOURCE" in found(cache_place.check(around))["cache"][1]


def test_more_than_is_free_is_a_limit(tmp_path: Path) -> None:
    around = made_up(tmp_path, cache=str(tmp_path), cache_size_bytes=1 << 60, uid=os.geteuid())
    assert found(cache_place.check(around))["cache-room"][0] == "limit"
    assert sorted(os.listdir(tmp_path)) == ["proc"]


MB = 10**6


@pytest.mark.parametrize(
    ("speed", "level", "text"),
    [
        (
            Speed(900 * MB, 5000, 2000 * MB, 3000 * MB, 180 * MB),
            "good",
            "writes 900 MB/s (synced), makes 5,000 files/s, reads",
        ),
        (Speed(900 * MB, 5000, 2000 * MB, 3000 * MB), "good", "reads 2,000 MB/s at random and 3,000 MB/s in order"),
        (Speed(40 * MB, 5000, 2000 * MB), "limit", "slower than a stream of a usual shared file system"),
        (Speed(900 * MB, 60, 2000 * MB), "limit", "slower than a stream of a usual shared file system"),
        (Speed(900 * MB, 5000, 30 * MB), "limit", "slower than a stream of a usual shared file system"),
        (Speed(900 * MB, 5000, 300 * MB, 800 * MB, 950 * MB), "good", "SOURCE reads 950 MB/s"),
        (Speed(900 * MB, 5000, 300 * MB, 800 * MB, 3000 * MB), "limit", "3,000 MB/s: SOURCE is faster than the cache"),
        (Speed(), "limit", "wrote nothing within two seconds"),
        (Speed(900 * MB), "good", "writes 900 MB/s"),
    ],
)
def test_speeds_are_judged(speed: Speed, level: str, text: str) -> None:
    finding = cache_speed.judged(speed)
    assert finding.level.value == level
    assert text in finding.text


def test_speeds_are_measured_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_bytes(bytes(8 << 20))
    speed = cache_speed.measure(str(tmp_path / "cache"), str(tmp_path / "source"))
    assert speed is not None
    assert all(rate is None or rate > 0 for rate in speed)
    assert list((tmp_path / "cache").iterdir()) == []


def test_nothing_is_measured_where_there_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_speed, "_LEAST_BYTES", 1 << 60)
    assert cache_speed.measure(str(tmp_path), None) is None
    assert list(cache_speed.check(made_up(tmp_path, cache=str(tmp_path), measured=True))) == []


def test_what_was_said_before_a_disk_hung_counts() -> None:
    said = b'{"write": [1000, 0.5]}\n{"write": [3000, 0.5], "files": [10, 0.1]}\n{"write": [30'
    assert cache_speed._rates(said) == {"write": 6000, "files": 100}


def test_little_of_the_source_says_nothing_about_its_speed() -> None:
    assert cache_speed._rates(b'{"source": [1000, 0.000001]}\n') == {}
    assert cache_speed._rates(b'{"source": [8388608, 2]}\n') == {"source": 4194304}


# -- caches and sockets -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder_name", ["1-0123456789abcdef"])
def test_an_index_that_is_damaged_is_seen_from_outside(tmp_path: Path, folder_name: str) -> None:
    cache = tmp_path / folder_name
    cache.mkdir(mode=0o700)
    assert caches.damage(str(cache)) is None
    index = cache / "index.sqlite"
    index.write_bytes(b"")
    assert caches.damage(str(cache)) is None
    header = bytearray(100)
    header[:16], header[16:18], header[28:32], header[68:72] = b"SQLite format 3\0", b"\x10\0", b"\0\0\0\x02", b"hfs1"
    index.write_bytes(header + bytes(8192 - 100))
    assert caches.damage(str(cache)) is None
    index.write_bytes(header + bytes(5000))
    assert caches.damage(str(cache)) == "5100 bytes long instead of 8192"
    (cache / "index.sqlite-wal").touch()
    assert caches.damage(str(cache)) is None
    index.write_bytes(bytes(8192))
    assert caches.damage(str(cache)) == "it does not begin as one"
    index.write_bytes(b"SQLite")
    assert caches.damage(str(cache)) == "6 bytes are left of it"
    (cache / "index.damaged").touch()
    assert caches.damage(str(cache)) == "a damaged page was met"


def test_a_damaged_index_is_named_once_and_where_it_is(tmp_path: Path) -> None:
    root = tmp_path.resolve() / "root"
    root.mkdir(mode=0o700)
    around = made_up(tmp_path, cache=str(root), uid=os.geteuid())
    assert found(caches.check(around)) == {}
    for number, name in enumerate(("0" * 16, "1" * 16)):
        own = root / f"{os.geteuid()}-{name}"
        own.mkdir(mode=0o700)
        (own / "index.sqlite").write_bytes(bytes(100) if number else b"")
    told = found(caches.check(around))
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
        assert found(sockets.check(around, [str(ours), str(tmp_path / "none")]))["sockets"][0] == "good"
        with socket.socket(socket.AF_UNIX) as gone:
            gone.bind(str(ours / "c.keeper"))
        level, line = found(sockets.check(around, [str(ours)]))["stale-sockets"]
    assert level == "limit"
    assert "1 socket that" in line
    assert "c.keeper" in line
    ours.chmod(0o777)
    assert found(sockets.check(around, [str(ours)]))["socket-directory"][0] == "note"
