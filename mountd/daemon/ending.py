"""How this daemon is told to end, and what becomes of the mount then.

SIGTERM and SIGINT mean: unmount, and end. The mount is the keeper's to take away, so it is told (SIGUSR1), and says
when that is done (SIGUSR2: end, the mount is gone from the tree). SIGHUP means: make room for another daemon; what was
not answered then is answered by that one. If the keeper has died this daemon unmounts by itself. A daemon that ends for
any other reason, by a fault or by its own decision, leaves the mount where it is: dead, or taken up by the next one,
and never an empty directory.

Event loop only.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import time
from collections.abc import Callable

import trio

from hfs.mountd.supervisor.connection import unmount
from hfs.mountd.supervisor.table import device_at
from hfs.mountd.wire.handover import Handover

log = logging.getLogger(__name__)


class Ending:
    """The end of one daemon's share of a mount."""

    def __init__(self, mountpoint: str, handover: Handover) -> None:
        self._mountpoint = mountpoint
        self._handover = handover
        self._keeper_fd = -1
        with contextlib.suppress(OSError):  # a kernel before 5.3, or it has ended already
            self._keeper_fd = os.pidfd_open(handover.keeper_pid)

    @property
    def keeper(self) -> dict[str, object]:
        """For `hfs status`: what would start another daemon if this one crashed."""
        given = self._handover
        alive = self._has_keeper
        return {
            "pid": given.keeper_pid if alive else None,
            "reason": None if alive else "the keeper has ended: after a crash of this daemon the mount is dead",
            "restarts": given.restarts,
            "hung": given.hung,
            "last_end": given.last_end or None,
            "mount_uptime_s": round(time.time() - given.mounted_s, 1),
        }

    @property
    def _has_keeper(self) -> bool:
        if self._keeper_fd < 0:
            return False
        poll = select.poll()
        poll.register(self._keeper_fd, select.POLLIN)
        return not poll.poll(0)

    async def wait(self, terminate: Callable[[], None], make_room: Callable[[], None]) -> None:
        """Wait for signals. `terminate` is called when it is time to answer no more, `make_room` when another daemon
        will answer what was not. Runs until cancelled."""
        # A daemon that has noticed the unmount by itself is done here, and writes what it has fetched to the cache: a
        # signal of the keeper a moment later must not kill it. trio puts back what was there before.
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGHUP) as signals:
            async for number in signals:
                if number in {signal.SIGUSR2, signal.SIGHUP}:
                    takes_up = number == signal.SIGHUP and self._handover.resend
                    log.info("this daemon %s", "makes room for another one" if takes_up else "ends")
                    (make_room if takes_up else terminate)()
                    continue
                log.info("%s: unmounting", signal.Signals(number).name)
                if self._has_keeper:
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(self._keeper_fd, signal.SIGUSR1)
                else:
                    self._unmount()
                    terminate()
                signal.signal(number, signal.SIG_DFL)

    def _unmount(self) -> None:
        """Of a mount whose keeper has died."""
        if device_at(self._mountpoint) != self._handover.device:
            return
        try:
            unmount(self._mountpoint, self._handover.device)
        except OSError as error:
            log.warning("%s: cannot be unmounted: %s", self._mountpoint, error.strerror)
