"""The keeper's loop: what is ready at the same moment, and what is closed meanwhile."""

from __future__ import annotations

import socket

from hfs.mountd.supervisor.loop import Loop


def test_what_is_closed_by_what_came_before_it_is_not_called() -> None:
    """As when the mount ends while somebody asks the keeper something."""
    loop = Loop()
    pairs = [socket.socketpair() for _ in range(2)]
    called = []

    def close_all() -> None:
        called.append(1)
        for ours, theirs in pairs:
            loop.ignore(ours)
            ours.close()
            theirs.close()

    for ours, theirs in pairs:
        loop.watch(ours, close_all)
        theirs.send(b"x")
    loop.turn()
    assert called == [1]
