"""Whoever is told ESTALE by way of an overlay is told so when a newer one stands there, or after some seconds."""

from pathlib import Path

import trio

from hfs.mountd.files import ChangedNames
from hfs.mountd.files.changed_names import SHOWN_S
from hfs.mountd.kernel import XattrAnswers
from tests.support.faults import healthy_staging, run
from tests.support.makers import ROOT, FakeMaker, begun


async def renew(maker: FakeMaker, after_s: float) -> None:
    """Each time, so long after the number was moved. Never returns."""
    shown = maker.number()
    while True:
        while maker.number() == shown:
            await trio.sleep(0.01)
        await trio.sleep(after_s)
        shown = maker.number()
        maker.tell(shown, shown)


def test_without_makers_nobody_waits(tmp_path: Path) -> None:
    async def main() -> None:
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

    run(main)


def test_the_kernel_is_told_between_two_generations_that_are_shown(tmp_path: Path) -> None:
    async def main() -> None:
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
            async with changed.changing(ROOT):
                assert changed.held, "who asks now would know it as it was"
                assert maker.number() == number + 1
                assert staging.telling.makers.shown == number + 1
            assert staging.telling.makers.shown == number + 2, "the first may have seen what is not so any more"
            assert trio.current_time() - begun_s >= 0.2
            assert not changed.held
            nursery.cancel_scope.cancel()

    run(main)


def test_where_no_maker_answers_it_is_over_after_some_seconds(tmp_path: Path) -> None:
    async def main() -> None:
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

    run(main)


def test_each_node_is_told_once_that_it_is_stale(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging, trio.open_nursery() as nursery:
            await begun(staging)
            maker, changed, forgotten = FakeMaker(tmp_path), ChangedNames(staging.telling, XattrAnswers()), list[int]()
            maker.renew()
            before = maker.number()
            nursery.start_soon(renew, maker, 0.02)
            async with trio.open_nursery() as asking:
                for node in (7, 8, 7):
                    asking.start_soon(changed.before_stale, node, lambda: forgotten.append(1))
            assert maker.number() <= before + 2 * 3
            assert forgotten
            count = maker.number()
            begun_s = trio.current_time()
            await changed.before_stale(7, lambda: forgotten.append(1))
            assert maker.number() == count, "whoever asks again works in an old generation"
            assert trio.current_time() == begun_s
            nursery.cancel_scope.cancel()

    run(main)
