"""What a daemon does with signals once it has seen by itself that the mount is gone: it writes what it has fetched to
the cache, and what the keeper sends a moment later must not kill it.
"""

import os
import signal
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from hfs.mountd.daemon.ending import Ending
from hfs.mountd.wire.handover import Handover

SENT_BY_KEEPERS = (signal.SIGUSR2, signal.SIGHUP)


@pytest.fixture
def _handlers_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SENT_BY_KEEPERS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_handlers_as_before")
@pytest.mark.parametrize("number", SENT_BY_KEEPERS)
def test_a_signal_to_end_that_comes_too_late_is_no_end(number: signal.Signals) -> None:
    async def main() -> None:
        ending = Ending("/data", Handover(-1, b"", -1, (-1, -1), 0))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ending.wait, lambda: None, lambda: None)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        os.kill(os.getpid(), number)

    trio.run(main)  # still here
