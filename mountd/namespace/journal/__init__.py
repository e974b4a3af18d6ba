"""What the next daemon has to know: node ids, handles and backing ids, in a small log that a kill cannot tear.

Written by the daemon that serves, read once by the one that follows it. It never decides what becomes of them.
"""

from hfs.mountd.namespace.journal.facts import NodeFact
from hfs.mountd.namespace.journal.journal import Inherited, Journal, open_journal

__all__ = ["Inherited", "Journal", "NodeFact", "open_journal"]
