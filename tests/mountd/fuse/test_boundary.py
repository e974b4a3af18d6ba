"""Who waits as the daemon stops is answered with an error; not at all where another daemon takes the mount over."""

from __future__ import annotations

import errno

import pyfuse3
import pytest
import trio

from hfs.mountd.core.errors import VersionChanged
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.fuse.boundary import Boundary, Interrupts, RequestQuota, bounded, by_name, interruptible


class Asked:
    """Handlers that wait."""

    def __init__(self, boundary: Boundary) -> None:
        self.boundary = boundary

    @bounded
    @interruptible
    async def for_a_source(self, _node_id: int) -> None:
        await trio.sleep_forever()

    @bounded
    @by_name
    async def for_a_newer_overlay(self, _node_id: int) -> None:
        """It is told only then that the node is not what it was."""
        raise VersionChanged("f")

    @bounded
    async def in_two_tasks(self, _node_id: int) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(trio.sleep_forever)

    @bounded
    async def and_fails(self, _node_id: int) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError


@pytest.mark.parametrize("taken_over", [False, True])
@pytest.mark.parametrize("which", ["for_a_source", "for_a_newer_overlay", "in_two_tasks", "and_fails"])
async def test_what_waits_is_answered_or_left_to_the_next_daemon(which: str, taken_over: bool) -> None:
    async def shown(_node_id: int) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        interrupts = Interrupts(nursery, Metrics())
        boundary = Boundary(interrupts, RequestQuota(interrupts, Metrics()), Metrics(), shown)
        if taken_over:
            boundary.make_room()
        answers: list[int] = []
        with trio.CancelScope(deadline=trio.current_time() + 1) as serving:
            try:
                await getattr(Asked(boundary), which)(7)
            except pyfuse3.FUSEError as error:
                answers.append(error.errno)
        assert answers == ([] if taken_over else [errno.EIO])
        assert serving.cancelled_caught == taken_over
        assert not len(interrupts)
