"""The address of the metrics, with real sockets in real time: slow clients, hostile ones, too many; a port in use.

Nothing here waits for a time to pass: limits are made short where a test is about them.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from hfs.mountd.monitoring import server as module
from hfs.mountd.monitoring.server import CLIENTS, MetricsServer

LIMIT_S = 20.0
GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
BODY = b"a 1\n" * 5_000
RESET = (socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def no_fault(error: BaseException) -> None:
    raise AssertionError from error


@contextlib.contextmanager
def serving(
    address: str = "127.0.0.1:0",
    text: Callable[[str], tuple[str, bytes]] = lambda accept: (f"text/plain; {accept}", BODY),
    *,
    note_fault: Callable[[BaseException], object] = no_fault,
    patience_s: float = 0.0,
) -> Iterator[MetricsServer]:
    server = MetricsServer(address, text, note_fault, patience_s=patience_s)
    server.start()
    try:
        yield server
    finally:
        server.close()
        until(lambda: server.socket.fileno() < 0)


def until(holds: Callable[[], object]) -> None:
    limit_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < limit_s


def connected(server: MetricsServer) -> socket.socket:
    until(lambda: server.found)
    assert server.found is not None
    return socket.create_connection(server.found, timeout=LIMIT_S)


def read_all(client: socket.socket) -> bytes:
    data = b""
    while part := client.recv(65536):
        data += part
    return data


def scrape(server: MetricsServer, request: bytes = GET) -> bytes:
    with connected(server) as client:
        client.sendall(request)
        return read_all(client)


def is_answered(server: MetricsServer) -> bool:
    found = scrape(server)
    return found.startswith(b"HTTP/1.1 200 OK\r\n") and found.endswith(b"\r\n\r\n" + BODY)


def test_clients_are_answered() -> None:
    with serving() as server:
        assert is_answered(server)
        with connected(server) as client:
            for byte in GET:  # in as many pieces as there can be
                client.sendall(bytes([byte]))
            assert read_all(client).endswith(BODY)
        until(lambda: server.answered == 2)
        assert server.refused == 0


@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        (b"GET /metrics HTTP/1.0\r\n\r\n", b"200 OK", BODY),
        (b"GET /metrics?name[]=x HTTP/1.1\r\naccept: liked\r\n\r\n", b"200 OK", BODY),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"200 OK", b""),
        (b"GET / HTTP/1.1\r\n\r\n", b"404 metrics are at /metrics", b"metrics are at /metrics\n"),
        (b"GET /metrics/../etc/passwd HTTP/1.1\r\n\r\n", b"404 metrics are at /metrics", b"metrics are at /metrics\n"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"501 Unsupported method ('POST')", b"Unsupported method ('POST')\n"),
    ],
)
def test_what_is_answered_to_what(request_: bytes, status: bytes, body: bytes) -> None:
    with serving() as server:
        head, _, found = scrape(server, request_).partition(b"\r\n\r\n")
        first, *fields = head.split(b"\r\n")
        assert (first, found) == (b"HTTP/1.1 " + status, body)
        assert b"Connection: close" in fields
        if b"liked" in request_:
            assert b"Content-Type: text/plain; liked" in fields
        until(lambda: (server.answered, server.refused) == ((1, 0) if status == b"200 OK" else (0, 1)))


@pytest.mark.parametrize(
    "rubbish", [b"\x16\x03\x01\x02\r\n\r\n", b"\r\n\r\n", b"x" * 70_000, b"PRI * HTTP/2.0\r\n\r\n"]
)
def test_rubbish_is_refused(rubbish: bytes) -> None:
    with serving() as server:
        with contextlib.suppress(ConnectionError):
            assert b" 200 " not in scrape(server, rubbish)
        until(lambda: server.refused == 1)
        assert is_answered(server)


def test_silent_clients_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than are served at a time: the oldest go, at once."""
    monkeypatch.setattr(module._Client, "timeout", 1e6)
    with serving() as server, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connected(server)) for _ in range(3 * CLIENTS)]
        for client in silent:
            with contextlib.suppress(ConnectionError):
                client.sendall(b"GET /metr")
        assert is_answered(server)
        with contextlib.suppress(ConnectionError):
            assert b" 200 " not in read_all(silent[0])
        until(lambda: server.refused >= 2 * CLIENTS)


def test_a_slow_client_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._Client, "timeout", 0.05)
    with serving() as server:
        with connected(server) as client, contextlib.suppress(ConnectionError):
            client.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
            assert read_all(client) == b""
        until(lambda: server.refused == 1)


def test_a_client_that_reads_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply larger than the kernel holds for it waits for five seconds, and for nobody else."""
    monkeypatch.setattr(module._Client, "timeout", 0.2)
    with serving(text=lambda _: ("text/plain", b"x" * (64 << 20))) as server, connected(server) as client:
        client.sendall(GET)
        until(lambda: server.refused == 1)


def test_a_client_that_goes_away_is_nobody_s_fault() -> None:
    with serving() as server:
        for sent in (b"", b"GET", GET):
            with connected(server) as client:
                client.sendall(sent)
                client.setsockopt(*RESET)
        until(lambda: server.answered + server.refused == 3)
        assert is_answered(server)


def test_no_more_than_a_hundred_are_let_in_a_second() -> None:
    """Of as many as wait; none of them is forgotten."""
    with serving() as server, contextlib.ExitStack() as stack:
        pauses = 0
        wait = server._closed.wait

        def waited(timeout: float | None = None) -> bool:
            nonlocal pauses
            pauses += timeout == 0.01
            return wait(timeout)

        server._closed.wait = waited  # type: ignore[method-assign]  # to see each pause
        clients = [stack.enter_context(connected(server)) for _ in range(20)]
        for client in clients:
            client.sendall(GET)
        assert all(read_all(client).endswith(BODY) for client in clients)
        until(lambda: server.answered == 20 <= pauses)


def test_a_fault_of_ours_costs_one_client() -> None:
    faults: list[BaseException] = []

    def broken(accept: str) -> tuple[str, bytes]:
        raise KeyError("figure")

    with serving(text=broken, note_fault=faults.append) as server:
        assert scrape(server) == scrape(server) == b""
        until(lambda: server.refused == 2)
    assert [repr(fault) for fault in faults] == ["KeyError('figure')"] * 2


def test_the_port_of_the_daemon_before_is_waited_for_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_AGAIN_S", 0.001)
    with serving() as first:
        assert is_answered(first)  # its connections are over, and remembered by the kernel for a minute
        with serving(str(first.found), patience_s=1e9) as second:
            assert second.found is None
            first.close()
            assert is_answered(second)


def test_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 on this machine: {error}")
    with serving("[::1]:0") as server:
        assert is_answered(server)
        assert str(server.found).startswith("[::1]:")
