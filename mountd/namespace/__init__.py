"""Names, node ids, attributes, listings, permissions: what the kernel has been told, and how long it holds.

The only writer of a node. One node id is one version of a file for ever. It asks the source through its bounded
questions, serves what was known while the source is silent, and never touches bytes.
"""

from hfs.mountd.namespace.answers import Answers
from hfs.mountd.namespace.journal import Inherited, Journal, open_journal
from hfs.mountd.namespace.links import LeadsOut, NamesNothing, is_link
from hfs.mountd.namespace.namespace import Namespace, open_namespace, seconds
from hfs.mountd.namespace.nodes.node import Dentry, Node, expire, pages_given, pages_lost, place_of, recall, tried
from hfs.mountd.namespace.nodes.table import ROOT_ID
from hfs.mountd.namespace.permissions import Asker, Permissions, Xattrs, wanted_by
from hfs.mountd.namespace.refreshing import Refreshed, Refreshing, SecondLookOutcomes
from hfs.mountd.namespace.statahead import EXPECTED
