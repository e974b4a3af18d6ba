"""The daemon: builds everything in one function, each start beside its stop, and waits until the mount is gone.

Order matters: the source's descriptor is taken before the mount is made (MOUNTPOINT may lie on SOURCE); the cache is
opened and locked before anything is visible; `ready` is called only when the mount answers. At the end the mount goes
first, so that nobody asks any more, then what fetches ahead, then staging gets a bounded time to write what it holds.

Signals: SIGTERM and SIGINT unmount and end cleanly (`ending`). A second one ends at once. Called by `hfs`; never by
anything here.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial

import trio

from mountd.base.errors import ConfigError, MountError
from mountd.cache import Encoder, Staging, open_staging
from mountd.control import Commands, Status, serve, socket_path
from mountd.core.background import start_for_life, start_guarded
from mountd.core.buffers import Buffers
from mountd.core.config import Config
from mountd.core.memory import Memory
from mountd.core.metrics import Metrics
from mountd.core.open_files import OpenFiles, of_this_process
from mountd.core.workers import Workers
from mountd.daemon.ending import Ending
from mountd.fetch import (
    UNSTAGED_SHARE,
    Fetcher,
    Prefetch,
    PrefetchQueue,
    Readers,
    Recorder,
    Serving,
    SiblingWatch,
    SmallDemand,
    SmallFiles,
)
from mountd.files import (
    Handles,
    IoMode,
    Opening,
    Passthrough,
    ReadPath,
    Refetching,
    Residency,
    have_names_looked_up,
    open_again,
)
from mountd.fuse import DevFuse, Fuse, KernelPageCache
from mountd.hints import Hints, HintsFiles, HintsRepeated, Learners, PageCacheWarmer, PlanChanges, SpaceReservation
from mountd.kernel import device_of, fastpath, tune
from mountd.namespace import Answers, Believing, Journal, Namespace, Node, Permissions, Xattrs, open_journal, seconds
from mountd.peers import JobPeers, Joining, Limits, end_mpi, open_joining
from mountd.source import Source, SourceThreads, identify, open_as_user
from mountd.source import data_bytes as look_through
from mountd.wire.handover import Handover
from policies.cache.encoding import choose
from policies.prefetch.siblings import Siblings

__all__ = ["run"]

log = logging.getLogger(__name__)

_GARBAGE_OBJECTS = 50_000
_GARBAGE_GENERATIONS = (20, 20)
"""How often cycles are looked for: a look at all objects takes half a second with a million names, in which nobody is
answered, and next to nothing here is in a cycle. With Python's own numbers it was a twentieth of the daemon's time."""

_COALESCE_BYTES = 2_500_000_000
"""What the paper gives a node (LMDBIO, Pumma et al., 2019)."""
_COALESCE_SHARE = 4

_NAME_BYTES = 750
"""Of a name with its node, its attributes and its version (measured)."""
_NAMES_SHARE = 32
_LEAST_NAMES, _MOST_NAMES = 1 << 14, 1 << 22
"""Names remembered besides those that the kernel holds: a thirty-second of the memory that is available, enough for a
directory or two, and no more than 3 GB."""

_LEAST_CHUNKS = 16
"""A cache that holds fewer, or whose disk is full, keeps nothing for long enough that others could read it there."""

_LOOK_THROUGH_S = 10.0
"""What a look at the whole source may take when a job starts; 100 000 files of a Lustre on one thread."""

_SWEEP_S = 30.0
_ANSWER_LIMIT_S = 30.0


def run(
    config: Config, origins: Mapping[str, str], ready: Callable[[], None], handover: Handover | None = None
) -> None:
    """Serve until unmounted, on the keeper's mount (`handover`) or one made here. `ready` is called once, when it
    answers.

    Raises ConfigError, MountError, SourceError before `ready`; then nothing is left mounted.
    """
    open_files = of_this_process()
    gc.set_threshold(_GARBAGE_OBJECTS, *_GARBAGE_GENERATIONS)
    ends: list[Callable[[], None]] = []
    try:
        trio.run(_serve, config, origins, ready, ends, handover, open_files, strict_exception_groups=True)
    finally:
        for end in ends:
            end()


async def _serve(
    config: Config,
    origins: Mapping[str, str],
    ready: Callable[[], None],
    ends: list[Callable[[], None]],
    handover: Handover | None,
    open_files: OpenFiles,
) -> None:
    """`ends`: what is left to be done without an event loop."""
    metrics = Metrics()
    journal = Journal() if handover is None else open_journal(handover)
    ending = Ending(config.mountpoint, handover)
    async with contextlib.AsyncExitStack() as stack:
        workers = Workers()
        await stack.enter_async_context(workers.running())
        joining = await stack.enter_async_context(open_joining(config.peers, journal.generation))
        ends.append(lambda: end_mpi(joining))
        source = _open_source(config, metrics, workers, handover, open_files, journal)
        stack.callback(source.close)
        encoder = await workers.run_sync(Encoder) if config.stage_encoding == "auto" else None
        memory = Memory(trio.current_time)
        handles = Handles(journal)
        queue = PrefetchQueue(metrics)
        plan_changes = PlanChanges(queue.hints_nowait)
        learners = Learners(
            config.chunk_bytes,
            metrics,
            workers.run_sync,
            changed=plan_changes.changed,
            coalesce_bytes=_coalesce_bytes(config, memory),
        )

        staging = await stack.enter_async_context(
            open_staging(
                config.cache,
                capacity_bytes=config.cache_size_bytes,
                chunk_bytes=config.chunk_bytes,
                eviction=config.eviction,
                staging_threads=config.staging_threads,
                kept_source=source.source_id,
                verify=config.verify,
                scrub_bytes_s=config.scrub_bytes_s,
                # Above the half that prefetch may fill, below what readers and pushes need besides.
                in_flight_bytes=config.buffer_bytes * 5 // 8,
                metrics=metrics,
                open_files=open_files,
                run_in_thread=workers.run_sync,
                trust=source.doubts,
                lost_under_readers=Refetching(handles, queue).lost,
                planned=learners.planned,
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

        def changed(node: Node) -> None:
            if node.version is not None:
                source.release(node.version)
                start_guarded(nursery, "supersede", staging.supersede, node.version)
            # The kernel is not told: it asks for names whose time is over, and an open before that gets ESTALE. Telling
            # waits for the directory, which a look-up that hangs in the source holds, and then stops all others there.

        namespace = Namespace(
            source,
            metrics,
            nursery,
            ttl_s=ttl_s,
            strict=config.strict,
            names_at_most=_names_at_most(memory),
            journal=journal,
            changed=changed,
        )
        inherited = journal.take_inherited()
        await namespace.start(inherited.nodes)
        answers = Answers(namespace.silence, trio.current_time, ttl_s=ttl_s)
        as_user = await stack.enter_async_context(
            open_as_user(source.root_fd, metrics, time_limit_s=config.source_timeout_s)
        )
        permissions = Permissions(source, as_user, answers, namespace, metrics, others=config.allow_other)
        await permissions.start()
        readers = Readers()
        buffers = Buffers(config.buffer_bytes, config.chunk_bytes)

        device = DevFuse()
        pushers = Workers(apart=device.get)
        await stack.enter_async_context(pushers.running())
        page_cache = KernelPageCache(namespace, metrics, pushers.run_sync, pushers.soon) if config.push else None
        recorder = Recorder()
        fetcher = Fetcher(
            source, staging, buffers, nursery, metrics, page_cache, memory, recorder, peers, reads_a_file=config.stagger
        )
        siblings = SiblingWatch(
            Siblings(config.chunk_bytes, budget_bytes=config.sibling_bytes, cache_bytes=staging.limit_bytes()),
            nursery,
            namespace.listing,
            queue.siblings_nowait,
        )
        passthrough = Passthrough(staging, metrics)
        io_mode = IoMode(
            config.io_mode,
            immutable=config.immutable,
            staging=staging,
            passthrough=passthrough,
            journal=journal,
            why_opens_are_needed=lambda: permissions.why_opens_are_needed,
        )
        await open_again(inherited, journal, namespace, handles, staging, passthrough)
        small_files = SmallFiles(namespace, staging, fetcher, source, buffers, metrics, chunk_bytes=config.chunk_bytes)
        hints = Hints(
            learners,
            namespace,
            staging,
            fetcher,
            HintsFiles(staging, fetcher, small_files),
            SpaceReservation(learners, staging, metrics, config.buffer_bytes // UNSTAGED_SHARE * 3 // 4),
            PageCacheWarmer(
                namespace,
                staging,
                fetcher,
                metrics,
                memory,
                pushes_small=lambda: config.io_mode != "passthrough" and not io_mode.stateless,
            ),
            metrics,
            memory,
            plan_changes,
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
            queue,
            chunk_bytes=config.chunk_bytes,
            buffer_bytes=config.buffer_bytes,
        )
        residency = Residency(namespace, config.mountpoint, nursery)
        opening = Opening(
            namespace,
            handles,
            staging,
            fetcher,
            source,
            metrics,
            siblings,
            SmallDemand(namespace, staging, fetcher, source, buffers, small_files, nursery),
            hints,
            HintsRepeated(learners, nursery),
            recorder,
            io_mode,
            passthrough,
            queue,
            only_looks=residency.is_looking,
            chunk_bytes=config.chunk_bytes,
        )
        prefetch = Prefetch(queue, read_path, hints, metrics, workers=config.prefetch_threads)
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
            threads_refused=lambda: workers.refused,
            open_files=open_files,
            io_mode=io_mode,
            peers=peers,
            permissions=permissions,
            in_flight=lambda: fetcher.in_flight,
            ending=ending,
            journal=journal,
        )
        control_path = stack.enter_context(socket_path(config))
        commands = Commands(
            status,
            namespace,
            staging,
            source,
            read_path,
            fetcher,
            learners,
            recorder,
            small_files,
            peers,
            metrics,
            control_path,
        )
        fuse = Fuse(
            read_path,
            opening,
            namespace,
            handles,
            source,
            Xattrs(source, answers, trio.current_time, ttl_s=ttl_s, changed=namespace.expire),
            permissions,
            metrics,
            readers,
            commands.own_xattr,
            device,
            workers.results_fd,
        )

        if isinstance(peers, JobPeers):
            peers.answer(Serving(namespace, staging, fetcher, source, peers.is_mine, workers.run_sync), status.brief)
            stack.callback(peers.leave)
        await stack.enter_async_context(serve(control_path, commands, nursery, open_files))
        try:
            fuse.mount(
                config.mountpoint,
                config.source,
                allow_other=config.allow_other,
                noexec=config.noexec,
                overlay=staging.on_overlay,
                handover=handover,
            )
        except RuntimeError as error:
            raise MountError(f"{config.mountpoint}: the kernel refused the mount ({error}); see the log") from error
        stack.callback(lambda: fuse.close(unmount=ending.unmounts))
        stack.callback(passthrough.stop)
        if journal.generation:  # what the kernel has agreed on is known; an open must not be answered in another mode
            await io_mode.start(fuse.connection_fd)

        start_for_life(nursery, "sweep of names", _sweep, namespace)
        start_for_life(nursery, "second looks", source.doubts.run, source, Believing(staging, namespace, nursery))
        start_for_life(nursery, "prefetch", prefetch.run)
        start_for_life(nursery, "hints", hints.run)
        async with trio.open_nursery() as serving:
            start_for_life(serving, "signals", ending.wait, fuse.terminate, fuse.make_room)
            if journal.generation:
                serving.start_soon(_announce_again, handover, config, status, ready)
                if io_mode.stateless:
                    look_up = namespace, fuse.connection_fd, workers.run_sync
                    start_guarded(serving, "names after a crash", have_names_looked_up, *look_up)
            else:
                serving.start_soon(_announce, config, status, io_mode, fuse, ready, ending)
            await fuse.run()
            serving.cancel_scope.cancel()
        log.info("%s: not served any more", config.mountpoint)


@contextlib.asynccontextmanager
async def _cancelled_at_exit() -> AsyncIterator[trio.Nursery]:
    """The nursery of all fetches and background tasks; they end when the mount has gone."""
    async with trio.open_nursery() as nursery:
        yield nursery
        nursery.cancel_scope.cancel()


def _open_source(
    config: Config,
    metrics: Metrics,
    workers: Workers,
    handover: Handover | None,
    open_files: OpenFiles,
    journal: Journal,
) -> Source:
    try:
        if handover is not None:  # by its path it might be the mount itself
            root_fd = os.dup(handover.source_fd)
        else:
            root_fd = os.open(config.source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"source: {config.source}: {error.strerror}; name a directory that you can read") from error
    threads = SourceThreads(
        metrics,
        demand=config.source_threads,
        prefetch=config.prefetch_threads,
        time_limit_s=config.source_timeout_s,
        open_files=open_files,
        run_in_thread=workers.run_patient,
    )
    return Source(
        root_fd,
        os.path.realpath(config.source) if handover is None else os.readlink(f"/proc/self/fd/{root_fd}"),
        config.source_id or journal.source_id(identify(root_fd).id),
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


def _coalesce_bytes(config: Config, memory: Memory) -> int:
    if config.coalesce_bytes is not None:
        return config.coalesce_bytes
    return min(_COALESCE_BYTES, memory.available_bytes() // _COALESCE_SHARE)


def _names_at_most(memory: Memory) -> int:
    return max(_LEAST_NAMES, min(_MOST_NAMES, memory.available_bytes() // _NAMES_SHARE // _NAME_BYTES))


async def _announce_again(handover: Handover | None, config: Config, status: Status, ready: Callable[[], None]) -> None:
    """As `_announce`, of a mount that another daemon has served. It may have been taken out of the tree, and is not
    looked at: a thread that asks its own daemon could keep it from ending."""
    assert handover is not None
    log.info("%s: serving %s, as daemon %d of this mount", config.mountpoint, config.source, handover.generation + 1)
    ready()
    major, minor = handover.device.split(":")
    settings = partial(tune, os.makedev(int(major), int(minor)), init_asked=True)
    status.tuned(await trio.to_thread.run_sync(settings, abandon_on_cancel=True))


async def _announce(
    config: Config, status: Status, io_mode: IoMode, fuse: Fuse, ready: Callable[[], None], ending: Ending
) -> None:
    """Tell the kernel our settings and the caller that the mount answers, once it does."""
    device = await trio.to_thread.run_sync(device_of, config.mountpoint)
    if device is None:
        raise MountError(f"{config.mountpoint}: the mount is not in /proc/self/mountinfo")
    init_asked = fastpath.extension_missing() is None
    status.tuned(await trio.to_thread.run_sync(partial(tune, device, init_asked=init_asked)))
    with trio.move_on_after(_ANSWER_LIMIT_S) as limit:
        await trio.to_thread.run_sync(os.stat, config.mountpoint, abandon_on_cancel=True)
    if limit.cancelled_caught:
        raise MountError(f"{config.mountpoint}: the mount does not answer after {_ANSWER_LIMIT_S:.0f} s")
    await io_mode.start(fuse.connection_fd)
    log.info("%s: serving %s", config.mountpoint, config.source)
    ending.announced()
    ready()


async def _sweep(namespace: Namespace) -> None:
    while True:
        await trio.sleep(_SWEEP_S)
        await namespace.sweep()
