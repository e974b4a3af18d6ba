"""The Nth message or transfer between nodes fails, once and from then on, for N = 1, 2, ... until none is left.

Then: right bytes or none, within the time that a silent peer is waited for; and once nothing fails any more, all come
from their owners again. And for how long a node that hung is left alone.
"""

import logging
import math
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from hfs.mountd.peers.asking import REST_S, PeerAnswer, SilentPeers
from tests.support.peer_job import CHUNK, SILENCE_S, Job, job

ASKED = ((0, 1), (0, 2), (1, 2), (2, 0), (0, 1))
"""(who asks, whose chunk it is)"""
LONGEST_REST_S = 32 * REST_S


class NthFails:
    """Counts messages and transfers of a network, and has the Nth fail, or all from there."""

    def __init__(self, at: int, *, for_ever: bool) -> None:
        self.count = 0
        self._at, self._last = at, math.inf if for_ever else at

    def __call__(self) -> bool:
        self.count += 1
        return self._at <= self.count <= self._last

    @property
    def reached(self) -> bool:
        return self.count >= self._at


async def fetch_all(nodes: Job) -> list[PeerAnswer]:
    """What becomes of each; the bytes of what came are checked by `Job.fetch`."""
    found = []
    for asker, owner in ASKED:
        begin_s = trio.current_time()
        found.append(await nodes.fetch(nodes.path_at(owner, asker), bytearray(CHUNK), asker))
        assert trio.current_time() - begin_s < 2 * SILENCE_S, "its reader waits past the limit"
    return found


async def one_round(fails: NthFails) -> None:
    async with job(3) as nodes:
        nodes.network.fault = lambda _sender, _to, message: None if fails() else message
        nodes.network.transfer_fails = lambda _giver, _taker: fails()
        found = await fetch_all(nodes)
        assert found == [PeerAnswer.HIT] * len(ASKED) or fails.reached
        nodes.network.fault = lambda _sender, _to, message: message
        nodes.network.transfer_fails = lambda _giver, _taker: False
        nodes.network.release()
        await trio.sleep(LONGEST_REST_S)
        assert await fetch_all(nodes) == [PeerAnswer.HIT] * len(ASKED)


@pytest.fixture
def warnings_are_expected() -> Iterator[None]:
    """Each round warns of something else."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.usefixtures("warnings_are_expected")
@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "for ever"])
def test_any_message_or_transfer_may_fail(*, for_ever: bool) -> None:
    at = 1
    while True:
        fails = NthFails(at, for_ever=for_ever)
        try:
            trio.run(one_round, fails, clock=trio.testing.MockClock(autojump_threshold=0))
        except BaseException as error:
            error.add_note(f"operation {at} failed")
            raise
        if not fails.reached:
            break
        at += 1
    assert at > 10, "too few operations to prove much"


async def test_each_silence_in_a_row_is_followed_by_a_rest_twice_as_long_and_no_longer_than_half_an_hour() -> None:
    silent = SilentPeers()
    rests_s = []
    for _ in range(9):
        rest_s = silent.hangs(1)
        await trio.sleep(rest_s - 1)
        assert silent.rests(1)
        await trio.sleep(1)
        assert not silent.rests(1)
        rests_s.append(round(rest_s))
    assert rests_s == [REST_S * 2 ** min(n, 6) for n in range(9)]


async def test_one_silence_that_several_notice_counts_once() -> None:
    silent = SilentPeers()
    silent.hangs(1)
    await trio.sleep(REST_S / 3)
    assert round(silent.hangs(1)) == round(REST_S * 2 / 3)
    await trio.sleep(REST_S)
    assert round(silent.hangs(1)) == 2 * REST_S


async def test_an_answer_ends_the_row_and_a_loss_the_rest() -> None:
    silent = SilentPeers()
    silent.hangs(1)
    silent.answered(1)
    assert silent.rests(1), "it may have answered late"
    await trio.sleep(REST_S)
    assert round(silent.hangs(1)) == REST_S
    assert not silent.rests(2)
    silent.lost(1)
    assert not silent.rests(1)
