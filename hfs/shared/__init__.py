"""One reader a node for MPI programs: batches read once by the node's root, seen by all its ranks in shared memory.

LMDBIO-LMM (Pumma et al., "I/O Bottleneck Investigation in Deep Learning Systems", section 2): many processes that read
the same file are all woken by each other's I/O; so one root process a node reads, and hands the others the data through
MPI-3 shared memory. What is read, with explicit reads from a layout, is LMDBIO's DIO, PROV and COAL.

    batches        NodeBatches, what a training loop uses
    node_ranks     the ranks of a node, and the memory that MPI gives them; the only file that calls MPI
    batch          Batch: one rank's view of one batch
    reader         the root's thread: draws the order, reads ahead into the window, publishes
    samples        where the bytes come from: a layout, or a function of the user's
    window         what lies where in the shared memory; waiting for each other, by POSIX semaphores; who has died

Imports no MPI until a NodeBatches is made: importing mpi4py.MPI makes a process an MPI process.
"""

from hfs.shared.batch import Batch
from hfs.shared.batches import NodeBatches, NodeStatistics
from hfs.shared.node_ranks import NodeWindow
from hfs.shared.window import RankLost

__all__ = ["Batch", "NodeBatches", "NodeStatistics", "NodeWindow", "RankLost"]
