"""Builds one daemon from the rooms, and takes it down again: every start beside its stop.

The only place that knows all rooms. It never serves a request itself.
"""

from hfs.mountd.daemon import daemon
from hfs.mountd.daemon.ending import Ending

__all__ = ["Ending", "daemon"]
