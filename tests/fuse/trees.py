"""Trees of odd files, and the comparison of a mount with its source.

Called by the tests of tests/fuse. A comparison returns a list of what differs, so that a test names all of it; no
function here knows anything of hfs.
"""

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from tests.support.pattern import pattern, write_pattern

# What a user of a file sees of it; not atime (reading changes it) and st_dev (another file system on purpose).
STAT_FIELDS = ("st_mode", "st_size", "st_uid", "st_gid", "st_nlink", "st_mtime_ns", "st_ctime_ns", "st_ino", "st_rdev")

BLOCK_BYTES = 1 << 20
# Files above this are compared around their data only.
WHOLE_LIMIT_BYTES = 256 << 20

HUGE_BYTES = (5 << 30) + 4321
# Where the huge file has data: its start, across 4 GiB (32-bit offsets), and its end.
HUGE_EXTENTS = ((0, 300_000), ((4 << 30) - 70_000, 140_000), (HUGE_BYTES - 100_000, 100_000))


FOLDERS, FILES = 8, 200


def seed(folder: int, number: int) -> int:
    """Of a file of `numbered_tree`."""
    return 1 + folder * FILES + number


def numbered_tree(root: Path) -> Path:
    """FOLDERS directories with FILES files each, of 1 byte and more."""
    for folder in range(FOLDERS):
        (root / f"{folder}").mkdir(parents=True)
        for number in range(FILES):
            (root / f"{folder}" / f"{number:04d}").write_bytes(pattern(seed(folder, number), 0, 1 + number))
    return root


def odd_sizes(chunk_bytes: int) -> dict[str, int]:
    """Names and sizes at every edge of a chunk."""
    return {
        "empty": 0,
        "one-byte": 1,
        "page-1": 4095,
        "page": 4096,
        "page+1": 4097,
        "chunk-1": chunk_bytes - 1,
        "chunk": chunk_bytes,
        "chunk+1": chunk_bytes + 1,
        "two-chunks": 2 * chunk_bytes,
        "many-chunks": 23 * chunk_bytes + 77,
    }


def odd_names() -> list[bytes]:
    """Names that break programs which think that a name is text."""
    return [
        b"not-utf8-\xff\xfe\x80",
        b"latin1-\xe4\xf6\xfc",
        b"new\nline",
        b" leading and trailing ",
        b"tab\tquote\"'back\\slash",
        b"-rf",
        b"%s%n{}$(x)",
        b"\x01\x02\x7f",
        "e\u0301 combining, \U0001f9c0".encode(),
        b"n" * 255,
        b"\xff" * 255,
    ]


def make_odd_tree(root: Path, chunk_bytes: int) -> Path:
    """Make the tree with one of everything that a file can be. Returns `root`."""
    root.mkdir()
    seed = 1
    for name, size in odd_sizes(chunk_bytes).items():
        write_pattern(root / name, seed, size)
        seed += 1

    names = root / "names"
    names.mkdir()
    for name in odd_names():
        write_pattern(os.path.join(os.fsencode(names), name), seed, 1000 + seed)
        seed += 1
    os.mkdir(os.path.join(os.fsencode(root), b"dir-\xff\n"))
    write_pattern(os.path.join(os.fsencode(root), b"dir-\xff\n", b"in\xfe"), seed, 5000)

    with open(root / "sparse", "wb") as file:
        file.truncate(40 * chunk_bytes)
        for at in (3 * chunk_bytes - 10, 17 * chunk_bytes, 39 * chunk_bytes + 5):
            file.seek(at)
            file.write(pattern(90, at, 4000))
    with open(root / "all-hole", "wb") as file:
        file.truncate(5 * chunk_bytes + 1)

    make_links(root)
    (root / "empty-dir").mkdir()
    deep = root
    for level in range(30):
        deep = deep / f"level-{level}"
    deep.mkdir(parents=True)
    write_pattern(deep / "bottom", 91, 12345)

    for mode in (0o000, 0o200, 0o444, 0o640, 0o755, 0o4755, 0o1777):
        write_pattern(root / f"mode-{mode:04o}", 92, 100)
        (root / f"mode-{mode:04o}").chmod(mode)
    (root / "closed-dir").mkdir(mode=0o700)
    write_pattern(root / "closed-dir" / "inside", 93, 100)
    (root / "sticky-dir").mkdir()
    (root / "sticky-dir").chmod(0o3777)

    write_pattern(root / "old", 94, 10)
    os.utime(root / "old", ns=(1, 1_000_000_001))
    write_pattern(root / "before-1970", 95, 10)
    os.utime(root / "before-1970", ns=(-1_500_000_000, -1_500_000_000))
    write_pattern(root / "after-2038", 96, 10)
    os.utime(root / "after-2038", ns=(2**32 * 10**9, 2**32 * 10**9 + 123_456_789))
    if os.geteuid() == 0:
        write_pattern(root / "another-owner", 97, 10)
        os.chown(root / "another-owner", 12345, 54321)
    return root


def make_links(root: Path) -> None:
    """Hard links and every kind of symbolic link."""
    (root / "links").mkdir()
    write_pattern(root / "links" / "first", 98, 200_000)
    os.link(root / "links" / "first", root / "links" / "second")
    os.link(root / "links" / "first", root / "third")
    for name, target in {
        "relative": "first",
        "upwards": "../third",
        "absolute-into-source": str(root / "links" / "first"),
        "absolute-outside": "/proc/version",
        "dangling": "nowhere/at/all",
        "to-itself": "to-itself",
        "to-dir": "..",
        "long": "x/" * 1000 + "y",
    }.items():
        os.symlink(target, root / "links" / name)
    os.symlink(b"not-utf8-\xff", os.path.join(os.fsencode(root), b"links", b"bytes-\xff"))


def make_special_files(root: Path) -> list[str]:
    """A fifo, a socket and, as root, devices. Returns their names."""
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as unix:
        # A socket's path is limited to 108 bytes; tmp_path may be longer.
        here = os.open(".", os.O_DIRECTORY)
        os.chdir(root)
        try:
            unix.bind("socket")
        finally:
            os.fchdir(here)
            os.close(here)
    made = ["fifo", "socket"]
    if os.geteuid() == 0:
        os.mknod(root / "char-device", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        os.mknod(root / "block-device", 0o666 | stat.S_IFBLK, os.makedev(7, 200))
        made += ["char-device", "block-device"]
    return made


def make_huge_file(path: Path, seed: int = 99) -> Path:
    """A sparse file above 5 GB with data at HUGE_EXTENTS."""
    with open(path, "wb") as file:
        file.truncate(HUGE_BYTES)
        for at, size in HUGE_EXTENTS:
            file.seek(at)
            file.write(pattern(seed, at, size))
    return path


def walk(root: bytes, below: bytes = b"") -> Iterator[bytes]:
    """Paths of everything below `root`, relative to it, directories before what they hold; "" first."""
    if not below:
        yield b"."
    with os.scandir(os.path.join(root, below)) as entries:
        listed = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    for name, is_dir in listed:
        path = os.path.join(below, name)
        yield path
        if is_dir:
            yield from walk(root, path)


def stat_of(path: bytes) -> dict[str, int]:
    found = os.lstat(path)
    return {field: getattr(found, field) for field in STAT_FIELDS}


def shown_of(name: bytes, fields: dict[str, int], *, covered: bool) -> dict[str, int]:
    """Without what an overlay (`covered`) has of its own: inode numbers of directories, and more of the root."""
    own = {"st_ino", "st_nlink", "st_ctime_ns"} if name == b"." else {"st_ino"}
    is_whole = not covered or not stat.S_ISDIR(fields["st_mode"])
    return {field: value for field, value in fields.items() if is_whole or field not in own}


def different_stats(source: Path, mount: Path, *, covered: bool = False) -> list[str]:
    """Names that only one side has, and every field of lstat in which the sides differ. `covered`: by an overlay."""
    left, right = os.fsencode(source), os.fsencode(mount)
    names = {side: list(walk(side)) for side in (left, right)}
    faults = [f"only in the source: {name!r}" for name in set(names[left]) - set(names[right])]
    faults += [f"only in the mount: {name!r}" for name in set(names[right]) - set(names[left])]
    if len(names[right]) != len(set(names[right])):
        faults.append("the mount lists a name twice")
    for name in set(names[left]) & set(names[right]):
        expected, found = (shown_of(name, stat_of(os.path.join(side, name)), covered=covered) for side in (left, right))
        faults += [
            f"{name!r}: {field} is {found[field]}, in the source {expected[field]}"
            for field in expected
            if expected[field] != found[field]
        ]
    return faults


def different_contents(source: Path, mount: Path) -> list[str]:
    """Every regular file whose bytes, and every symbolic link whose target, is another than in the source."""
    left, right = os.fsencode(source), os.fsencode(mount)
    faults = []
    for name in walk(left):
        one, other = os.path.join(left, name), os.path.join(right, name)
        mode = os.lstat(one).st_mode
        if stat.S_ISLNK(mode):
            if os.readlink(one) != os.readlink(other):
                faults.append(f"{name!r}: leads to {os.readlink(other)!r}, in the source to {os.readlink(one)!r}")
        elif stat.S_ISREG(mode) and (fault := different_bytes(one, other)):
            faults.append(f"{name!r}: {fault}")
    return faults


def different_bytes(one: bytes | Path, other: bytes | Path) -> str | None:
    """What differs between the contents of two files; a huge file is compared around its data only."""
    with open(one, "rb", buffering=0) as left, open(other, "rb", buffering=0) as right:
        if os.fstat(left.fileno()).st_size != os.fstat(right.fileno()).st_size:
            return f"{os.fstat(right.fileno()).st_size} bytes, in the source {os.fstat(left.fileno()).st_size}"
        for start, end in data_extents(left.fileno()):
            for at in range(start, end, BLOCK_BYTES):
                size = min(BLOCK_BYTES, end - at)
                expected, found = os.pread(left.fileno(), size, at), os.pread(right.fileno(), size, at)
                if expected != found:
                    first = next(
                        (i for i, pair in enumerate(zip(expected, found, strict=False)) if len(set(pair)) > 1), -1
                    )
                    return f"{len(found)} bytes read at {at}, {len(expected)} in the source; first differing {first}"
        if os.read(right.fileno(), 1) != os.pread(left.fileno(), 1, 0):
            return "the first byte differs when read(2) reads it"
        size = os.fstat(right.fileno()).st_size
        if os.pread(right.fileno(), 100, size) or os.pread(right.fileno(), 100, size + BLOCK_BYTES):
            return "there are bytes past the end"
    return None


def data_extents(descriptor: int) -> Iterator[tuple[int, int]]:
    """Half-open extents to compare: all of a file, or of a huge one what is data, 100 kB wider to both sides."""
    size = os.fstat(descriptor).st_size
    if size <= WHOLE_LIMIT_BYTES:
        yield 0, size
        return
    start = 0
    while start < size:
        try:
            start = os.lseek(descriptor, start, os.SEEK_DATA)
        except OSError:
            return
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield max(0, start - 100_000), min(size, end + 100_000)
        start = end
