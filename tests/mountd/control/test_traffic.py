"""Traffic in virtual time: the last minute, the last hour and the last day."""

from __future__ import annotations

import pytest
import trio

from hfs.mountd.control.traffic import LOOK_S, Traffic
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
async def test_the_last_minute_and_the_last_day() -> None:
    metrics = Metrics()
    traffic = Traffic(metrics, Jobs(metrics).counted, lambda: 7, trio.current_time)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(traffic.run)
        await trio.sleep(3)
        told = traffic.gather()["traffic"]
        assert isinstance(told, dict)
        assert (told["read_bytes"], told["source_bytes"], told["minute"]["seconds"]) == (300, 30, 3.0)
        await trio.sleep(30 * 3600)
        told = traffic.gather()["traffic"]
        assert isinstance(told, dict)
        assert 55 <= told["minute"]["seconds"] <= 60
        assert told["minute"]["read_bytes"] == 100 * round(told["minute"]["seconds"])
        assert told["staged_bytes"] == 7
        history = traffic.history()
        nursery.cancel_scope.cancel()
    ago_s = [look["ago_s"] for look in history]
    assert ago_s == sorted(ago_s, reverse=True)
    assert 23 * 3600 < ago_s[0] < 26 * 3600
    assert len(history) < 3000
    assert ago_s[-1] == 0
    assert max(a - b for a, b in zip(ago_s[-700:-1], ago_s[-699:], strict=True)) <= LOOK_S
