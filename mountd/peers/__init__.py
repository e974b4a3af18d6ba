"""The daemons of other nodes: who owns a chunk, asking them, answering them, and read slots at the source.

Transports (MPI) are imported here only, once they are asked for. A peer that is slow, lost or wrong costs time, never a
read: every question has an end and the next rung follows. It never reads the source.
"""

from hfs.mountd.peers.answering import Bytes
from hfs.mountd.peers.asking import PeerAnswer
from hfs.mountd.peers.cluster_view import ClusterView
from hfs.mountd.peers.job import JobPeers
from hfs.mountd.peers.joining import JobLimits, OwnerTable
from hfs.mountd.peers.messages import NodeInfo
from hfs.mountd.peers.opening import Joining, Membership, end_mpi, open_joining
