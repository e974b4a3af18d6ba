"""Commands that answer as they are told to, for the control socket, and how a test of it runs."""

from collections.abc import Awaitable, Callable, Sequence

import trio

from hfs.mountd.control.connection import Report
from hfs.mountd.control.control import Commands
from hfs.mountd.core.caller import Credentials
from hfs.mountd.wire.protocol import Failure, Join, Result


class NoLearners:
    def join(self, join: Join, pid: int, reader: Credentials | None = None) -> tuple[None, Failure]:
        return None, Failure("no learners here", 2)


class FakeCommands:
    """Answers status; the other commands do what the test gives as `work`."""

    def __init__(self, work: Callable[[Report], Awaitable[Result]] | None = None) -> None:
        self.calls: list[tuple[object, ...]] = []
        self._work = work
        self.learners = NoLearners()

    async def _do(self, *call: object, report: Report) -> Result:
        self.calls.append(call)
        return await self._work(report) if self._work else Result()

    def all(self) -> Commands:
        """What `serve` is given: this does everything."""
        return Commands(self, self, self, self.record, self, self.learners)

    async def gather(self, reader: Credentials | None, *, page_cache: bool) -> dict[str, object]:
        self.calls.append(("status",) if reader is None else ("status", reader))
        await trio.lowlevel.checkpoint()
        return {"pid": 5, "path": "caf\udce9"}

    def directory(self) -> dict[str, object]:
        return {"nodes": ["a", "b"]}

    async def all_nodes(self) -> dict[str, object]:
        await trio.lowlevel.checkpoint()
        return {"nodes": []}

    async def warm(self, paths: Sequence[bytes], jobs: int, pin: bool, report: Report) -> Result:
        return await self._do("warm", list(paths), jobs, *(["pinned"] if pin else []), report=report)

    async def estimate(self, paths: Sequence[bytes], report: Report) -> Result:
        return Result(detail={"missing_bytes": len(paths), "room_bytes": 0, "free_bytes": 0})

    async def evict(self, paths: Sequence[bytes], everything: bool, older_than_s: float, report: Report) -> Result:
        return await self._do(
            "evict", list(paths), everything, *([older_than_s] if older_than_s else []), report=report
        )

    async def unpin(self, paths: Sequence[bytes]) -> Result:
        self.calls.append(("unpin", list(paths)))
        await trio.lowlevel.checkpoint()
        return Result()

    async def refresh(self, paths: Sequence[bytes]) -> Result:
        self.calls.append(("refresh", list(paths)))
        await trio.lowlevel.checkpoint()
        return Result(files=len(paths))

    async def check(self, paths: Sequence[bytes], against_source: bool, report: Report) -> Result:
        return await self._do("check", list(paths), against_source, report=report)

    async def list(self, paths: Sequence[bytes], report: Report) -> Result:
        return await self._do("list", list(paths), report=report)

    async def record(self, report: Report) -> Result:
        return await self._do("record", report=report)
