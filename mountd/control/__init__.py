"""The control socket: its server, the commands behind it, and what status tells.

Each request is a struct of `mountd.wire`. It asks the other rooms and never waits for a source that hangs.
"""

from hfs.mountd.control.cache_commands import CacheCommands
from hfs.mountd.control.cluster import ClusterStatus
from hfs.mountd.control.control import Commands, serve
from hfs.mountd.control.estimate import WarmEstimate
from hfs.mountd.control.listening import socket_path
from hfs.mountd.control.own_xattrs import OwnXattrs
from hfs.mountd.control.recordings import Recordings
from hfs.mountd.control.refresh import RefreshWork
from hfs.mountd.control.status import CounterStatus, StatusReport
from hfs.mountd.control.traffic import Traffic
from hfs.mountd.control.tunnels import Tunnels
from hfs.mountd.control.warm import Warming, WarmRates
from hfs.mountd.control.warm_nodes import WarmFetches

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
    "WarmRates",
    "Warming",
    "serve",
    "socket_path",
]
