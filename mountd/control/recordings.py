"""What `hfs-hint record` asks of the running daemon: to tell what is read, for as long as the client listens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from hfs.mountd.control.connection import Report
from hfs.mountd.files import Recorder
from hfs.mountd.wire.protocol import Result, Touches


class Recordings:
    """One for each client that listens."""

    def __init__(self, recorder: Recorder, recall_all: Callable[[], Awaitable[None]]) -> None:
        """`recall_all`: what is read and opened without us comes to us again."""
        self._recorder = recorder
        self._recall_all = recall_all

    async def record(self, report: Report) -> Result:
        """Tell what is read, until the client goes."""
        recording = self._recorder.start()
        try:
            await self._recall_all()
            await report(Touches([]))  # it has begun
            while True:
                touches, lost = await recording.take()
                await report(Touches(touches, lost))
        finally:
            self._recorder.stop(recording)
