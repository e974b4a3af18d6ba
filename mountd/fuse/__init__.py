"""The protocol adapter: pyfuse3's handlers, pages pushed to the kernel, interrupts. The only user of pyfuse3.

Handlers are a few lines: names to `namespace`, bytes to `files`; every fault becomes an errno by the one table. It
never decides.
"""

from mountd.fuse.fuse import Fuse
from mountd.fuse.push import KernelPageCache
from mountd.fuse.session import DevFuse

__all__ = ["DevFuse", "Fuse", "KernelPageCache"]
