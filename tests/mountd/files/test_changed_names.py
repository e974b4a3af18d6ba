"""Whoever is told ESTALE by way of an overlay is told so when a newer one stands there, or after a second."""

from pathlib import Path

import trio

from hfs.mountd.cache import Cache
from hfs.mountd.files import ChangedNames
from hfs.mountd.kernel import XattrAnswers
from tests.support.faults import healthy_staging, run
from tests.support.makers import ROOT, FakeMaker, begun


async def renewed(staging: Cache, maker: FakeMaker, after_s: float) -> None:
    before = staging.telling.number
    while maker.number() == before:
        await trio.sleep(0.01)
    await trio.sleep(after_s)
    maker.renew()


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


def test_a_refresh_is_over_when_the_new_generation_is_shown(tmp_path: Path) -> None:
    async def main() -> None:
        async with healthy_staging(tmp_path) as staging, trio.open_nursery() as nursery:
            await begun(staging)
            maker, changed = FakeMaker(tmp_path), ChangedNames(staging.telling, XattrAnswers())
            maker.renew()
            nursery.start_soon(renewed, staging, maker, 0.3)
            await changed.hold()
            assert changed.held
            begun_s = trio.current_time()
            nursery.start_soon(changed.wait)
            async with changed.changing(ROOT):
                assert changed.held, "who asks now would know it as it was"
            assert 0.3 <= trio.current_time() - begun_s < 0.5
            assert not changed.held

    run(main)


def test_where_no_maker_answers_it_is_over_after_a_second(tmp_path: Path) -> None:
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
            assert trio.current_time() - begun_s < 1.1
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
            nursery.start_soon(renewed, staging, maker, 0.1)
            async with trio.open_nursery() as asking:
                for node in (7, 8, 7):
                    asking.start_soon(changed.before_stale, node, lambda: forgotten.append(1))
            assert maker.number() <= before + 3
            assert forgotten
            count = maker.number()
            begun_s = trio.current_time()
            await changed.before_stale(7, lambda: forgotten.append(1))
            assert maker.number() == count, "whoever asks again works in an old generation"
            assert trio.current_time() == begun_s

    run(main)
