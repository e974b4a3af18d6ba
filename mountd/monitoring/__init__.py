"""Monitoring: the daemon's figures for systems that collect them, over HTTP and as a file.

One table says what is told (`families`); prometheus-client writes it down, and is loaded only where that is wanted.
Whoever asks is given what is known in memory at that moment: nothing here waits for a source, a disk or another room,
and no client can make a reader of the mount wait, nor end the daemon. What cannot be told (a port that is taken, a
directory that is full) is told in the log and the status; the mount goes on.
"""

from hfs.mountd.monitoring.families import FAMILIES, Family
from hfs.mountd.monitoring.service import Monitoring

__all__ = ["FAMILIES", "Family", "Monitoring"]
