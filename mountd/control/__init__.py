"""The control socket: its server, and the commands behind it.

Each request is a struct of `mountd.wire`. It asks the other rooms and never waits for a source that hangs.
"""

from hfs.mountd.control.cache_commands import CacheCommands, RefreshWork, StagedCommands
from hfs.mountd.control.connection import Report
from hfs.mountd.control.control import ClusterStatus, Commands, record_reads, serve, socket_path
from hfs.mountd.control.estimate import WarmEstimate
from hfs.mountd.control.traffic import Traffic
from hfs.mountd.control.tunnels import Tunnels
from hfs.mountd.control.warm import Warming, WarmRates
from hfs.mountd.control.warm_nodes import WarmFetches
