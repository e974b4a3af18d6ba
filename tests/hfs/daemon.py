"""A daemon without a mount for tests of the client side: the real control socket, with `FakeCommands` behind it.

`serving` runs it in a thread of its own, since the clients are blocking. Not a test module.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import trio

from hfs.mountd.control.connection import Report
from hfs.mountd.control.control import Commands, serve
from hfs.mountd.core.caller import Credentials
from hfs.mountd.core.errors import ConfigError
from hfs.mountd.core.limits import OpenFiles
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.hints.hints import Learners
from hfs.mountd.wire.protocol import PathFault, Progress, Result, Row, Rows, Touches


class FakeCommands:
    """Answers as a daemon with the files of `sizes` would; every path named b"bad..." fails."""

    def __init__(self, mountpoint: str) -> None:
        self.mountpoint = mountpoint
        self.calls: list[tuple[object, ...]] = []
        self.page_cache_looks = 0
        self.sizes = {b"a": 10, b"d/b": 20}
        self.opened: set[bytes] = set()
        self.on_warm: Callable[[], None] = lambda: None
        self.room = 0, 0
        """What a warm would take and what there is, if that is less."""
        self.seconds: float | None = None
        self.learners = Learners(8 << 20, Metrics(), trio.to_thread.run_sync)
        self.nodes: dict[str, object] = {"nodes": ["n0"], "hashes": [1], "weights": [1.0], "node": 0, "gone": []}
        self.nodes |= {"data": 0, "placement": "replicate", "chunk_bytes": 8 << 20}
        self.touches: list[Touches] = []
        """What a recording hears, all at once."""

    def all(self) -> Commands:
        """What `serve` is given: this does everything."""
        return Commands(self, self, self, self.record, self, self.learners)

    async def gather(self, reader: Credentials | None, *, page_cache: bool) -> dict[str, object]:
        self.page_cache_looks += page_cache
        await trio.lowlevel.checkpoint()
        return {
            "pid": 4711,
            "mountpoint": self.mountpoint,
            "source": {"path": "/lustre/[red]caf\udce9", "bytes": 123_456_789, "reads": 12},
            "reads": {"staged": 3, "source": 1},
            "read_bytes": {"staged": 3_000_000, "source": 1_000_000},
            "readers": [{"pid": 17 + i, "command": "python", "reads": 9, "bytes": 1_870_000 - i} for i in range(9)],
            "hints": await self.learners.status(reader),
            "staged": {"files": 2, "bytes": 30, "later": {"figure_s": 90.0}},
            "config": {"ttl": {"value": 60.0, "origin": "default"}},
            "counters": {"x": {"value": 1, "meaning": "y"}},
        }

    def directory(self) -> dict[str, object]:
        return self.nodes

    async def all_nodes(self) -> dict[str, object]:
        await trio.lowlevel.checkpoint()
        return {"nodes": [{"node": "a", "figures": {"staged": 5_000_000}}, {"node": "b", "error": "no answer"}]}

    async def record(self, report: Report) -> Result:
        self.calls.append(("record",))
        for part in self.touches:
            await report(part)
        await trio.sleep_forever()
        raise AssertionError

    async def warm(self, paths: Sequence[bytes], jobs: int, pin: bool, report: Report) -> Result:
        self.calls.append(("warm", list(paths), jobs, *(["pinned"] if pin else [])))
        self.on_warm()
        done = await self._each(paths, report)
        return msgspec.structs.replace(done, detail={"pinned_files": done.files}) if pin else done

    async def unpin(self, paths: Sequence[bytes]) -> Result:
        self.calls.append(("unpin", list(paths)))
        await trio.lowlevel.checkpoint()
        return Result(files=2, bytes=30)

    async def refresh(self, paths: Sequence[bytes]) -> Result:
        self.calls.append(("refresh", list(paths)))
        await trio.lowlevel.checkpoint()
        faults = [PathFault(path, "the index failed") for path in paths if path.startswith(b"bad")]
        return Result(files=7 * (len(paths) - len(faults)), failed=len(faults), faults=faults)

    async def estimate(self, paths: Sequence[bytes], report: Report) -> Result:
        return Result(
            detail={
                "missing_bytes": 3_000_000,
                "room_bytes": 4_000_000,
                "free_bytes": 5_000_000,
                "seconds": self.seconds,
            }
        )

    async def evict(self, paths: Sequence[bytes], everything: bool, older_than_s: float, report: Report) -> Result:
        self.calls.append(("evict", list(paths), everything, *([older_than_s] if older_than_s else [])))
        return await self._each(paths or [b""], report)

    async def check(self, paths: Sequence[bytes], against_source: bool, report: Report) -> Result:
        self.calls.append(("check", list(paths), against_source))
        if b"usage" in paths:
            raise ConfigError("usage: no such thing")
        return await self._each(paths or [b""], report)

    async def list(self, paths: Sequence[bytes], report: Report) -> Result:
        self.calls.append(("list", list(paths)))
        for path, size in self.sizes.items():
            await report(Rows([Row(path, size, size, complete=True, source_id="s", inode=1)]))
        await report(Rows([Row(b"", 100, 25, complete=False, source_id="s", inode=9)]))
        return Result(files=3)

    async def _each(self, paths: Sequence[bytes], report: Report) -> Result:
        files = size = failed = skipped = 0
        for path in paths:
            if path.startswith(b"bad"):
                failed += 1
                await report(Progress(files, size, failed, faults=[PathFault(path, "no such file")]))
                continue
            for name, bytes_ in self.sizes.items():
                if path in {b"", name}:
                    files += 1
                    size += bytes_
                    skipped += name in self.opened
            figures = Progress(files, size, failed, skipped, files_total=files, bytes_total=size)
            if self.room[0]:
                figures = msgspec.structs.replace(figures, room_bytes=self.room[0], free_bytes=self.room[1])
            await report(figures)
        return Result(files, size, failed, skipped)


@contextlib.contextmanager
def serving(path: Path, commands: FakeCommands) -> Iterator[None]:
    """The daemon's control socket at `path` until the block ends."""
    ready, token, scope = threading.Event(), [], trio.CancelScope()

    async def main() -> None:
        token.append(trio.lowlevel.current_trio_token())
        with scope:
            async with trio.open_nursery() as nursery, serve(str(path), commands.all(), nursery, OpenFiles(1024)):
                ready.set()
                await trio.sleep_forever()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    assert ready.wait(20)
    try:
        yield
    finally:
        token[0].run_sync_soon(scope.cancel)
        thread.join()


@contextlib.contextmanager
def speaking(path: Path, *words: bytes) -> Iterator[None]:
    """A daemon that takes a connection for each of `words`, says that and hangs up."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def talk() -> None:
            for said in words:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(said)

        thread = threading.Thread(target=talk)
        thread.start()
        yield
        thread.join()
