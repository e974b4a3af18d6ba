"""The daemon: one process per node that is the only reader of the source.

Rooms, each a package whose `__init__` says what it is, what it never does, and what others may use of it. A room knows
only those of lower rank:

  0 base                              errors, versions, attributes
  1 wire   core   native              messages; tools; C
  2 source cache  peers  kernel       the shared file system; staged files; other nodes; this kernel
  3 namespace                         names, node ids, attributes
  4 fetch                             how bytes get here
  5 hints                             the order of an epoch
  6 files                             open and read
  7 fuse   control                    the two faces
  8 daemon                            builds all of it
    supervisor                        starts daemons again; knows no other room

The story of one read: kernel READ -> `fuse` -> `files.read_path`: cut to the end of the file, split at chunk
boundaries, ask `policies` what to fetch ahead, and for every chunk: staged (without waiting if its pages are in memory,
else in a thread), or a fetch under way (joined), or another node, or the source (one large read, the version checked
before and after). The waiters are woken, then the chunk is staged. This module imports nothing, because client code
inside training jobs imports `hfs.mountd.wire`: what is called `mountd` here is linked in the folder hfs.
"""
