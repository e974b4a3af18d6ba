"""The daemon: one process per node that is the only reader of the source.

Ranks; a file imports only lower ranks:
  1 errors, metrics, protocol, config, version, buffers   4 read_path
  2 flight, source, index, staging, fastpath              5 fuse, control, commands
  3 namespace, handles, prefetch                          6 daemon

The story of one read: kernel READ -> `fuse.read` -> `handles` (which version, which pattern) -> `read_path.read`: cut
to the end of the file, split at chunk boundaries, ask `readahead` and `density` what to fetch ahead, and for every
chunk: staged on NVMe (without waiting if its pages are in memory, else in a thread), or a fetch under way (joined), or
the source (one large read, the version checked before and after). The waiters are woken, then the chunk is staged. This
module imports nothing, because client code inside training jobs imports `mountd.protocol`.
"""
