"""The protocol adapter: pyfuse3's handlers, pages pushed to the kernel, interrupts. The only user of pyfuse3.

Handlers are a few lines: names to `namespace`, bytes to `files`; every fault becomes an errno by the one table. It
never decides.
"""

from hfs.mountd.fuse.boundary import Boundary, Interrupts, RequestQuota
from hfs.mountd.fuse.directories import DirectoryReplies, EntryReplies
from hfs.mountd.fuse.fast_handlers import FastHandlers
from hfs.mountd.fuse.fuse import Fuse, KernelPageCache
from hfs.mountd.fuse.handlers import FileReplies, Handlers, XattrReplies
