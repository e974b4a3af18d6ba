"""hfs: a read-only mount that shows training jobs a slow shared file system, cached on a local disk.

What people touch lives in this package: the command line (`hfs.cli`), the client of a mount's daemon
(`hfs.client.client`). The daemon is `mountd`, its decisions are `policies`. Training jobs import this package, so it
imports nothing.
"""

__version__ = "0.1.0"
