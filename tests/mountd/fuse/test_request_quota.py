"""How many requests of one user are served at once, and what becomes of those that are put off."""

from __future__ import annotations

import errno
from collections import deque

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from hfs.mountd.core.metrics import Metrics
from hfs.mountd.fuse import boundary
from hfs.mountd.fuse.boundary import Interrupts, RequestQuota

MOST = 12
ONE, ANOTHER, ROOT = 1001, 1002, 0
THREAD = 4711


class Extension:
    """Stands for the extension: what goes on, what was given up with which errno."""

    def __init__(self) -> None:
        self.gone_on: deque[int] = deque()
        self.given_up: dict[int, int] = {}

    def go_on(self, which: int) -> None:
        self.gone_on.append(which)

    def give_up(self, which: int, number: int) -> None:
        self.given_up[which] = number


@pytest.fixture
def extension(monkeypatch: pytest.MonkeyPatch) -> Extension:
    made = Extension()
    monkeypatch.setattr(boundary, "fastpath", made)
    monkeypatch.setattr(boundary, "MAX_REQUESTS", MOST)
    return made


class Users:
    """Those who ask: each request is served, or put off."""

    def __init__(self, nursery: trio.Nursery, *, dying: bool = False) -> None:
        self.interrupts = Interrupts(nursery, Metrics(), lambda _thread: dying)
        self.quota = RequestQuota(self.interrupts, Metrics())
        self.numbers = 0

    def ask(self, uid: int, count: int = 1) -> list[int]:
        """So many requests; those that are put off."""
        put_off = []
        for _ in range(count):
            self.numbers += 1
            if self.quota.puts_off(self.numbers, uid, self.numbers, THREAD):
                put_off.append(self.numbers)
            else:
                self.quota.begin(uid)
        return put_off


async def test_a_user_has_half_and_another_half_of_the_rest(extension: Extension) -> None:
    async with trio.open_nursery() as nursery:
        users = Users(nursery)
        assert len(users.ask(ONE, 50)) == 50 - MOST // 2
        assert len(users.ask(ANOTHER, 50)) == 50 - MOST // 4
        assert not extension.gone_on


async def test_what_was_put_off_goes_on_in_its_order_and_newer_ones_stay_behind_it(extension: Extension) -> None:
    async with trio.open_nursery() as nursery:
        users = Users(nursery)
        put_off = users.ask(ONE, MOST)
        users.quota.end(ONE)
        assert list(extension.gone_on) == put_off[:2], "so that the room is used up"
        assert users.ask(ONE), "it would overtake those that wait"


async def test_what_has_ended_makes_room_for_all(extension: Extension) -> None:
    async with trio.open_nursery() as nursery:
        users = Users(nursery)
        for uid in (ONE, ANOTHER, ONE):
            assert users.ask(uid, MOST // 2) == []
            for _ in range(MOST // 2):
                users.quota.end(uid)


async def test_only_so_many_are_put_off(extension: Extension, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundary, "_MOST_PUT_OFF", 3)
    async with trio.open_nursery() as nursery:
        users = Users(nursery)
        assert len(users.ask(ONE, MOST)) == 3, "more wait as others do"
        for _ in range(MOST - 3):
            users.quota.end(ONE)
        assert len(extension.gone_on) == 3
        assert len(users.ask(ONE, 2 * MOST)) == 3


async def test_who_is_killed_while_put_off_is_let_go(extension: Extension) -> None:
    async with trio.open_nursery() as nursery:
        users = Users(nursery, dying=True)
        first, second, *_ = users.ask(ONE, MOST)
        users.interrupts.interrupted(second)
        assert extension.given_up == {second: errno.EINTR}
        users.quota.end(ONE)
        assert extension.gone_on[0] == first
        assert second not in extension.gone_on


async def test_a_signal_that_came_before_is_looked_at(extension: Extension) -> None:
    async with trio.open_nursery() as nursery:
        users = Users(nursery, dying=True)
        users.ask(ONE, MOST // 2)
        users.interrupts.interrupted(users.numbers + 1)
        (put_off,) = users.ask(ONE)
        await trio.sleep(1)
    assert extension.given_up == {put_off: errno.EINTR}


async def test_at_the_end_all_hear_of_it(extension: Extension) -> None:
    async with trio.open_nursery() as nursery:
        users = Users(nursery)
        put_off = users.ask(ONE, MOST)
        users.quota.stop()
        for _ in range(MOST - len(put_off)):  # what was served ends with the daemon, and nobody begins more
            users.quota.end(ONE)
        users.quota.give_up_all()
    assert extension.given_up == dict.fromkeys(put_off, errno.EIO)


@given(st.lists(st.tuples(st.sampled_from(["ask", "end", "begin"]), st.sampled_from([ROOT, ONE, ANOTHER]))))
def test_nothing_is_put_off_for_ever(acts: list[tuple[str, int]]) -> None:
    """Whatever users do: once all that is served has ended, nothing is left."""

    async def main() -> None:
        extension = Extension()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(boundary, "fastpath", extension)
            patch.setattr(boundary, "MAX_REQUESTS", MOST)
            async with trio.open_nursery() as nursery:
                users = Users(nursery)
                served: deque[int] = deque()
                of: dict[int, int] = {}
                for act, uid in acts:
                    if act == "ask" and len(served) < MOST:
                        put_off = uid != ROOT and users.ask(uid)
                        if put_off:
                            of[users.numbers] = uid
                        else:
                            if uid == ROOT:
                                users.quota.begin(uid)
                            served.append(uid)
                    elif act == "end" and served:
                        users.quota.end(served.popleft())
                    elif act == "begin" and extension.gone_on and len(served) < MOST:
                        served.append(of.pop(extension.gone_on.popleft()))
                        users.quota.begin(served[-1])
                while served or extension.gone_on:
                    while extension.gone_on and len(served) < MOST:
                        served.append(of.pop(extension.gone_on.popleft()))
                        users.quota.begin(served[-1])
                    users.quota.end(served.popleft())
                assert not of
                assert not len(users.interrupts)

    trio.run(main)
