"""The control socket: its server, the commands behind it, and what status tells.

Each request is a struct of `mountd.wire`. It asks the other rooms and never waits for a source that hangs.
"""

from mountd.control.commands import Commands
from mountd.control.control import serve
from mountd.control.listening import socket_path
from mountd.control.status import StatusReport

__all__ = ["Commands", "StatusReport", "serve", "socket_path"]
