"""Traffic in virtual time: in all, and in the last minute."""

from __future__ import annotations

import pytest
import trio

from hfs.mountd.control.traffic import Traffic
from hfs.mountd.core.metrics import Metrics
from hfs.policies.traffic import ReadCounts


class Jobs:
    """Read a hundred bytes a second from the daemon; the source gives ten of them."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.began_s = trio.current_time()

    def counted(self) -> ReadCounts:
        seconds = round(trio.current_time() - self.began_s)
        self.metrics.add("source_read_bytes", 10 * seconds - self.metrics["source_read_bytes"])
        return ReadCounts(0, 0, 100 * seconds, 0, 0, 0)


@pytest.mark.slow
async def test_all_of_it_and_the_last_minute() -> None:
    metrics = Metrics()
    traffic = Traffic(metrics, Jobs(metrics).counted, lambda: 7, trio.current_time)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(traffic.run)
        await trio.sleep(3)
        told = traffic.gather()["traffic"]
        assert isinstance(told, dict)
        assert (told["read_bytes"], told["source_bytes"], told["minute"]["seconds"]) == (300, 30, 3.0)
        await trio.sleep(3 * 3600)
        told = traffic.gather()["traffic"]
        assert isinstance(told, dict)
        assert 55 <= told["minute"]["seconds"] <= 60
        assert told["minute"]["read_bytes"] == 100 * round(told["minute"]["seconds"])
        assert told["staged_bytes"] == 7
        nursery.cancel_scope.cancel()
