"""pyfuse3's workers on a connection that never blocks: EAGAIN is no end of the session, and any other error is."""

from __future__ import annotations

import errno
import os

import pytest
import trio

from hfs.mountd.fuse import polling as fuse_polling
from hfs.mountd.fuse.polling import Polling


async def test_a_worker_goes_on_where_there_was_no_request() -> None:
    polling, calls = Polling(-1), list[int]()

    async def worker(nursery: object, left: int) -> None:
        calls.append(left)
        await trio.lowlevel.checkpoint()
        if len(calls) < 5:
            raise OSError(errno.EAGAIN, "fuse_session_receive_buf failed with Resource temporarily unavailable")
        if left:
            nursery.start_soon(worker, nursery, left - 1, name="another")  # type: ignore[attr-defined]  # as pyfuse3

    async with polling.open_nursery() as nursery:
        nursery.start_soon(worker, nursery, 2)
    assert (polling.missed, calls) == (4, [2, 2, 2, 2, 2, 1, 0])


async def test_any_other_error_ends_the_session() -> None:
    async def worker() -> None:
        raise OSError(errno.EIO, "fuse_session_receive_buf failed")

    with pytest.raises(ExceptionGroup) as caught:
        async with Polling(-1).open_nursery() as nursery:
            nursery.start_soon(worker)
    assert caught.group_contains(OSError, match="receive_buf", depth=None)


def test_what_pyfuse3_wants_of_trio_is_there() -> None:
    polling = Polling(-1)
    assert (polling.Lock, polling.lowlevel, polling.ClosedResourceError) == (
        trio.Lock,
        trio.lowlevel,
        trio.ClosedResourceError,
    )


def test_the_buffers_that_are_lost_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuse_polling, "_MOST", 3)
    read, write = os.pipe()
    try:
        os.set_blocking(read, False)
        polling = Polling(read)
        for _ in range(2):
            polling.miss()
        assert not os.get_blocking(read)
        polling.miss()
        assert os.get_blocking(read)
    finally:
        os.close(read)
        os.close(write)
