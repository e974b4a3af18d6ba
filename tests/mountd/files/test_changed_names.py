"""Whoever is told ESTALE by way of an overlay is told so when a newer one stands there, or after some seconds."""

import stat
from pathlib import Path
from typing import Any

import pytest
import trio

from hfs.mountd.files import ChangedNames, overlays
from hfs.mountd.files.overlays import SHOWN_S
from hfs.mountd.kernel import XattrAnswers
from tests.support.faults import healthy_staging
from tests.support.makers import ROOT, FakeMaker, begun


class Answers(XattrAnswers):
    """Stands for the data plane."""

    def __init__(self) -> None:
        self.held: list[bool] = []

    def hold_overlays(self, on: bool) -> None:
        if [on] != self.held[-1:]:
            self.held.append(on)


async def change(changed: ChangedNames) -> None:
    async with trio.open_nursery() as nursery, changed.changing():
        nursery.start_soon(changed.wait)
        assert changed.held


async def renew(maker: FakeMaker, after_s: float) -> None:
    """Each time, so long after the number was moved. Never returns."""
    shown = maker.number()
    while True:
        while maker.number() == shown:
            await trio.sleep(0.01)
        await trio.sleep(after_s)
        shown = maker.number()
        maker.tell(shown, shown)


async def test_without_makers_nobody_waits(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        changed, forgotten = ChangedNames(staging.telling, XattrAnswers()), list[int]()
        for _ in range(2):
            begun_s = trio.current_time()
            await changed.hold()
            assert not changed.held
            await changed.before_stale(7, lambda: forgotten.append(7))
            async with changed.changing(ROOT):
                pass
            assert trio.current_time() == begun_s
            await begun(staging)
        assert not forgotten


async def test_the_kernel_is_told_between_two_generations_that_are_shown(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging, trio.open_nursery() as nursery:
        await begun(staging)
        maker, changed = FakeMaker(tmp_path), ChangedNames(staging.telling, XattrAnswers())
        maker.renew()
        number = maker.number()
        nursery.start_soon(renew, maker, 0.1)
        await changed.hold()
        assert changed.held
        begun_s = trio.current_time()
        nursery.start_soon(changed.wait)
        async with changed.changing(ROOT._replace(mode=0o40711)):
            assert changed.held, "who asks now would know it as it was"
            assert maker.number() == number + 1
            assert staging.telling.makers.shown == number + 1
        assert staging.telling.makers.shown == number + 2, "the first may have seen what is not so any more"
        assert 0.2 <= trio.current_time() - begun_s < 0.4
        assert not changed.held
        assert stat.S_IMODE(Path(staging.telling.generation.top).stat().st_mode) == 0o711
        nursery.cancel_scope.cancel()


async def test_where_no_maker_answers_it_is_over_after_some_seconds(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        await begun(staging)
        maker, changed = FakeMaker(tmp_path), ChangedNames(staging.telling, XattrAnswers())
        maker.renew()
        begun_s = trio.current_time()
        await changed.hold()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(changed.wait)
            async with changed.changing(ROOT):
                pass
        assert trio.current_time() - begun_s < SHOWN_S + 0.1
        assert not changed.held
        maker.kill()
        begun_s = trio.current_time()
        async with changed.changing(ROOT):
            pass
        assert trio.current_time() - begun_s < 0.2, "who was killed shows nothing"


async def test_each_node_is_told_once_that_it_is_stale(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging, trio.open_nursery() as nursery:
        await begun(staging)
        maker, changed, forgotten = FakeMaker(tmp_path), ChangedNames(staging.telling, XattrAnswers()), list[int]()
        maker.renew()
        before = maker.number()

        def forget() -> None:
            forgotten.append(staging.telling.makers.shown or 0)

        nursery.start_soon(renew, maker, 0.02)
        async with trio.open_nursery() as asking:
            for node in (7, 8, 7):
                asking.start_soon(changed.before_stale, node, forget)
        assert maker.number() <= before + 2 * 3
        assert forgotten
        assert all(shown > before for shown in forgotten), "the kernel would come by an old one"
        count = maker.number()
        begun_s = trio.current_time()
        await changed.before_stale(7, forget)
        assert maker.number() == count, "whoever asks again works in an old generation"
        assert trio.current_time() == begun_s
        nursery.cancel_scope.cancel()


async def test_of_nodes_that_were_stale_not_all_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlays, "_MOST_STALE", 2)
    async with healthy_staging(tmp_path) as staging:
        await begun(staging)
        FakeMaker(tmp_path).renew()
        changed = ChangedNames(staging.telling, XattrAnswers())
        for node in range(5):
            await changed.before_stale(node, lambda: None)
        assert list(changed._stale) == [3, 4]


async def test_who_comes_while_names_change_is_answered_with_all_others(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        await begun(staging)
        maker, changed, forgotten = FakeMaker(tmp_path), ChangedNames(staging.telling, XattrAnswers()), list[int]()
        maker.renew()
        begun_s, number = trio.current_time(), maker.number()
        await changed.hold(0.5)
        await changed.before_stale(9, lambda: forgotten.append(9))
        assert (trio.current_time(), maker.number(), forgotten) == (begun_s + 0.5, number, [])


async def test_between_two_changes_whoever_was_told_of_the_first_walks_the_path(tmp_path: Path) -> None:
    answers = Answers()
    async with healthy_staging(tmp_path) as staging, trio.open_nursery() as nursery:
        await begun(staging)
        maker, changed = FakeMaker(tmp_path), ChangedNames(staging.telling, answers)
        maker.renew()
        nursery.start_soon(renew, maker, 0.0)
        async with changed.changing():
            assert answers.held == [True], "nobody is answered without us"
        assert answers.held == [True, False]
        let_go_s, number = trio.current_time(), maker.number()
        async with trio.open_nursery() as both:
            for _ in range(2):
                both.start_soon(change, changed)
            await trio.sleep(0.09)
            assert maker.number() == number
        assert trio.current_time() > let_go_s + 0.19
        assert not changed.held
        nursery.cancel_scope.cancel()


async def test_a_slow_disk_lets_nobody_know_a_file_as_it_was(tmp_path: Path) -> None:
    async with healthy_staging(tmp_path) as staging:
        await begun(staging)
        maker, changed = FakeMaker(tmp_path), ChangedNames(staging.telling, XattrAnswers())
        maker.renew()
        move = staging.telling.generation.move

        async def slow(*how: Any, **more: Any) -> None:
            await trio.sleep(2 * SHOWN_S + 1)
            await move(*how, **more)
            maker.renew()

        staging.telling.generation.move = slow  # type: ignore[method-assign]  # as a disk that hangs for a while
        async with changed.changing():
            assert changed.held
