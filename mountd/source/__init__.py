"""The only reader of the shared file system: stat, listings, large and small reads, identities, users.

Nobody else opens a path below SOURCE. Everything blocks in threads of its own with a time limit; what hangs is
abandoned and counted, and takes a bounded share. It never writes to the source, never keeps bytes, and knows of no
cache and no names that the kernel holds.
"""

from hfs.mountd.source.as_user import SourceAsUser, WantedAccess, open_as_user
from hfs.mountd.source.identity import FileSystemSeen, identify, is_private
from hfs.mountd.source.listing import Block, Lister, Listing
from hfs.mountd.source.metadata import MetadataReader
from hfs.mountd.source.second_looks import Rewritten
from hfs.mountd.source.source import DelegatedDirectory, Source
from hfs.mountd.source.threads import ReadingUser, SourceThreads, be_closed, why_impossible
