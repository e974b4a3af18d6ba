"""What another user's record says of his daemon is looked at before it is believed."""

import os
import socket
import threading
from pathlib import Path

import pytest

from hfs.mountd.ledger import Listed, Quota, QuotaRequest, ServedSource
from hfs.mountd.wire.protocol import Result, encode
from hfs.mounting.offline import held

GRANT = Quota(10, 7, 1)


def entry(path: Path, owner: int) -> Listed:
    serving = ServedSource(source=b"/s", device=1, inode=2, control=os.fsencode(path))
    return Listed(f"{owner}-a", GRANT, serving, True, QuotaRequest(3, 0))


@pytest.mark.parametrize(
    ("staged", "found"),
    [
        ({"room_bytes": 5, "pinned_bytes": 2}, (5, 2)),
        ({"room_bytes": "x"}, (7, 3)),
        ({"room_bytes": []}, (7, 3)),
        ([], (7, 3)),
    ],
)
def test_a_daemon_may_say_what_it_likes(tmp_path: Path, staged: object, found: tuple[int, int]) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(tmp_path / "s"))
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(encode(Result(detail={"staged": staged})))

        thread = threading.Thread(target=answer)
        thread.start()
        assert held(entry(tmp_path / "s", os.geteuid())) == found
        thread.join()


def test_nobody_is_asked_at_a_socket_of_somebody_else(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(tmp_path / "s"))
        listener.listen()
        listener.setblocking(False)
        assert held(entry(tmp_path / "s", os.geteuid() + 1)) == (7, 3)
        assert held(entry(tmp_path / "absent", os.geteuid())) == (7, 3)
        with pytest.raises(BlockingIOError):
            listener.accept()
