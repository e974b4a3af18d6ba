"""The address at which metrics are answered: listened at as soon as it is free, and no client can do harm there.

A client has five seconds for all of it. At most eight are served at a time: the one that has been there for longest
goes when another comes, so that those who send nothing keep nobody out. And at most a hundred are let in a second,
whatever they want, so that they cost the daemon a twentieth of a core at the worst. What does not get in waits in the
kernel, which drops what is too much.

An address that is in use is tried again for as long as the mount lives: the mount goes on without. Event loop only.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

import trio

from hfs.mountd.core.background import note_fault, start_guarded
from hfs.mountd.core.config.address import Address, address_of
from hfs.mountd.core.open_files import OpenFiles, is_refusal
from hfs.mountd.monitoring.client import ClientWaits, MetricsClient

log = logging.getLogger(__name__)

CLIENTS = 8
"""Two collectors that ask at once, people with curl, and room for those that are slow."""
CLIENT_S = 5.0
"""A collector waits ten seconds by default, and sends its request at once."""
_APART_S = 0.01
_BACKLOG = 32

FIRST_AGAIN_S, LONGEST_AGAIN_S = 0.2, 15.0
"""An address in use is tried again after 0.2, 0.4, 0.8 ... 15 s."""
PATIENCE_S = 5.0
"""So long the port may still be that of the daemon before, whose last threads are just ending, and nothing is said."""

_TASK = "metrics connection"


class MetricsServer:
    """`listen_nowait` once, then `run`, which ends with `close`."""

    def __init__(
        self, address: str, metrics: Callable[[bool], bytes], open_files: OpenFiles, *, patience_s: float
    ) -> None:
        """`metrics(openmetrics)`: what is told, in one form or the other. `patience_s`: so long nothing is said of an
        address that is in use."""
        self.wanted = address_of(address)
        self.found: Address | None = None
        """Where it listens; its port is never 0."""
        self.error: str | None = None
        """Why it does not, for people."""
        self.answered = 0
        self.refused = 0
        """Requests that were none, or not for metrics, and clients that were too slow or too many."""
        self._metrics = metrics
        self._open_files = open_files
        self._patience_s = patience_s
        self._listener: socket.socket | None = None
        self._scope = trio.CancelScope()
        self._closed = False
        self._waiting: list[trio.CancelScope] = []
        """Clients that are not done yet, the oldest first."""

    def listen_nowait(self) -> bool:
        """Listen, if that is possible now. Whether it does."""
        host, port = self.wanted
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            # Else the connections of the daemon before, which are long over, keep the port for a minute.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setblocking(False)
            listener.bind((host, port))
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            self.error = (
                f"cannot listen at {self.wanted}: {error.strerror}; the mount goes on without, and tries again; "
                "--metrics 0 takes any port that is free"
            )
            return False
        self._listener, self.error = listener, None
        self.found = Address(host, listener.getsockname()[1])
        log.info("metrics are at http://%s/metrics", self.found)
        return True

    async def run(self) -> None:
        """Answer until `close` is called."""
        if self._closed:
            return
        with trio.CancelScope() as self._scope:
            while True:
                listening = await self._wait_listening()
                self._listener = None  # closed at the end of this, whatever that is
                try:
                    await self._let_all_in(listening)
                finally:
                    self.found = None
                    listening.close()

    def close(self) -> None:
        """Nobody is let in any more, and who is in goes."""
        self._closed = True
        self._scope.cancel()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _let_all_in(self, listener: socket.socket) -> None:
        async with trio.open_nursery() as nursery:
            last_s = -_APART_S
            while True:
                await trio.lowlevel.wait_readable(listener)
                try:
                    self._let_in(nursery, listener.accept()[0])
                except BlockingIOError:
                    continue  # it has gone
                except OSError as error:
                    if is_refusal(error):
                        self._open_files.refuse()
                    await trio.sleep(_APART_S)
                await trio.sleep_until(last_s + _APART_S)
                last_s = trio.current_time()

    async def _wait_listening(self) -> socket.socket:
        pause_s, began_s, said = FIRST_AGAIN_S, trio.current_time(), False
        while self._listener is None:
            if not said and trio.current_time() - began_s >= self._patience_s:
                said = True
                log.warning("metrics: %s", self.error)
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_AGAIN_S)
            self.listen_nowait()
        return self._listener

    def _let_in(self, nursery: trio.Nursery, connection: socket.socket) -> None:
        connection.setblocking(False)
        client = MetricsClient(connection, self._metrics)
        waits = None
        try:
            waits = client.move_on_nowait()
        except OSError:
            pass  # it went away
        except Exception as error:  # noqa: BLE001 - a fault of ours costs this client alone
            note_fault(_TASK, error)
        if waits is None:
            self._is_over(client)
            return
        if len(self._waiting) >= CLIENTS:
            self._waiting.pop(0).cancel()
        scope = trio.CancelScope(deadline=trio.current_time() + CLIENT_S)
        self._waiting.append(scope)
        start_guarded(nursery, _TASK, self._serve, client, waits, scope)

    async def _serve(self, client: MetricsClient, waits: ClientWaits | None, scope: trio.CancelScope) -> None:
        try:
            with scope:
                while waits is not None:
                    ready = trio.lowlevel.wait_readable if waits is ClientWaits.TO_READ else trio.lowlevel.wait_writable
                    await ready(client.connection)
                    waits = client.move_on_nowait()
        except OSError:
            pass  # it went away
        finally:
            if scope in self._waiting:
                self._waiting.remove(scope)
            self._is_over(client)

    def _is_over(self, client: MetricsClient) -> None:
        client.close()
        if client.answered:
            self.answered += 1
        else:
            self.refused += 1
