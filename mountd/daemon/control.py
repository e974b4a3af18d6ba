"""Control: the socket on which this daemon is asked, by commands and by the daemons of other nodes, and its answers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial

import trio

from hfs.mountd.cache import Cache
from hfs.mountd.control import (
    CacheCommands,
    ClusterStatus,
    Commands,
    RefreshWork,
    Traffic,
    Tunnels,
    WarmEstimate,
    WarmFetches,
    Warming,
    WarmRates,
    record_reads,
    serve,
    socket_path,
)
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.daemon.basics import Basics
from hfs.mountd.daemon.ending import Ending
from hfs.mountd.daemon.files import FileService
from hfs.mountd.daemon.names import NameService
from hfs.mountd.daemon.status import Status
from hfs.mountd.daemon.storage import Storage
from hfs.mountd.fetch import Serving
from hfs.mountd.monitoring import Monitoring
from hfs.mountd.namespace import Node
from hfs.mountd.peers import JobPeers, Membership
from hfs.policies.traffic import ReadCounts


@dataclass(frozen=True, slots=True)
class ControlService:
    status: Status
    own_xattr: Callable[[Node, str], bytes | None]
    traffic: Traffic
    tunnels: Tunnels


@asynccontextmanager
async def open_control(
    basics: Basics,
    storage: Storage,
    joined: Membership,
    names: NameService,
    files: FileService,
    ending: Ending,
    monitoring: Monitoring,
    nursery: trio.Nursery,
) -> AsyncIterator[ControlService]:
    """Answer until the block is left. Raises MountError."""
    metrics, cache = basics.metrics, storage.cache
    cluster = ClusterStatus(joined.view, cache, metrics)
    counted = partial(_read_counts, metrics, files)
    traffic = Traffic(metrics, counted, lambda: cache.statistics().bytes, time.monotonic)
    status = Status(basics, storage, joined.view, names, files, ending, traffic, monitoring)
    commands = Commands(
        status,
        _cache_commands(basics, storage, names, files),
        cluster,
        partial(record_reads, files.recorder, partial(_recall_all, storage, files)),
        _refreshing(basics, storage, names, files, nursery),
        storage.learners,
        lambda: names.permissions.why_nobody_is_asked,
        files.overlays.makers_may_come,
    )
    path = socket_path(basics.config)
    with _answering(basics, storage, joined.peers, names, files, cluster):
        async with serve(path, commands, nursery, basics.open_files, others=basics.config.allow_other) as tunnels:
            storage.own_cache.answers_at(path)
            yield ControlService(status, partial(_own_xattr, cache, path), traffic, tunnels)


@contextmanager
def _answering(
    basics: Basics,
    storage: Storage,
    peers: JobPeers | None,
    names: NameService,
    files: FileService,
    cluster: ClusterStatus,
) -> Iterator[None]:
    """The other nodes are answered until the block is left; then they are told."""
    if peers is None:
        yield
        return
    answers = Serving(
        names.namespace,
        storage.cache,
        files.fetch.fetcher,
        files.fetch.resolver,
        storage.source,
        peers.owners.owned_here,
        basics.workers.run_sync,
        files.pipeline.directory_delegations.wait_fetched,
    )
    peers.answer(answers, cluster.own_figures)
    try:
        yield
    finally:
        peers.leave()


async def _recall_all(storage: Storage, files: FileService) -> None:
    """All opens and reads come to us from now on, as far as that can be."""
    files.overlays.stop()
    await files.delegations.recall_all()
    async with storage.changed.changing():
        pass


def _refreshing(
    basics: Basics, storage: Storage, names: NameService, files: FileService, nursery: trio.Nursery
) -> RefreshWork:
    async def tell_kernel(tell: Callable[[int], bool]) -> bool:
        async with storage.changed.changing(names.namespace.root.attributes):
            files.xattr_answers.root_without_acl(0)
            told = await files.pushers.run_sync(tell, basics.handover.connection_fd, abandon_on_cancel=True)
            files.xattr_answers.root_without_acl(0)  # what was asked before may have been answered meanwhile
            return told

    return RefreshWork(
        names.namespace,
        storage.cache,
        storage.source,
        files.pipeline,
        nursery,
        tell_kernel,
        basics.workers.run_sync,
        tells_all=lambda: basics.journal.generation > 0 or storage.changed.concerns_overlays,
    )


def _cache_commands(basics: Basics, storage: Storage, names: NameService, files: FileService) -> CacheCommands:
    namespace, cache, fetch = names.namespace, storage.cache, files.fetch
    small_files, sparse_files = files.small_files, fetch.sparse_files
    fetches = WarmFetches(fetch.resolver, fetch.owners, fetch.fetcher, small_files, files.pipeline, sparse_files)
    rates = WarmRates()
    new_warming = partial(Warming, namespace, cache, fetches, basics.metrics, rates)
    new_estimate = partial(WarmEstimate, namespace, cache, fetch.owners, sparse_files, rates, small_files.limit_bytes)
    return CacheCommands(namespace, cache, storage.source, fetch.fetcher, new_warming, new_estimate)


def _read_counts(metrics: Metrics, files: FileService) -> ReadCounts:
    """What is known of what jobs have read."""
    plane = files.plane.figures()
    return ReadCounts(
        cached_bytes=metrics["opened_cached_bytes"] + plane.cached_bytes - files.residency.looked_at_bytes,
        passed_bytes=metrics["opened_passed_bytes"] + plane.passed_bytes,
        read_bytes=sum(metrics[f"bytes_{tier}"] for tier in ("staged", "flight", "source", "bypass"))
        + plane.read_bytes,
        large_read_bytes=metrics["bytes_large"] + plane.large_read_bytes,
        large_passed=metrics["opens_large_passed"] + plane.large_passed,
        unseen_opens=metrics["opens_stateless"] + files.by_kernel.has_overlays() + files.by_kernel.look_ups()[0],
        fetched_bytes=metrics["source_read_bytes"] + metrics["peer_read_bytes"] - metrics["source_large_read_bytes"],
    )


def _own_xattr(cache: Cache, control_path: str, node: Node, name: str) -> bytes | None:
    """The value of `user.hfs.state`, `user.hfs.tier` or `user.hfs.socket`: where a file is served from, and where the
    daemon is asked; None if `node` has none of that name. Never waits."""
    if name == "user.hfs.socket":
        return control_path.encode("utf-8", "surrogateescape")
    file = cache.files.get_nowait(node.version) if node.version is not None else None
    if name == "user.hfs.state" and node.version is not None:
        if file is None or not file.present:
            return b"source" if node.version.size else b"complete"
        return b"complete" if file.complete else b"%d/%d chunks" % (len(file.present), file.present.count)
    if name == "user.hfs.tier" and node.version is not None:
        return b"staged" if file is not None and file.complete else b"source"
    return None
