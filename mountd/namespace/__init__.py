"""Names, node ids, attributes, listings, permissions: what the kernel has been told, and how long it holds.

The only writer of a node. One node id is one version of a file for ever. It asks the source through its bounded
questions, serves what was known while the source is silent, and never touches bytes.
"""

from mountd.namespace.answers import Answers
from mountd.namespace.believing import Believing
from mountd.namespace.journal import Inherited, Journal, open_journal
from mountd.namespace.namespace import Namespace, open_namespace, seconds
from mountd.namespace.nodes.links import by_any_name
from mountd.namespace.nodes.node import Dentry, Node, expire, pages_given, pages_lost, place_of, recall
from mountd.namespace.nodes.table import ROOT_ID
from mountd.namespace.permissions import Asker, Permissions, wanted_by
from mountd.namespace.refreshing import Refreshed, Refreshing
from mountd.namespace.statahead import EXPECTED
from mountd.namespace.status import NamesStatus
from mountd.namespace.xattrs import Xattrs

__all__ = [
    "EXPECTED",
    "ROOT_ID",
    "Answers",
    "Asker",
    "Believing",
    "Dentry",
    "Inherited",
    "Journal",
    "NamesStatus",
    "Namespace",
    "Node",
    "Permissions",
    "Refreshed",
    "Refreshing",
    "Xattrs",
    "by_any_name",
    "expire",
    "open_journal",
    "open_namespace",
    "pages_given",
    "pages_lost",
    "place_of",
    "recall",
    "seconds",
    "wanted_by",
]
