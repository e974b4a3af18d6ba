"""Watching a cache whose disk hangs: one thread waits for it, however often it is looked at."""

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from hfs.mountd.daemon import cache_watch
from hfs.mountd.daemon.cache_watch import CacheWatch

LOOKS = 5


@pytest.mark.parametrize("hangs", ["touch", "opening", "place"])
async def test_a_disk_that_hangs_takes_one_thread(
    hangs: str, monkeypatch: pytest.MonkeyPatch, real_clock: None
) -> None:
    go, begun = threading.Event(), list[str]()

    def do(what: str, *_: object) -> bool:
        if what == hangs:
            begun.append(what)
            assert go.wait(60)
        return False

    resting = hangs == "place"
    health = SimpleNamespace(off=not resting, resting=resting)
    cache = SimpleNamespace(context=SimpleNamespace(health=health), is_in_place=lambda: do("place"))
    basics = SimpleNamespace(config=SimpleNamespace(cache="/cache"))
    parts = cast(Any, (basics, None, SimpleNamespace(absent=None if resting else "lost"), cache, None))
    watch = CacheWatch(*parts)
    monkeypatch.setattr(cache_watch, "_touch", lambda path: do("touch"))
    monkeypatch.setattr(CacheWatch, "_look", lambda self: do("opening"))
    of_all = trio.to_thread.current_default_thread_limiter()
    with monkeypatch.context() as patch:
        patch.setattr(cache_watch, "_SILENT_S", 0.01 if hangs != "opening" else 60)
        patch.setattr(cache_watch, "_LOOK_S", 0.01)
        for number in range(LOOKS):
            if hangs == "opening" and number:
                patch.setattr(cache_watch, "_SILENT_S", 0.01)  # nor is it touched meanwhile
            assert not await watch._is_lost() if resting else await watch._why_not() is not None
        while not begun:
            await trio.lowlevel.checkpoint()
    assert (len(begun), of_all.borrowed_tokens) == (1, 0)
    go.set()
    assert await watch._is_lost() if resting else await watch._why_not() is None
