"""The daemon: builds everything in one function, each start beside its stop, and waits until the mount is gone.

Order matters: the source's descriptor is taken before the mount is made (MOUNTPOINT may lie on SOURCE); the cache is
opened and locked before anything is visible; `ready` is called only when the mount answers. At the end the mount goes
first, so that nobody asks any more, then what fetches ahead, then staging gets a bounded time to write what it holds.

Signals: SIGTERM and SIGINT unmount and end cleanly. A second one ends at once. Called by `hfs`; never by anything here.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial

import trio

from mountd import fastpath
from mountd.buffers import Buffers
from mountd.commands import Commands
from mountd.config import Config, survives_lost_daemons
from mountd.control import serve
from mountd.errors import ConfigError, MountError
from mountd.fastpath_tuning import device_of, tune
from mountd.fetcher import UNSTAGED_SHARE, Fetcher
from mountd.fuse import Fuse
from mountd.fuse_push import KernelPageCache
from mountd.handles import Handles
from mountd.hints import Hints
from mountd.hints_files import HintsFiles
from mountd.hints_ready import HintsReady
from mountd.hints_repeated import HintsRepeated
from mountd.hints_room import HintsRoom
from mountd.identity import source_id
from mountd.io_mode import IoMode
from mountd.learners import Learners
from mountd.memory import Memory
from mountd.metrics import Metrics
from mountd.namespace import Namespace, seconds
from mountd.node import Node
from mountd.opening import Opening
from mountd.passthrough import Passthrough
from mountd.peers_job import JobPeers
from mountd.peers_joining import Limits
from mountd.peers_opening import Joining, open_joining
from mountd.prefetch import Prefetch
from mountd.read_path import ReadPath
from mountd.readers import Readers
from mountd.recorder import Recorder
from mountd.residency import Residency
from mountd.serving import Serving
from mountd.sibling_watch import SiblingWatch
from mountd.small_files import SmallFiles
from mountd.source import Source
from mountd.source_threads import SourceThreads
from mountd.source_volume import data_bytes as look_through
from mountd.staging import Staging
from mountd.staging_encoding import Encoder
from mountd.staging_opening import open_staging
from mountd.status import Status
from mountd.workers import Workers
from policies.encoding import choose
from policies.siblings import Siblings

__all__ = ["run"]

log = logging.getLogger(__name__)

_WANTED_FILES = 65_536
"""Open files wished for: staged files, source descriptors, sockets. The hard limit rules."""

_GARBAGE_OBJECTS = 50_000
_GARBAGE_GENERATIONS = (20, 20)
"""How often cycles are looked for: a look at all objects takes half a second with a million names, in which nobody is
answered, and next to nothing here is in a cycle. With Python's own numbers it was a twentieth of the daemon's time."""

_COALESCE_BYTES = 2_500_000_000
"""What the paper gives a node (LMDBIO, Pumma et al., 2019)."""
_COALESCE_SHARE = 4

_LEAST_CHUNKS = 16
"""A cache that holds fewer, or whose disk is full, keeps nothing for long enough that others could read it there."""

_MPI_END_S = 100.0
"""Below the 120 s in which `hfs umount` expects the daemon to end."""
_END_TOGETHER_S = 2.0
"""Where all are ended at the same time, as a launcher does, they end as MPI wants it."""
_LOOK_THROUGH_S = 10.0
"""What a look at the whole source may take when a job starts; 100 000 files of a Lustre on one thread."""

_SWEEP_S = 30.0
_ANSWER_LIMIT_S = 30.0


def run(config: Config, origins: Mapping[str, str], ready: Callable[[], None]) -> None:
    """Mount and serve until unmounted. `ready` is called once, when the mount answers.

    Raises ConfigError, MountError, SourceError before `ready`; then nothing is left mounted.
    """
    _raise_file_limit()
    gc.set_threshold(_GARBAGE_OBJECTS, *_GARBAGE_GENERATIONS)
    ends: list[Callable[[], None]] = []
    try:
        trio.run(_serve, config, origins, ready, ends, strict_exception_groups=True)
    finally:
        for end in ends:
            end()


async def _serve(
    config: Config, origins: Mapping[str, str], ready: Callable[[], None], ends: list[Callable[[], None]]
) -> None:
    """`ends`: what is left to be done without an event loop."""
    metrics = Metrics()
    async with contextlib.AsyncExitStack() as stack:
        workers = Workers()
        await stack.enter_async_context(workers.running())
        joining = await stack.enter_async_context(open_joining(config.peers))
        ends.append(lambda: _end_mpi(joining))
        source = _open_source(config, metrics, workers)
        stack.callback(source.close)
        encoder = await workers.run_sync(Encoder) if config.stage_encoding == "auto" else None

        staging = await stack.enter_async_context(
            open_staging(
                config.cache,
                capacity_bytes=config.cache_size_bytes,
                chunk_bytes=config.chunk_bytes,
                eviction=config.eviction,
                staging_threads=config.staging_threads,
                # Above the half that prefetch may fill, below what readers and pushes need besides.
                in_flight_bytes=config.buffer_bytes * 5 // 8,
                metrics=metrics,
                run_in_thread=workers.run_sync,
            )
        )
        nursery = await stack.enter_async_context(_cancelled_at_exit())
        capacity_bytes = staging.limit_bytes()
        if capacity_bytes < _LEAST_CHUNKS * config.chunk_bytes:
            capacity_bytes = 0  # home of nothing
        data_bytes = await _data_bytes(config, source, workers, joining, capacity_bytes, staging)
        peers = await joining.join(
            nursery,
            metrics,
            workers.run_sync,
            source_id=source.source_id,
            root_inode=source.root_inode,
            chunk_bytes=config.chunk_bytes,
            placement=config.placement,
            capacity_bytes=capacity_bytes,
            data_bytes=data_bytes,
            limits=Limits(
                buffer_bytes=config.buffer_bytes,
                source_timeout_s=config.source_timeout_s,
                peer_timeout_s=config.peer_timeout_s,
                stagger=config.stagger,
                stagger_job=config.stagger_job,
            ),
        )

        share_bytes = peers.share_bytes if isinstance(peers, JobPeers) else data_bytes
        choice = choose(config.stage_encoding, data_bytes=share_bytes, capacity_bytes=staging.limit_bytes())
        staging.encode(choice, encoder)

        ttl_s = seconds(config.ttl_s, immutable=config.immutable)
        namespace = Namespace(source, metrics, nursery, ttl_s=ttl_s, strict=config.strict)
        await namespace.start()
        handles = Handles()
        readers = Readers()
        buffers = Buffers(config.buffer_bytes, config.chunk_bytes)

        page_cache = KernelPageCache(namespace, metrics, workers.run_sync) if config.push else None
        memory = Memory(trio.current_time)
        recorder = Recorder()
        fetcher = Fetcher(
            source, staging, buffers, nursery, metrics, page_cache, memory, recorder, peers, reads_a_file=config.stagger
        )
        learners = Learners(
            config.chunk_bytes, metrics, workers.run_sync, coalesce_bytes=_coalesce_bytes(config, memory)
        )
        siblings = SiblingWatch(
            Siblings(small_file_bytes=config.chunk_bytes, budget_bytes=config.sibling_bytes),
            nursery,
            namespace.listing,
            lambda: prefetch.siblings_nowait(),
        )
        passthrough = Passthrough(staging, metrics)
        io_mode = IoMode(config.io_mode, immutable=config.immutable, staging=staging, passthrough=passthrough)
        small_files = SmallFiles(namespace, staging, fetcher, source, buffers, metrics, chunk_bytes=config.chunk_bytes)
        hints = Hints(
            learners,
            namespace,
            staging,
            fetcher,
            HintsFiles(staging, fetcher, small_files),
            HintsRoom(learners, staging, metrics, config.buffer_bytes // UNSTAGED_SHARE * 3 // 4),
            HintsReady(
                namespace,
                staging,
                fetcher,
                metrics,
                memory,
                pushes_small=lambda: config.io_mode != "passthrough" and not io_mode.stateless,
            ),
            metrics,
            memory,
            lambda: prefetch.hints_nowait(),
            chunks_at_once=config.prefetch_threads,
        )
        read_path = ReadPath(
            namespace,
            staging,
            fetcher,
            source,
            metrics,
            siblings,
            hints,
            recorder,
            small_files,
            chunk_bytes=config.chunk_bytes,
            buffer_bytes=config.buffer_bytes,
        )
        opening = Opening(
            namespace,
            handles,
            staging,
            fetcher,
            source,
            metrics,
            siblings,
            hints,
            HintsRepeated(learners, nursery),
            recorder,
            io_mode,
            passthrough,
            chunk_bytes=config.chunk_bytes,
        )
        prefetch = read_path.prefetch = opening.prefetch = Prefetch(
            read_path, hints, metrics, workers=config.prefetch_threads
        )
        residency = Residency(namespace, config.mountpoint, nursery)
        opening.only_looks = residency.is_looking
        status = Status(
            config,
            origins,
            metrics=metrics,
            source=source,
            staging=staging,
            namespace=namespace,
            handles=handles,
            prefetch=prefetch,
            buffers=buffers,
            readers=readers,
            learners=learners,
            residency=residency,
            io_mode=io_mode,
            peers=peers,
            in_flight=lambda: fetcher.in_flight,
        )
        commands = Commands(
            status, namespace, staging, source, read_path, fetcher, learners, recorder, small_files, peers
        )
        fuse = Fuse(
            read_path, opening, namespace, handles, source, metrics, readers, commands.own_xattr, workers.results_fd
        )

        def changed(node: Node) -> None:
            if node.version is not None:
                source.release(node.version)
                nursery.start_soon(staging.supersede, node.version)
            # The kernel is not told: it asks for names whose time is over, and an open before that gets ESTALE. Telling
            # waits for the directory, which a look-up that hangs in the source holds, and then stops all others there.

        namespace.on_changed = changed

        if isinstance(peers, JobPeers):
            peers.answer(
                Serving(namespace, staging, fetcher, source.source_id, peers.is_mine, workers.run_sync), status.brief
            )
            stack.callback(peers.leave)
        commands.control_path = await stack.enter_async_context(serve(config, commands, nursery))
        try:
            fuse.mount(config.mountpoint, config.source, allow_other=config.allow_other, overlay=staging.on_overlay)
        except RuntimeError as error:
            raise MountError(f"{config.mountpoint}: the kernel refused the mount ({error}); see the log") from error
        stack.callback(lambda: fuse.close(unmount=True))
        stack.callback(passthrough.stop)

        nursery.start_soon(_sweep, namespace)
        nursery.start_soon(prefetch.run)
        nursery.start_soon(hints.run)
        async with trio.open_nursery() as serving:
            serving.start_soon(_stop_on_signal, fuse)
            serving.start_soon(_announce, config, status, io_mode, fuse, ready)
            await fuse.run()
            serving.cancel_scope.cancel()
        log.info("%s: unmounted", config.mountpoint)


@contextlib.asynccontextmanager
async def _cancelled_at_exit() -> AsyncIterator[trio.Nursery]:
    """The nursery of all fetches and background tasks; they end when the mount has gone."""
    async with trio.open_nursery() as nursery:
        yield nursery
        nursery.cancel_scope.cancel()


def _open_source(config: Config, metrics: Metrics, workers: Workers) -> Source:
    try:
        root_fd = os.open(config.source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"source: {config.source}: {error.strerror}; name a directory that you can read") from error
    threads = SourceThreads(
        metrics,
        demand=config.source_threads,
        prefetch=config.prefetch_threads,
        time_limit_s=config.source_timeout_s,
        run_in_thread=workers.run_sync,
    )
    return Source(
        root_fd,
        os.path.realpath(config.source),
        config.source_id or source_id(root_fd, config.source),
        threads,
        metrics,
        ttl_s=seconds(config.ttl_s, immutable=config.immutable),
        direct=config.source_direct,
        large_bytes=config.chunk_bytes,
    )


async def _data_bytes(
    config: Config, source: Source, workers: Workers, joining: Joining, at_most: int, staging: Staging
) -> int | None:
    """How much data there is, for the placement, and to see whether what is staged is to be encoded.

    None if that is of no use, or more than `at_most` (or than all nodes hold, if that is the question).
    """
    if not joining.is_first and not joining.is_alone:
        return None
    if config.stage_encoding == "auto":
        at_most = staging.limit_bytes() * joining.count
    elif joining.is_alone or config.placement != "auto":
        return None
    found: int | None = await workers.run_sync(look_through, source.root_fd, at_most, _LOOK_THROUGH_S)
    return found


def _end_mpi(joining: Joining) -> None:
    """MPI's end waits for the daemons of all nodes, whose mounts may be used for hours still."""
    if joining.transport is None:
        return
    alone = joining.transport.count == 1
    if sys.exc_info()[0] is not None:
        joining.transport.wait_ended(_END_TOGETHER_S)
        return  # what went wrong is told, and mpirun sees that it did
    if joining.transport.wait_ended(_END_TOGETHER_S if survives_lost_daemons() and not alone else _MPI_END_S):
        return
    if not survives_lost_daemons():
        log.warning("peers: others go on, and without mpirun --with-ft ulfm they end with this daemon")
    # Unmounted, the cache closed: nothing is left to do but to wait for the others in MPI_Finalize.
    logging.shutdown()
    os._exit(0)


def _coalesce_bytes(config: Config, memory: Memory) -> int:
    if config.coalesce_bytes is not None:
        return config.coalesce_bytes
    return min(_COALESCE_BYTES, memory.available_bytes() // _COALESCE_SHARE)


async def _announce(config: Config, status: Status, io_mode: IoMode, fuse: Fuse, ready: Callable[[], None]) -> None:
    """Tell the kernel our settings and the caller that the mount answers, once it does."""
    device = await trio.to_thread.run_sync(device_of, config.mountpoint)
    if device is None:
        raise MountError(f"{config.mountpoint}: the mount is not in /proc/self/mountinfo")
    init_asked = fastpath.extension_missing() is None
    status.kernel = await trio.to_thread.run_sync(partial(tune, device, init_asked=init_asked))
    with trio.move_on_after(_ANSWER_LIMIT_S) as limit:
        await trio.to_thread.run_sync(os.stat, config.mountpoint, abandon_on_cancel=True)
    if limit.cancelled_caught:
        raise MountError(f"{config.mountpoint}: the mount does not answer after {_ANSWER_LIMIT_S:.0f} s")
    await io_mode.start(fuse.connection_fd)
    log.info("%s: serving %s", config.mountpoint, config.source)
    ready()


async def _stop_on_signal(fuse: Fuse) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("%s: unmounting", signal.Signals(number).name)
            fuse.terminate()
            signal.signal(number, signal.SIG_DFL)


async def _sweep(namespace: Namespace) -> None:
    while True:
        await trio.sleep(_SWEEP_S)
        namespace.sweep()


def _raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, _WANTED_FILES) if hard != -1 else _WANTED_FILES, hard))
