"""File systems mounted below SOURCE, each told from the others whatever their inode numbers and times are."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fuse.harness import HfsMount, must, unmount_lazily
from tests.fuse.hinted import wait_until
from tests.fuse.images import Loop, erofs_image, ext4_image, loops, why_no_images
from tests.support.pattern import explain, pattern

pytestmark = pytest.mark.skipif(why_no_images() is not None, reason=str(why_no_images()))

SIZES = {"small": 3_000, "middle": 100_000, "large": 5 * 64 * 1024 + 77}
UUIDS = ("01234567-1111-2222-3333-444444444444", "11234567-1111-2222-3333-444444444444")


def contents(seed: int) -> dict[str, bytes]:
    return {name: pattern(seed + 1, 0, size) for name, size in SIZES.items()}


def same(folder: Path, seed: int) -> None:
    for name, size in SIZES.items():
        data = (folder / name).read_bytes()
        assert data == pattern(seed + 1, 0, size), explain(seed + 1, 0, data)


def stamps(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def ext4(path: Path, seed: int) -> Path:
    return ext4_image(path, UUIDS[seed % 2], contents(seed))


def erofs(path: Path, seed: int) -> Path:
    return erofs_image(path, contents(seed))


class Below:
    """What a test has mounted; `loop` and `other` are devices of its own."""

    def __init__(self, source: Path, devices: list[Loop]) -> None:
        self.source = source
        self.loop, self.other = devices
        self.points: list[Path] = []

    def mount(self, loop: Loop, image: Path, at: Path) -> None:
        loop.mount(image, at)
        self.points.append(at)

    def umount(self, loop: Loop, at: Path) -> None:
        self.points.remove(at)
        loop.umount(at)

    def tmpfs(self, at: Path) -> None:
        at.mkdir(exist_ok=True)
        must("mount", "-t", "tmpfs", "none", at)
        self.points.append(at)


@pytest.fixture
def below(tmp_path: Path, _nothing_left: None) -> Iterator[Below]:
    (tmp_path / "source").mkdir()
    with loops(2) as devices:
        made = Below(tmp_path / "source", devices)
        yield made
        for point in reversed(made.points):
            unmount_lazily(point)


@pytest.mark.parametrize("image", [ext4, erofs])
def test_two_file_systems_below_the_source(
    tmp_path: Path, below: Below, hfs_mount: HfsMount, image: Callable[[Path, int], Path]
) -> None:
    """Two file systems below SOURCE with equal inode numbers, sizes and times: each file has its own bytes, is staged
    beside the other, and is found again by the next daemon."""
    for seed, loop in enumerate((below.loop, below.other)):
        below.mount(loop, image(tmp_path / f"{seed}.img", seed), below.source / f"s{seed}")
    for name in SIZES:
        assert stamps(below.source / "s0" / name) == stamps(below.source / "s1" / name)
    hfs = hfs_mount(below.source)
    for _ in range(2):
        for seed in range(2):
            same(hfs.path / f"s{seed}", seed)
    for name in SIZES:
        assert not (hfs.path / "s0" / name).samefile(hfs.path / "s1" / name)
    hfs.umount()
    hfs.mount()
    for seed in range(2):
        same(hfs.path / f"s{seed}", seed)
    assert hfs.source_bytes() == 0


@pytest.mark.parametrize("where", ["", "s"])
@pytest.mark.parametrize("image", [ext4, pytest.param(erofs, marks=pytest.mark.long)])
def test_another_image_on_the_same_loop_device(
    tmp_path: Path, below: Below, hfs_mount: HfsMount, image: Callable[[Path, int], Path], where: str
) -> None:
    """Another image mounted later in the place of the first, on its device, inherits nothing of it: below SOURCE, and
    as SOURCE itself. The first one, mounted again, still has what was staged of it."""
    images = [image(tmp_path / f"{seed}.img", 2 * seed) for seed in range(2)]  # of one UUID, where they have one
    at = below.source / where
    hfs = None
    for turn in (0, 1, 0):
        below.mount(below.loop, images[turn], at)
        if hfs is None:
            hfs = hfs_mount(below.source)
        else:
            hfs.mount()
        same(hfs.path / where, 2 * turn)
        read_bytes = hfs.source_bytes()
        hfs.umount()
        below.umount(below.loop, at)
    assert read_bytes == 0


@pytest.mark.parametrize("image", [ext4, erofs])
def test_another_image_mounted_while_the_daemon_runs(
    tmp_path: Path, below: Below, hfs_mount: HfsMount, image: Callable[[Path, int], Path]
) -> None:
    """What is mounted below SOURCE is taken away, and another image is mounted there, on the same device: its files are
    seen within the time-to-live, and an open file keeps its version."""
    images = [image(tmp_path / f"{seed}.img", 2 * seed) for seed in range(2)]
    at = below.source / "s"
    below.mount(below.loop, images[0], at)
    device = at.stat().st_dev
    hfs = hfs_mount(below.source, "--ttl", "0")
    same(hfs.path / "s", 0)
    with (hfs.path / "s" / "large").open("rb") as early:
        must("umount", "-l", at)
        below.points.remove(at)
        with pytest.raises(FileNotFoundError):
            (hfs.path / "s" / "small").stat()
        below.loop.detach()
        below.mount(below.loop, images[1], at)
        assert at.stat().st_dev == device
        same(hfs.path / "s", 2)
        assert early.read() == pattern(1, 0, SIZES["large"])


def test_what_has_no_identity_of_its_own_is_not_inherited(tmp_path: Path, below: Below, hfs_mount: HfsMount) -> None:
    """Where nothing proves which file system it is (tmpfs), what is staged of it is used as long as the daemon lives,
    and by no later one; then its room is given back. Files of other file systems are found again."""
    write = {"s0": 0, "s1": 1, "plain": 2}
    for name, seed in write.items():
        if name != "plain":
            below.tmpfs(below.source / name)
        (below.source / name).mkdir(exist_ok=True)
        for file, data in contents(seed).items():
            (below.source / name / file).write_bytes(data)
    hfs = hfs_mount(below.source)
    total = sum(SIZES.values())
    for _ in range(2):
        for name, seed in write.items():
            same(hfs.path / name, seed)
    assert hfs.source_bytes() == 3 * total
    hfs.umount()
    hfs.mount()
    for name, seed in write.items():
        same(hfs.path / name, seed)
    assert hfs.source_bytes() == 2 * total
    status = wait_until(hfs, lambda status: status["staged"]["bytes"] == 3 * total)  # written behind its readers
    lasting = {entry["path"]: entry["lasting"] for entry in status["source"]["file_systems"]}
    assert lasting == {"": True, "s0": False, "s1": False}


def test_a_file_mounted_over_a_file(tmp_path: Path, below: Below, hfs_mount: HfsMount) -> None:
    """One file of another file system, bound over a name of the source, is that file."""
    other = tmp_path / "other"
    below.tmpfs(other)
    (below.source / "d").mkdir()
    for name, size in SIZES.items():
        (below.source / "d" / name).write_bytes(pattern(1, 0, size))
        (other / name).write_bytes(pattern(2, 0, size))
        must("mount", "--bind", other / name, below.source / "d" / name)
        below.points.append(below.source / "d" / name)
    hfs = hfs_mount(below.source, "--ttl", "0")
    for _ in range(2):
        same(hfs.path / "d", 1)
    for name in SIZES:
        unmount_lazily(below.source / "d" / name)
        below.points.remove(below.source / "d" / name)
    same(hfs.path / "d", 0)


def test_cache_commands_know_files_of_all_file_systems_below_a_path(
    tmp_path: Path, below: Below, hfs_mount: HfsMount
) -> None:
    """`hfs cache list`, `check` and `evict` of a path reach what is mounted below it, whoever has looked there yet."""
    for seed, loop in enumerate((below.loop, below.other)):
        below.mount(loop, ext4(tmp_path / f"{seed}.img", seed), below.source / f"s{seed}")
    hfs = hfs_mount(below.source)
    for seed in range(2):
        same(hfs.path / f"s{seed}", seed)
    hfs.umount()
    hfs.mount()
    check = hfs.cache_command("check", hfs.path, "--against-source")
    assert check.returncode == 0, check.stdout + check.stderr
    assert str(2 * len(SIZES)) in check.stdout
    assert hfs.cache_command("evict", hfs.path / "s1").returncode == 0
    assert hfs.status()["staged"]["files"] == len(SIZES)
    assert hfs.cache_command("evict", hfs.path).returncode == 0
    assert hfs.status()["staged"]["files"] == 0
