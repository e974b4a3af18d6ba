"""What overlays are told, when a newer one is worth it, and a cache disk that hangs meanwhile. In virtual time, without
threads."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio

from hfs.mountd.cache import Cache, StagedFile
from hfs.mountd.files import ChangedNames, Overlays
from hfs.mountd.kernel import XattrAnswers
from tests.support.faults import healthy_staging, stage
from tests.support.makers import ROOT

SOON_S = 10.0


class Answers(XattrAnswers):
    """How often those in C were told to wait no longer."""

    given_up = 0

    def give_up_looks(self) -> None:
        self.given_up += 1


class Told:
    def __init__(self, staging: Cache, overlays: Overlays, answers: Answers) -> None:
        self.staging = staging
        self.overlays = overlays
        self.answers = answers

    async def of(self, file: StagedFile, wanted: str = "metacopy", node_id: int | None = None) -> bytes | None:
        node: Any = FakeNode(file)
        node.id = node.id if node_id is None else node_id
        return await self.overlays.value(node, f"user.overlay.{wanted}", os.geteuid())

    @property
    def number(self) -> int:
        return self.staging.telling.number


class FakeNode:
    def __init__(self, file: StagedFile) -> None:
        self.id, self.version, self.path = file.version.inode, file.version, b"f"


@asynccontextmanager
async def telling(folder: Path) -> AsyncIterator[Told]:
    async with healthy_staging(folder) as staging, trio.open_nursery() as nursery:
        answers = Answers()
        changed = ChangedNames(staging.telling, answers)
        pages: Any = SimpleNamespace(let_go=trio.lowlevel.checkpoint)
        overlays = Overlays(staging, answers, changed, pages, lambda: None, nursery, is_wanted=True)
        await overlays.begin(ROOT, "", is_new=True)
        nursery.start_soon(overlays.run)
        yield Told(staging, overlays, answers)
        nursery.cancel_scope.cancel()


async def test_a_disk_that_hangs_costs_a_look_up_a_second_and_no_more(tmp_path: Path) -> None:
    async with telling(tmp_path) as told:
        files = [await stage(told.staging, seed) for seed in (1, 2)]
        assert await told.of(files[0]) == b""
        is_well, read = trio.Event(), told.staging.context.threads.read

        async def hangs(*call: Any) -> Any:
            await is_well.wait()
            return await read(*call)

        told.staging.context.threads.read = hangs  # type: ignore[method-assign]  # as a thread would
        told.staging.context.disk.open_cached = lambda _number: None  # type: ignore[method-assign]  # not in memory
        begun_s, given_up = trio.current_time(), told.answers.given_up
        for _ in range(3):
            assert await told.of(files[1]) is None
        assert 2.9 < trio.current_time() - begun_s < 3.1
        assert told.answers.given_up > given_up + 1, "nor do those wait whom C answers"
        is_well.set()
        assert await told.of(files[1]) == b""


async def test_nodes_that_have_lost_their_ids_meanwhile_are_not_mistaken_for_each_other(tmp_path: Path) -> None:
    """As those do that the kernel knows from before a crash, while an overlay asks for them."""
    async with telling(tmp_path) as told:
        files = [await stage(told.staging, seed) for seed in (1, 2)]
        places = [await told.of(file, "redirect") for file in files]
        assert [await told.of(file, node_id=0) for file in files] == [b"", b""]
        assert [await told.of(file, "redirect", 0) for file in files] == places
        assert places[0] != places[1]
