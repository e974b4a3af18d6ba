"""The protocol adapter: pyfuse3's handlers, pages pushed to the kernel, interrupts. The only user of pyfuse3.

Handlers are a few lines: names to `namespace`, bytes to `files`; every fault becomes an errno by the one table. It
never decides.
"""

from mountd.fuse.boundary import Boundary
from mountd.fuse.directories import DirectoryReplies
from mountd.fuse.entries import EntryReplies
from mountd.fuse.fast_handlers import FastHandlers
from mountd.fuse.fuse import Fuse
from mountd.fuse.handlers import Handlers
from mountd.fuse.interrupts import Interrupts
from mountd.fuse.opened_files import FileReplies
from mountd.fuse.push import KernelPageCache
from mountd.fuse.session import DevFuse
from mountd.fuse.xattrs import XattrReplies

__all__ = [
    "Boundary",
    "DevFuse",
    "DirectoryReplies",
    "EntryReplies",
    "FastHandlers",
    "FileReplies",
    "Fuse",
    "Handlers",
    "Interrupts",
    "KernelPageCache",
    "XattrReplies",
]
