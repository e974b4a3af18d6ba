"""What a service manager is told: by a socket of its own, without waiting for it."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hfs.mountd.supervisor.keeper import SystemdUnit
from hfs.mountd.supervisor.loop import Loop


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        path = tmp_path_factory.mktemp("n") / "s"
        listener.bind(str(path) if request.param == "path" else f"\0{path}")
        listener.settimeout(20)
        yield listener


def address(manager: socket.socket) -> str:
    name = manager.getsockname()
    return "@" + name[1:].decode() if isinstance(name, bytes) else str(name)


@pytest.mark.parametrize("other", [{"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": ""}, {"WATCHDOG_USEC": "-1"}])
def test_a_watchdog_that_is_not_ours_is_not_fed(manager: socket.socket, other: dict[str, str]) -> None:
    loop = Loop()
    SystemdUnit({"NOTIFY_SOCKET": address(manager), "WATCHDOG_USEC": "2000", **other}, loop).ready()
    assert manager.recv(99) == b"READY=1"
    assert loop._timers == []


def test_nobody_listens(tmp_path: Path) -> None:
    environments: tuple[dict[str, str], ...] = (
        {},
        {"NOTIFY_SOCKET": str(tmp_path / "none")},
        {"NOTIFY_SOCKET": "@none"},
    )
    for environ in environments:
        service = SystemdUnit(environ, Loop())
        service.ready()
        service.stopping()
