"""A namespace over a fake source, and look-ups in it as the kernel makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from hfs.mountd.core.metrics import Metrics
from hfs.mountd.namespace.lookups import StoredFiles
from hfs.mountd.namespace.namespace import Namespace, open_namespace
from hfs.mountd.namespace.nodes.node import Node
from tests.support.fake_slots import FakeSlotTable
from tests.support.fake_source import FakeSource


async def made(
    source: FakeSource,
    ttl_s: float = 10.0,
    *,
    strict: bool = False,
    names_at_most: int = 1 << 20,
    slot_table: FakeSlotTable | None = None,
    kept: StoredFiles | None = None,
    changed: Callable[[Node], object] = lambda _node: None,
    gone: Sequence[Callable[[Node], object]] = (),
) -> tuple[Namespace, Metrics]:
    metrics = Metrics()
    nursery = trio.lowlevel.current_task().parent_nursery  # the run's own: what is left in it is waited for
    assert nursery is not None
    namespace = await open_namespace(
        source,  # type: ignore[arg-type]  # a fake
        metrics,
        nursery,
        ttl_s=ttl_s,
        strict=strict,
        names_at_most=names_at_most,
        slot_table=slot_table,
        kept=kept,
        changed=changed,
        gone=gone,
    )
    return namespace, metrics


async def looked_up(namespace: Namespace, path: bytes) -> Node:
    node = await namespace.lookups.resolve(path)
    namespace.holds.referenced(node)
    return node
