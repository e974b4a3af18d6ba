"""Opened files: how each is served (passed through, from the page cache, by the daemon), read, and let go.

One open and one read are told here from end to end. It never speaks FUSE and never asks the source but through `fetch`
and `namespace`.
"""

from hfs.mountd.files.delegations import Delegations
from hfs.mountd.files.handles import DirectoryHandle, FileHandle, Handles
from hfs.mountd.files.inheritance import have_names_looked_up, open_again
from hfs.mountd.files.io_mode import Impediments, IoMode
from hfs.mountd.files.open_modes import OpenModes, SentAway
from hfs.mountd.files.opened_files import OpenedFiles, OpenObservers
from hfs.mountd.files.opening import Opening, SmallOpens
from hfs.mountd.files.overlays import ChangedNames, KernelReads, Overlays
from hfs.mountd.files.passthrough import Passthrough, Refetching
from hfs.mountd.files.read_path import PageFaults, ReadaheadWindows, ReadPath
from hfs.mountd.files.readers import Readers, Recorder
from hfs.mountd.files.residency import PageFill, Residency
from hfs.mountd.files.unused_pages import UnusedPages
