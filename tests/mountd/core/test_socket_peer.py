"""The kernel names the process and the user at the other end of a socket."""

import os
import socket

from hfs.mountd.core.socket_peer import socket_peer, socket_peer_groups


def test_the_kernel_names_the_peer() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        assert socket_peer(ours) == (os.getpid(), os.geteuid(), os.getegid())
        assert sorted(socket_peer_groups(ours)) == sorted(os.getgroups())
