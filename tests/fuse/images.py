"""File systems in image files, for tests of what is mounted below SOURCE: made here, mounted through loop devices.

Made so that nothing but their bytes tells two of them apart: equal inode numbers, sizes and times, as images that were
packed by one script have them as a rule. ext4 comes from mke2fs and debugfs; EROFS, which has no UUID here, is written
by hand. A loop device is one of our own: nobody else is given its number between two images.
"""

import contextlib
import fcntl
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.fuse.harness import must, run

TIME_S = 1_600_000_000

_BLOCK_BYTES = 4096
_LOOP_CTL_ADD, _LOOP_CTL_REMOVE = 0x4C80, 0x4C81
_FIRST_OWN_LOOP = 1 << 10
_OWN_LOOPS = 1 << 15


def why_no_images() -> str | None:
    """The reason why no image can be mounted here, or None."""
    if os.geteuid() != 0:
        return "only root may mount an image"
    if not os.path.exists("/dev/loop-control"):
        return "there are no loop devices (modprobe loop)"
    if shutil.which("mke2fs") is None or shutil.which("debugfs") is None:
        return "mke2fs and debugfs are missing (Debian package e2fsprogs)"
    return None


def ext4_image(path: Path, uuid: str, files: Mapping[str, bytes], *, root_s: int = TIME_S) -> Path:
    """An ext4 image with `files`, all of one time to the nanosecond, in a root of the time `root_s`."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        size = sum(len(data) for data in files.values()) + (2 << 20)
        must("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-U", uuid, "-d", folder, path, f"{size >> 10}k")
    orders = []
    for name in ("/", *files):
        for stamp in ("atime", "ctime", "mtime", "crtime"):
            orders.append(f"set_inode_field {name} {stamp} @{TIME_S if name in files else root_s}")
            orders.append(f"set_inode_field {name} {stamp}_extra 0")
    commands = path.with_suffix(".debugfs")
    commands.write_text("\n".join(orders))
    must("debugfs", "-w", "-f", commands, path)
    commands.unlink()
    return path


def erofs_image(path: Path, files: Mapping[str, bytes]) -> Path:
    """An EROFS image without a UUID: of two whose files have equal sizes nothing differs but the files' bytes."""
    names = [b".", b"..", *sorted(os.fsencode(name) for name in files)]
    inodes, data = bytearray(64), bytearray()  # inode numbers of 32 bytes each; the root is number 2
    directory_block = 2

    def inode(mode: int, size: int, block: int) -> None:
        inodes.extend(struct.pack("<HHHHIIIIHHI", 0, 0, mode, 1, size, 0, block, len(inodes) // 32, 0, 0, 0))

    entries, text = bytearray(), b"".join(names)
    inode(0o040755, 12 * len(names) + len(text), directory_block)
    block = directory_block + 1
    for number, name in enumerate(names):
        where = 12 * len(names) + sum(len(before) for before in names[:number])
        is_file = number >= 2
        entries.extend(struct.pack("<QHBB", number + 1 if is_file else 2, where, 1 if is_file else 2, 0))
        if is_file:
            content = files[os.fsdecode(name)]
            inode(0o100644, len(content), block)
            data.extend(content.ljust(-(-len(content) // _BLOCK_BYTES) * _BLOCK_BYTES, b"\0"))
            block += -(-len(content) // _BLOCK_BYTES)
    head = struct.pack("<IIIBBHQQIIII", 0xE0F5E1E2, 0, 0, 12, 0, 2, len(files) + 1, TIME_S, 0, block, 1, 0)
    blocks = (bytes(1024) + head, bytes(inodes), bytes(entries) + text)
    path.write_bytes(b"".join(part.ljust(_BLOCK_BYTES, b"\0") for part in blocks) + data)
    return path


class Loop:
    """One loop device, for one image after the other."""

    def __init__(self) -> None:
        self.number = -1
        with open("/dev/loop-control", "rb") as control:
            number = _FIRST_OWN_LOOP + os.getpid() % _OWN_LOOPS
            while self.number < 0:
                with contextlib.suppress(FileExistsError):
                    self.number = fcntl.ioctl(control, _LOOP_CTL_ADD, number)
                number += 1
        self.path = Path(f"/dev/loop{self.number}")
        if not self.path.exists():
            os.mknod(self.path, 0o060600, os.makedev(7, self.number))  # no devtmpfs: nobody else makes it

    def mount(self, image: Path, at: Path) -> None:
        """Mount `image`, read-only, at `at`."""
        at.mkdir(exist_ok=True)
        must("losetup", "-r", self.path, image)
        must("mount", "-o", "ro", self.path, at)

    def umount(self, at: Path) -> None:
        """Take the mount away, and the image, also where somebody still holds a directory of it open."""
        must("umount", "-l", at)
        self.detach()

    def detach(self) -> None:
        """Take the image away, which is not mounted any more."""
        must("losetup", "-d", self.path)
        while run("losetup", self.path).returncode == 0:
            pass  # until who held it has let go

    def close(self) -> None:
        """Give the device back, whatever its state."""
        run("losetup", "-d", self.path)
        with open("/dev/loop-control", "rb") as control, contextlib.suppress(OSError):
            fcntl.ioctl(control, _LOOP_CTL_REMOVE, self.number)


@contextlib.contextmanager
def loops(count: int) -> Iterator[list[Loop]]:
    """So many loop devices of our own."""
    made: list[Loop] = []
    try:
        for _ in range(count):
            made.append(Loop())
        yield made
    finally:
        for loop in made:
            loop.close()
