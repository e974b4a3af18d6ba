"""libfuse's session of a mount: made here with mount(8)'s help, or on the connection that the keeper holds.

pyfuse3 does not tell its descriptor of /dev/fuse, which the extension and passthrough need; so it is found.
"""

from __future__ import annotations

import os

# Before pyfuse3, which then finds the extension's functions in front of libfuse's.
from hfs.mountd.kernel import fastpath

# isort: split
import pyfuse3

from hfs.mountd.wire.handover import Handover


class DevFuse:
    """The mount's descriptor of /dev/fuse, for those who are made before the mount."""

    def __init__(self) -> None:
        self._fd = -1

    def opened(self, fd: int) -> None:
        """The mount is made."""
        self._fd = fd

    def get(self) -> int:
        """-1: it is not made yet."""
        return self._fd


def open_session(
    operations: pyfuse3.Operations,
    mountpoint: str,
    source: str,
    *,
    allow_other: bool,
    noexec: bool,
    handover: Handover | None,
) -> int:
    """Mount on `mountpoint`, or go on with the keeper's mount; the descriptor of /dev/fuse.

    Raises RuntimeError as libfuse does, with its reason on standard error; MountError.
    """
    fastpath.libfuse_in_use()
    if handover is None:
        device = _mount(operations, mountpoint, source, allow_other=allow_other, noexec=noexec)
    else:
        device = handover.connection_fd
        fastpath.feed(handover.init)
        pyfuse3.init(operations, f"/dev/fd/{device}", {"default_permissions"})  # whoever mounts has set the options
    fastpath.check_in_front()
    os.set_blocking(device, False)  # the extension asks whether there is another request
    return device


def _mount(operations: pyfuse3.Operations, mountpoint: str, source: str, *, allow_other: bool, noexec: bool) -> int:
    options = {
        "ro",
        "default_permissions",
        "subtype=hfs",
        "fsname=hfs#" + source.replace("\\", "\\\\").replace(",", "\\,"),
    }
    if allow_other:
        options.add("allow_other")
    if noexec:
        options.add("noexec")
    before = fastpath.connections()
    pyfuse3.init(operations, mountpoint, options)
    (device,) = fastpath.connections() - before
    return device
