"""The address of the metrics, with real sockets in real time: slow clients, hostile ones, too many; a port in use.

Nothing here waits for a time to pass: limits are made short where a test is about them.
"""

import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable

import pytest
import trio
import trio.testing

from hfs.mountd.core.background import start_guarded
from hfs.mountd.core.open_files import OpenFiles
from hfs.mountd.monitoring import server as module
from hfs.mountd.monitoring.server import CLIENTS, MetricsServer
from tests.conftest import Logs

pytestmark = pytest.mark.usefixtures("real_clock")

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
BODY = b"a 1\n" * 5_000


def new_server(address: str = "127.0.0.1:0", *, patience_s: float = 0.0) -> MetricsServer:
    return MetricsServer(address, lambda _: BODY, OpenFiles(1024), patience_s=patience_s)


@contextlib.asynccontextmanager
async def running(server: MetricsServer) -> AsyncIterator[int]:
    """The port."""
    async with trio.open_nursery() as nursery:
        start_guarded(nursery, "server", server.run)
        try:
            with trio.fail_after(20):
                while server.found is None:
                    await trio.sleep(0.001)
                yield server.found.port
        finally:
            server.close()


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[MetricsServer, int]]:
    server = new_server()
    assert server.listen_nowait()
    async with running(server) as port:
        yield server, port


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await trio.sleep(0.001)


async def read_all(client: trio.SocketStream) -> bytes:
    data = b""
    while part := await client.receive_some(65536):
        data += part
    return data


async def scrape(port: int) -> bytes:
    async with await trio.open_tcp_stream("127.0.0.1", port) as client:
        await client.send_all(GET)
        return await read_all(client)


async def is_answered(port: int) -> bool:
    found = await scrape(port)
    return found.startswith(b"HTTP/1.1 200 OK\r\n") and found.endswith(b"\r\n\r\n" + BODY)


async def test_clients_are_answered() -> None:
    async with serving() as (server, port):
        assert await is_answered(port)
        async with await trio.open_tcp_stream("127.0.0.1", port) as client:
            for byte in GET:  # in as many pieces as there can be
                await client.send_all(bytes([byte]))
            assert (await read_all(client)).endswith(BODY)
        await until(lambda: server.answered == 2)
        assert server.refused == 0


async def test_requests_that_are_there_already() -> None:
    """They have come before the daemon looks: what can be done is done without waiting."""
    server = new_server()
    assert server.listen_nowait()
    assert server.found is not None
    sent = [GET, b"", b"GET /met", GET, b"GET / HTTP/1.1\r\n\r\n", b"x" * 9_000, b"POST", GET + b"more", GET]
    with contextlib.ExitStack() as stack:
        early = []
        for data in sent:
            client = stack.enter_context(socket.create_connection(("127.0.0.1", server.found.port)))
            client.sendall(data)
            early.append(client)
        for silent in (1, 2):
            early[silent].shutdown(socket.SHUT_WR)
        early[6].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        early[6].close()  # a reset
        async with running(server):
            found = []
            for client in early[:6] + early[7:]:
                client.setblocking(False)
                stream = trio.SocketStream(trio.socket.from_stdlib_socket(client))
                found.append((await read_all(stream))[:12])
            await until(lambda: server.answered + server.refused == len(sent))
    ok = b"HTTP/1.1 200"
    assert found == [ok, b"", b"", ok, b"HTTP/1.1 404", b"HTTP/1.1 431", ok, ok]
    assert server.answered == 4


async def test_silent_clients_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than are served at a time: the oldest go, at once."""
    monkeypatch.setattr(module, "CLIENT_S", 1e9)
    async with serving() as (server, port), contextlib.AsyncExitStack() as stack:
        silent = []
        for _ in range(3 * CLIENTS):
            client = await trio.open_tcp_stream("127.0.0.1", port)
            silent.append(await stack.enter_async_context(client))
            await client.send_all(b"GET /metr")
        assert await is_answered(port)
        assert await read_all(silent[0]) == b""
        await until(lambda: server.refused >= 2 * CLIENTS)


async def test_a_slow_client_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLIENT_S", 0.05)
    async with serving() as (server, port):
        async with await trio.open_tcp_stream("127.0.0.1", port) as client:
            await client.send_all(b"GET /metrics HTTP/1.1\r\nX: ")
            with contextlib.suppress(trio.BrokenResourceError):
                assert await read_all(client) == b""
        await until(lambda: server.refused == 1)
        assert await is_answered(port)


async def test_a_client_that_reads_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply larger than the kernel holds for it waits for five seconds, and for nobody else."""
    monkeypatch.setattr(module, "CLIENT_S", 0.2)
    large = b"x" * (64 << 20)
    server = MetricsServer("127.0.0.1:0", lambda _: large, OpenFiles(1024), patience_s=0)
    assert server.listen_nowait()
    async with running(server) as port, await trio.open_tcp_stream("127.0.0.1", port) as client:
        await client.send_all(GET)
        await until(lambda: server.refused == 1)


async def test_a_huge_request_is_refused() -> None:
    async with serving() as (server, port):
        async with await trio.open_tcp_stream("127.0.0.1", port) as client:
            with contextlib.suppress(trio.BrokenResourceError):
                await client.send_all(b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 3_000)
            assert (await read_all(client)).startswith(b"HTTP/1.1 431 ")
        async with await trio.open_tcp_stream("127.0.0.1", port) as client:
            with contextlib.suppress(trio.BrokenResourceError):
                for _ in range(1_000):  # without an end
                    await client.send_all(b"x" * 65_536)
        await until(lambda: server.refused == 2)
        assert await is_answered(port)


async def test_a_client_that_goes_away_is_nobody_s_fault() -> None:
    async with serving() as (server, port):
        for sent in (b"", b"GET", GET):
            client = await trio.open_tcp_stream("127.0.0.1", port)
            if sent:
                await client.send_all(sent)
            # A reset, not an end.
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            await client.aclose()
        await until(lambda: server.answered + server.refused == 3)
        assert await is_answered(port)


async def test_many_at_once_are_let_in_one_after_the_other() -> None:
    """None of forty is forgotten."""
    answers: list[bool] = []

    async with serving() as (_, port), trio.open_nursery() as nursery:

        async def ask() -> None:
            with contextlib.suppress(OSError, trio.BrokenResourceError):
                answers.append(await is_answered(port))

        for _ in range(20):
            nursery.start_soon(ask)
    assert answers == [True] * 20


def test_no_more_than_a_hundred_are_let_in_a_second() -> None:
    """In virtual time, of as many as wait."""
    server = new_server()
    assert server.listen_nowait()
    assert server.found is not None
    count = 21

    async def main() -> float:
        async with trio.open_nursery() as nursery:
            start_guarded(nursery, "server", server.run)
            await until(lambda: server.answered == count)
            server.close()
        return trio.current_time()

    with contextlib.ExitStack() as stack:
        for _ in range(count):  # the kernel takes them, and what they send
            client = stack.enter_context(socket.create_connection(("127.0.0.1", server.found.port)))
            client.sendall(GET)
        begin_s = 1_000.0
        clock = trio.testing.MockClock(autojump_threshold=0)
        clock.jump(begin_s)
        assert begin_s + (count - 2) / 100 <= trio.run(main, clock=clock) < begin_s + 1


async def test_a_fault_of_ours_costs_one_client(logs: Logs) -> None:
    def broken(openmetrics: bool) -> bytes:
        raise KeyError("figure")

    logs.expect("unforeseen error in the background")
    server = MetricsServer("127.0.0.1:0", broken, OpenFiles(1024), patience_s=0)
    assert server.listen_nowait()
    async with running(server) as port:
        assert await scrape(port) == b""
        with socket.create_connection(("127.0.0.1", port)) as early:
            early.sendall(GET)  # before the server can look
            await until(lambda: server.refused == 2)
        assert await scrape(port) == b""
        assert server.refused == 3


async def test_a_port_in_use_is_taken_once_it_is_free(monkeypatch: pytest.MonkeyPatch, logs: Logs) -> None:
    """The mount goes on without, says so once, and tries again."""
    monkeypatch.setattr(module, "LONGEST_AGAIN_S", 0.01)
    monkeypatch.setattr(module, "FIRST_AGAIN_S", 0.01)
    logs.expect("cannot listen at 127.0.0.1:")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = new_server(f"127.0.0.1:{port}")
        assert not server.listen_nowait()
        assert "Address already in use" in str(server.error)
        async with trio.open_nursery() as nursery:
            start_guarded(nursery, "server", server.run)
            with trio.fail_after(20):
                await until(lambda: bool(logs.records))
                assert server.found is None
                taken.close()
                await until(lambda: server.found is not None)
                assert server.error is None
                assert await is_answered(port)
            server.close()
    assert len([record for record in logs.records if record.levelno >= logging.WARNING]) == 1


async def test_the_port_of_the_daemon_before_is_waited_for_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_AGAIN_S", 0.001)
    first = new_server()
    assert first.listen_nowait()
    assert first.found is not None
    port = first.found.port
    async with trio.open_nursery() as nursery:
        start_guarded(nursery, "first", first.run)
        assert await is_answered(port)  # its connections are over, and remembered by the kernel for a minute
        second = new_server(f"127.0.0.1:{port}", patience_s=1e9)
        assert not second.listen_nowait()
        start_guarded(nursery, "second", second.run)
        first.close()
        with trio.fail_after(20):
            await until(lambda: second.found is not None)
            assert await is_answered(port)
        second.close()


async def test_closed_before_it_ran() -> None:
    server = new_server()
    assert server.listen_nowait()
    server.close()
    await server.run()


async def test_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 on this machine: {error}")
    server = new_server("[::1]:0")
    assert server.listen_nowait(), server.error
    async with running(server) as port, await trio.open_tcp_stream("::1", port) as client:
        await client.send_all(GET)
        assert (await read_all(client)).endswith(BODY)
        assert str(server.found) == f"[::1]:{port}"
