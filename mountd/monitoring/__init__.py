"""Monitoring: the daemon's figures for systems that collect them, over HTTP and as a file.

One table says what is told (`families`). Whoever asks is given what is known in memory at that moment: nothing here
waits for a source, a disk or another room, and no client can make a reader of the mount wait, nor end the daemon. What
cannot be told (a port that is taken, a directory that is full) is told in the log and the status; the mount goes on.
"""

from hfs.mountd.monitoring.exposition import Exposition, Figure
from hfs.mountd.monitoring.families import FAMILIES, FIGURES, Family
from hfs.mountd.monitoring.service import MonitoringStatus, open_monitoring

__all__ = ["FAMILIES", "FIGURES", "Exposition", "Family", "Figure", "MonitoringStatus", "open_monitoring"]
