"""Which entries of a listing go to the kernel as names, and which in whole.

A name costs nothing but its bytes: no question to the source, no node, no lookup count. An entry with its attributes
spares its reader a look-up. So what is known goes in whole where the kernel would take it, everything else as a name.
Decides, and sends nothing.
"""

from __future__ import annotations

from hfs.mountd.namespace import Dentry, Namespace, Node
from hfs.mountd.source import Listing

_RUN = 64
"""Names looked at for one that is known, before they are sent: a reply has room for some thirty, or two hundred."""


def names_before(namespace: Namespace, node: Node, listing: Listing, start: int) -> tuple[int, Dentry | None]:
    """How many entries of one block from `start` on to send as names, and what the next one is if it is known."""
    block, index = listing.block(start)
    if not node.children:
        return len(block) - index, None
    end = min(len(block), index + _RUN)
    for i in range(index, end):
        name = block.name(i)
        dentry = namespace.names.known_nowait(node, name) if name in node.children else None  # leaves stay leaves
        if dentry is not None:
            return i - index, dentry
    return end - index, None
