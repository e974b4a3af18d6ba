"""Opening the peers: the transport is started first, each daemon joins once it knows its part, and the transport ends
last: MPI without an event loop.

A daemon of an MPI job that cannot start tells the others why in place of joining, so that nobody waits for it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from hfs.mountd.core.config import Config
from hfs.mountd.core.config.loading import peer_secret, survives_lost_daemons
from hfs.mountd.core.errors import ConfigError, sole
from hfs.mountd.core.metrics import Metrics
from hfs.mountd.peers.cluster_view import ClusterView, LoneView
from hfs.mountd.peers.job import JobPeers
from hfs.mountd.peers.joining import JobLimits, agree, decode_infos, encode_info
from hfs.mountd.peers.messages import NodeInfo
from hfs.mountd.peers.mpi import MpiTransport

if TYPE_CHECKING:
    from hfs.mountd.peers.zeromq import ZmqTransport

log = logging.getLogger(__name__)

_JOIN_LIMIT_S = 120.0
"""Between the start of MPI and joining lies the opening of source and cache: a damaged index is made anew meanwhile."""
_MPI_END_S = 100.0
"""Below the 120 s in which `hfs umount` expects the daemon to end."""
_END_TOGETHER_S = 2.0
"""Where all are ended at the same time, as a launcher does, they end as MPI wants it."""
_FAULT_LIMIT_S = 10.0


class Membership(NamedTuple):
    """What this daemon has of its job."""

    peers: JobPeers | None
    """None: there is nobody to ask."""
    view: ClusterView


class Joining:
    """`transport` None: there is nobody to join."""

    def __init__(self, transport: MpiTransport | ZmqTransport | None, why_alone: str = "--peers none") -> None:
        self.transport = transport
        self._why_alone = why_alone
        self.joined = False

    @property
    def is_first(self) -> bool:
        """Whether this daemon is the one that looks for what all need to know."""
        if isinstance(self.transport, MpiTransport):
            return self.transport.count > 1 and self.transport.number == 0
        return self.transport is not None and self.transport.is_first

    @property
    def count(self) -> int:
        """Daemons of the job."""
        return 1 if self.transport is None else self.transport.count

    @property
    def is_alone(self) -> bool:
        """There is nobody else who could look."""
        return self.count == 1

    async def join(
        self,
        nursery: trio.Nursery,
        metrics: Metrics,
        run_in_thread: Callable[..., Awaitable[Any]],
        info: NodeInfo,
        limits: JobLimits,
    ) -> Membership:
        """Become one of the job's daemons; `info`: what this one says of itself. Raises ConfigError if they do not fit
        together, MountError if one fails."""
        if self.transport is None:
            return Membership(
                None, LoneView(self._why_alone, info.chunk_bytes, wanted=self._why_alone != "--peers none")
            )
        if isinstance(self.transport, MpiTransport) and self.transport.count == 1:
            reason = "the only daemon of its job: started without mpirun, or started again, after which none can rejoin"
            log.warning("peers: this is %s; it runs alone", reason)
            self.joined = True
            return Membership(None, LoneView(reason, info.chunk_bytes, wanted=True))
        if isinstance(self.transport, MpiTransport):
            self.joined = True
            agreed = agree(decode_infos(await self.transport.gather(encode_info(info), _JOIN_LIMIT_S)))
        else:
            agreed = agree(await self.transport.gather(info))
            self.transport.settle(agreed.placement, agreed.data_bytes)
        names = agreed.names
        log.info(
            "peers: %s is one of %d nodes, placement %s", names[self.transport.number], len(names), agreed.placement
        )
        peers = JobPeers(
            self.transport, agreed, nursery, metrics, run_in_thread, chunk_bytes=info.chunk_bytes, limits=limits
        )
        return Membership(peers, peers.view)

    async def refuse(self, fault: str) -> None:
        """Tell the others, who wait for this daemon, why it does not come."""
        if not isinstance(self.transport, MpiTransport) or self.transport.count == 1 or self.joined:
            return
        with trio.CancelScope(shield=True):
            self.joined = True
            await self.transport.gather(encode_info(NodeInfo(fault=fault)), _FAULT_LIMIT_S)


@asynccontextmanager
async def open_joining(config: Config, generation: int) -> AsyncIterator[Joining]:
    """`generation`: how many daemons of this mount there were before; MPI takes the first alone. Raises ConfigError
    without the library of the transport or the secret, MountError if it does not start."""
    if config.peers == "none":
        yield Joining(None)
        return
    if config.peers != "mpi":
        try:
            from hfs.mountd.peers.zeromq import open_zeromq
        except ImportError as error:
            raise ConfigError(f"peers: needs ZeroMQ ({error}); pip install pyzmq") from None
        secret = await trio.to_thread.run_sync(peer_secret, config.peer_secret or "")
        async with open_zeromq(
            config.peers, config.peer_listen, secret, timeout_s=config.peer_timeout_s, is_again=generation > 0
        ) as transport:
            yield Joining(transport)
        return
    if generation:
        log.warning("peers: this daemon follows one that has ended; none can rejoin the job, so it runs alone")
        yield Joining(None, "the daemon before this one has ended, and none can rejoin the job")
        return
    mpi = MpiTransport()
    await mpi.start()
    joining = Joining(mpi)
    try:
        yield joining
    except Exception as error:
        why = sole(error)
        try:
            await joining.refuse(str(why) or repr(why))
        except Exception as also:  # noqa: BLE001 - what is raised below says more
            log.debug("peers: %s", also)
        raise
    finally:
        mpi.leave_nowait()  # once more where it is said already: nobody counts
        mpi.end()


def end_mpi(joining: Joining) -> None:
    """End this daemon's part; does not return where the others go on.

    MPI's end waits for the daemons of all nodes, whose mounts may be used for hours still. So it comes when all else
    has ended, without an event loop.
    """
    if not isinstance(joining.transport, MpiTransport):
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
