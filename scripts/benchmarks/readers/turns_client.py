"""What a user may say to a daemon, as much of it as is allowed: one case after the other, each announced on stdout.

Arguments: the control socket, how many names and samples the large cases have, how many learners join, and the first
words of the cases, if not all. Started as root it becomes nobody first, so that it is another user than the daemon's.
"""

import os
import socket
import sys
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from hfs.mountd.wire.hints import (
    PART_BYTES,
    At,
    LayoutFrame,
    LayoutPart,
    Order,
    Over,
    Waited,
    encode_layout,
    layout_digest,
)
from hfs.mountd.wire.protocol import (
    Cluster,
    Directory,
    Failure,
    Join,
    Message,
    Reply,
    Status,
    decode_reply,
    encode,
)

NOBODY = 65_534
_EXTENTS_A_NAME = 4


class Talk:
    """One connection."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._file = self._socket.makefile("rb")

    def say(self, *messages: Message | bytes) -> None:
        for message in messages:
            self._socket.sendall(message if isinstance(message, bytes) else encode(message))

    def heard(self) -> Reply:
        size = int.from_bytes(self._file.read(4), "big")
        return decode_reply(self._file.read(size))

    def close(self) -> None:
        self._file.close()
        self._socket.close()


class Cases:
    """The cases; what one needs of those before it is kept."""

    def __init__(self, path: str, count: int, learners: int) -> None:
        self._path = path
        self._count = count
        self._learners = learners
        self._random = np.random.default_rng(5)
        self._kept: list[Talk] = []

    def all(self) -> Iterator[tuple[str, Callable[[], None]]]:
        names, count = self._count, self._count
        numbers = b"\0".join(b"%d" % number for number in range(names))
        yield "a list of files, an order, its epochs", lambda: self._epochs(LayoutFrame(files=numbers), count)
        yield (
            "one name again and again",
            lambda: self._epochs(LayoutFrame(files=b"\0".join([b"target"] * names)), count),
        )
        yield "long names", lambda: self._epochs(LayoutFrame(files=b"\0".join([b"x" * 4000] * (names // 100))), 1000)
        yield "a layout of extents", lambda: self._epochs(self._extents(names), count)
        yield "samples of many extents", lambda: self._epochs(self._extents(names, samples=16), 16)
        yield "chunks of one file", lambda: self._epochs(self._chunks(names), count)
        yield "a layout that is none", self._nonsense
        yield "parts of a few bytes", self._small_parts
        yield "requests", self._requests
        yield "connections that say nothing", self._silent
        yield "many learners", lambda: self._crowd(4)
        yield "many learners at once, and their end", self._crowd_goes
        yield "many learners of one list", lambda: self._crowd(1)
        yield "many learners of one list at once, and their end", self._crowd_goes
        yield "many learners, each with a list", lambda: self._crowd(self._learners)
        yield "many learners, each with a list, at once, and their end", self._crowd_goes

    def _join(self, frame: LayoutFrame, **options: object) -> Talk:
        blob = encode_layout(frame)
        talk = Talk(self._path)
        talk.say(Join(layout_digest(blob), **options))  # type: ignore[arg-type]  # options of Join
        answer = talk.heard()
        assert not isinstance(answer, Failure), answer
        if getattr(answer, "detail", {}).get("layout") == "wanted":
            for start in range(0, len(blob), PART_BYTES):
                talk.say(LayoutPart(blob[start : start + PART_BYTES], start + PART_BYTES >= len(blob)))
            talk.heard()
        return talk

    def _epochs(self, frame: LayoutFrame, count: int) -> None:
        samples = (
            len(frame.starts) // 8 - 1 if frame.starts else len(frame.extents) // 4 or frame.files.count(b"\0") + 1
        )
        talk = self._join(frame)
        orders = [self._random.integers(0, samples, count), np.arange(count) % samples, np.zeros(count, np.int64)]
        for epoch, order in enumerate([*orders, orders[1]]):
            self._order(talk, order, epoch)
            talk.say(At(1), At(count // 2), At(count), Waited(epoch, 1.0, 1.0, 1.0, 5), At(1 << 62))
            self._order(talk, orders[1], epoch + 1, following=True)
            self._order(talk, orders[0], epoch + 1, following=True)
            self._order(talk, orders[1], epoch + 1, following=True)
            talk.say(Over(epoch))
        talk.say(Order(9, orders[0][:1000].tobytes(), last=False))
        talk.close()

    def _order(self, talk: Talk, indices: npt.NDArray[np.int64], epoch: int, *, following: bool = False) -> None:
        step = PART_BYTES // 8
        for start in range(0, len(indices), step):
            part, last = indices[start : start + step], start + step >= len(indices)
            talk.say(Order(epoch, part.tobytes(), start, last, following))
        talk.heard()

    @staticmethod
    def _extents(count: int, samples: int = 0) -> LayoutFrame:
        """Extents of 3 000 bytes, each over a chunk's border now and then."""
        files = max(1, count // _EXTENTS_A_NAME)
        where = np.arange(count, dtype="<i4") // _EXTENTS_A_NAME % files
        return LayoutFrame(
            files=b"\0".join(b"%d" % number for number in range(files)),
            extents=where.astype("<i4").tobytes(),
            offsets=(np.arange(count, dtype="<i8") % _EXTENTS_A_NAME * 3000).tobytes(),
            sizes=np.full(count, 3000, "<i8").tobytes(),
            starts=np.linspace(0, count, samples + 1).astype("<i8").tobytes() if samples else b"",
            file_sizes=np.full(files, 12_000, "<i8").tobytes(),
        )

    @staticmethod
    def _chunks(count: int) -> LayoutFrame:
        """A file of so many chunks, each a sample."""
        chunk = 8 << 20
        return LayoutFrame(
            files=b"target",
            extents=np.zeros(count, "<i4").tobytes(),
            offsets=(np.arange(count, dtype="<i8") * chunk).tobytes(),
            sizes=np.full(count, chunk, "<i8").tobytes(),
            file_sizes=np.array([count * chunk], "<i8").tobytes(),
        )

    def _nonsense(self) -> None:
        blob = b"\x81\xa1x\xdd" + (self._count).to_bytes(4, "big") + b"\xc0" * self._count
        talk = Talk(self._path)
        talk.say(Join(layout_digest(blob)))
        talk.heard()
        for start in range(0, len(blob), PART_BYTES):
            talk.say(LayoutPart(blob[start : start + PART_BYTES], start + PART_BYTES >= len(blob)))
        talk.heard()
        # A field that nobody knows, with as many elements as a frame may have.
        count = 2 * PART_BYTES - 64
        body = b"\x83\xa4type\xa2at\xa8position\x01\xa1x\xdd" + count.to_bytes(4, "big") + b"\xc0" * count
        talk.say(len(body).to_bytes(4, "big") + body)
        talk.say((4 * PART_BYTES).to_bytes(4, "big") + bytes(4 * PART_BYTES))
        talk.heard()
        talk.close()

    def _small_parts(self) -> None:
        talk = self._join(LayoutFrame(files=b"a\0b"))
        for start in range(self._count // 100):
            talk.say(Order(0, bytes(8), start, last=False))
        talk.close()

    def _requests(self) -> None:
        for _ in range(3):
            for request in (Status(page_cache=False), Directory(), Cluster(), Join("x" * 60_000)):
                talk = Talk(self._path)
                talk.say(request)
                talk.heard()
                talk.close()

    def _silent(self) -> None:
        talks = [Talk(self._path) for _ in range(64)]
        for talk in talks:
            talk.say(b"\0")
        for talk in talks:
            talk.close()

    def _crowd(self, lists: int) -> None:
        """Each has an order of its own, of one of so many lists, and has said all that it may."""
        files = max(1, self._count // self._learners)
        for rank in range(self._learners):
            names = b"\0".join(b"%d/%d" % (rank % lists, number) for number in range(files))
            talk = self._join(LayoutFrame(files=names), name="x" * 256, rank=rank, world=self._learners)
            self._order(talk, np.arange(files), 0)
            talk.say(*[Waited(epoch, 1.0, 1.0, 1.0, 5) for epoch in range(100)])
            self._kept.append(talk)
        self._requests()

    def _crowd_goes(self) -> None:
        files = max(1, self._count // self._learners)
        for talk in self._kept:
            talk.say(At(files // 2), At(files), Over(0))
        for talk in self._kept:
            talk.close()
        self._kept.clear()
        self._requests()


def main(path: str, count: int, learners: int, only: tuple[str, ...]) -> None:
    cases = Cases(path, count, learners)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    for name, case in cases.all():
        if not only or name.startswith(only):
            print(name, flush=True)
            case()
    print(flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), tuple(sys.argv[4:]))
