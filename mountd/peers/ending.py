"""The end of a daemon that speaks MPI with others: when it may go, and how.

MPI's end waits for the daemons of all nodes, whose mounts may be used for hours still. So it comes when all else has
ended, without an event loop.
"""

from __future__ import annotations

import logging
import os
import sys

from hfs.mountd.core.config.loading import survives_lost_daemons
from hfs.mountd.peers.opening import Joining

log = logging.getLogger(__name__)

_MPI_END_S = 100.0
"""Below the 120 s in which `hfs umount` expects the daemon to end."""
_END_TOGETHER_S = 2.0
"""Where all are ended at the same time, as a launcher does, they end as MPI wants it."""


def end_mpi(joining: Joining) -> None:
    """End this daemon's part; does not return where the others go on."""
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
