"""Asking the source for a file that has several names: one of them may have gone without another word.
Of a file that has many some are asked for, the newest among them.

A file whose name was moved out of SOURCE, with the directory it lay in, is the same version under its other links.
Event loop only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from hfs.mountd.core.errors import SourceError, SourceTimeout, VersionChanged
from hfs.mountd.namespace.nodes.node import Node

Value = TypeVar("Value")


async def by_any_name(node: Node, ask: Callable[[bytes, bytes], Awaitable[Value]]) -> Value:
    """`ask(directory, name)` of the source by one name of `node` after the other, until one is answered.

    Raises what it raised of the last one; SourceTimeout at once, since the other names would keep the caller as long.
    """
    if node.links is None:
        return await ask(node.directory, node.name)
    places = [(directory.path, name) for directory, name in node.places]
    for place in places[:-1]:
        try:
            return await ask(*place)
        except SourceTimeout:
            raise
        except (SourceError, VersionChanged):
            pass  # the next one may still lead to it
    return await ask(*places[-1])
