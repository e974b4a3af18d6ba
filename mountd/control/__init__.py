"""The control socket: its server, the commands behind it, and what status tells.

Each request is a struct of `mountd.wire`. It asks the other rooms and never waits for a source that hangs.
"""

from mountd.control.cache_commands import CacheCommands
from mountd.control.cluster import ClusterStatus
from mountd.control.control import Commands, serve
from mountd.control.estimate import WarmEstimate
from mountd.control.listening import socket_path
from mountd.control.neighbours import ask_to_yield
from mountd.control.own_xattrs import OwnXattrs
from mountd.control.recordings import Recordings
from mountd.control.refresh import RefreshWork
from mountd.control.status import CounterStatus, StatusReport
from mountd.control.traffic import Traffic
from mountd.control.tunnels import Tunnels
from mountd.control.warm import Warming
from mountd.control.warm_nodes import WarmFetches

__all__ = [
    "CacheCommands",
    "ClusterStatus",
    "Commands",
    "CounterStatus",
    "OwnXattrs",
    "Recordings",
    "RefreshWork",
    "StatusReport",
    "Traffic",
    "Tunnels",
    "WarmEstimate",
    "WarmFetches",
    "Warming",
    "ask_to_yield",
    "serve",
    "socket_path",
]
