"""The address at which metrics are answered: one thread lets clients in, and each of them is served by another.

The event loop is asked for the figures alone (`exposition`), so a client that is slow or silent costs a thread that
sleeps. Eight are served at a time: the one that has been there for longest goes when another comes, so that those who
send nothing keep nobody out. And at most a hundred are let in a second, whatever they want. What does not get in waits
in the kernel, which drops what is too much.

An address that is in use is tried again for as long as the mount lives: the mount goes on without.
"""

from __future__ import annotations

import contextlib
import http.server
import logging
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from hfs.mountd.core.config.key import Address, address_of

log = logging.getLogger(__name__)

CLIENTS = 8
"""Two collectors that ask at once, people with curl, and room for those that are slow."""
CLIENT_S = 5.0
"""For each step of a client. A collector waits ten seconds by default, and sends its request at once."""
_APART_S = 0.01

FIRST_AGAIN_S, LONGEST_AGAIN_S = 0.2, 15.0
"""An address in use is tried again after 0.2, 0.4, 0.8 ... 15 s."""


class _Client(http.server.BaseHTTPRequestHandler):
    """One request. What it sends is bytes of a stranger: bounded by the standard library, and never logged."""

    server: MetricsServer
    timeout = CLIENT_S
    protocol_version = "HTTP/1.1"
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(message)s\n"

    def do_GET(self) -> None:
        """Answer one request of the metrics."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "metrics are at /metrics")
            return
        kind, body = self.server.text(self.headers.get("Accept", ""))
        self.send_response(200)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")):
            self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
        self.server.clients[self.connection] = True

    do_HEAD = do_GET  # noqa: N815 - a name of the standard library's

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - a signature of the library's
        """Nothing is logged."""


class MetricsServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """`start` once, then `close`; both on the event loop, which they never block."""

    daemon_threads = True
    # Else the connections of the daemon before, which are long over, keep the port for a minute.
    allow_reuse_address = True
    request_queue_size = 32

    def __init__(
        self,
        address: str,
        text: Callable[[str], tuple[str, bytes]],
        note_fault: Callable[[BaseException], object],
        *,
        patience_s: float,
    ) -> None:
        """`text(accept)`: content type and metrics. `patience_s`: so long nothing is said of an address in use. Both
        functions are called in threads."""
        self.wanted = address_of(address)
        self.address_family = socket.AF_INET6 if ":" in self.wanted.host else socket.AF_INET
        super().__init__(self.wanted, _Client, bind_and_activate=False)
        self.text = text
        self.found: Address | None = None
        """Where it listens; its port is never 0."""
        self.error: str | None = None
        """Why it does not, for people."""
        self.answered = 0
        self.refused = 0
        """Requests that were none, or not for metrics, and clients that were too slow or too many."""
        self.clients: dict[socket.socket, bool] = {}
        """Those that are being served, the oldest first, and whether they have been given the metrics."""
        self._note_fault = note_fault
        self._patience_s = patience_s
        self._places = threading.Semaphore(CLIENTS)
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def start(self) -> None:
        """Listen now if that is possible, else as soon as it is."""
        self._listen()
        threading.Thread(target=self._run, name="metrics", daemon=True).start()

    def close(self) -> None:
        """Nobody is let in any more, and who is in goes."""
        self._closed.set()
        with self._lock:
            for connection in (self.socket, *self.clients):
                _end(connection)

    def _listen(self) -> None:
        try:
            self.server_bind()
            self.server_activate()
        except OSError as error:
            self.error = (
                f"cannot listen at {self.wanted}: {error.strerror}; the mount goes on without, and tries again; "
                "--metrics 0 takes any port that is free"
            )
            return
        self.found, self.error = Address(self.wanted.host, self.socket.getsockname()[1]), None
        log.info("metrics are at http://%s/metrics", self.found)

    def _run(self) -> None:
        pause_s, began_s, said = FIRST_AGAIN_S, time.monotonic(), False
        while self.found is None:
            if not said and time.monotonic() - began_s >= self._patience_s:
                said = True
                log.warning("metrics: %s", self.error)
            if self._closed.wait(pause_s):
                break
            pause_s = min(2 * pause_s, LONGEST_AGAIN_S)
            self._listen()
        while not self._closed.is_set():
            self.handle_request()
            self._closed.wait(_APART_S)
        self.found = None
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - a signature of the library's
        """Serve a client, in a thread; the one that has been there for longest goes if there are too many."""
        with self._lock:
            if len(self.clients) >= CLIENTS:
                _end(next(iter(self.clients)))
        self._places.acquire()
        with self._lock:
            self.clients[request] = False
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - a signature of the library's
        """A client has been served, or not."""
        super().shutdown_request(request)
        with self._lock:
            if self.clients.pop(request):
                self.answered += 1
            else:
                self.refused += 1
        self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401, ARG002 - as above
        """A fault of ours costs this client alone; one that goes away is nobody's fault."""
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):
            self._note_fault(error)


def _end(connection: socket.socket) -> None:
    """Whoever waits for it goes on."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
