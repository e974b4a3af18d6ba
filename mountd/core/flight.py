"""Single-flight: many waiters, one fetch.

The first caller of a key starts the fetch; everybody who comes while it runs waits for the same result. The fetch
belongs to the daemon's nursery, not to the first waiter: a waiter that is cancelled leaves and the fetch goes on, and a
fetch that is cancelled (the daemon stops) gives its waiters an error, never empty bytes. The entry is registered before
the first checkpoint, so two callers cannot both start.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import trio

from hfs.mountd.core.background import start_guarded
from hfs.mountd.core.errors import SourceError

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class _Entry(Generic[Value]):
    __slots__ = ("done", "error", "value")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.value: Value | None = None
        self.error: BaseException | None = SourceError(errno.EIO, "the daemon is stopping")
        """Unless the fetch has come to its end: so waiters never get nothing for bytes, whatever ended it."""


class SingleFlight(Generic[Key, Value]):
    """Fetches by key. One fetch a key at a time; results are not kept once the waiters have them."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._entries: dict[Key, _Entry[Value]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    async def run(self, key: Key, fetch: Callable[[], Awaitable[Value]]) -> Value:
        """The result of the fetch under way for `key`, or of `fetch`, started now. Raises what the fetch raised."""
        if key not in self._entries:
            entry = self._entries[key] = _Entry()
            start_guarded(self._nursery, "fetch", self._fly, key, entry, fetch)
        return await self.wait(key)

    async def wait(self, key: Key) -> Value:
        """The result of the fetch under way for `key`. Raises KeyError if there is none."""
        entry = self._entries[key]
        await entry.done.wait()
        if entry.error is not None:
            # One exception object, several tasks: each starts with a clean traceback or they would grow together.
            raise entry.error.with_traceback(None)
        return entry.value  # type: ignore[return-value]  # set, since there is no error; None is a legal Value

    async def _fly(self, key: Key, entry: _Entry[Value], fetch: Callable[[], Awaitable[Value]]) -> None:
        try:
            entry.value = await fetch()
            entry.error = None
        except Exception as error:  # noqa: BLE001 - every failure belongs to the waiters, whatever it is
            entry.error = error
        finally:
            del self._entries[key]
            entry.done.set()
