"""The protocol adapter: pyfuse3's handlers, pages pushed to the kernel, interrupts. The only user of pyfuse3.

Handlers are a few lines: names to `namespace`, bytes to `files`; every fault becomes an errno by the one table. It
never decides.
"""

from hfs.mountd.fuse.boundary import Boundary
from hfs.mountd.fuse.directories import DirectoryReplies
from hfs.mountd.fuse.entries import EntryReplies
from hfs.mountd.fuse.fast_handlers import FastHandlers
from hfs.mountd.fuse.fuse import Fuse
from hfs.mountd.fuse.handlers import Handlers, XattrReplies
from hfs.mountd.fuse.interrupts import Interrupts
from hfs.mountd.fuse.opened_files import FileReplies
from hfs.mountd.fuse.push import KernelPageCache
from hfs.mountd.fuse.quota import RequestQuota
