"""Opened files: how each is served (passed through, from the page cache, by the daemon), read, and let go.

One open and one read are told here from end to end. It never speaks FUSE and never asks the source but through `fetch`
and `namespace`.
"""

from mountd.files.delegations import Delegations
from mountd.files.handles import DirectoryHandle, Handles
from mountd.files.inheritance import have_names_looked_up, open_again
from mountd.files.io_mode import IoMode
from mountd.files.open_modes import OpenModes
from mountd.files.open_observers import OpenObservers
from mountd.files.opened_files import OpenedFiles
from mountd.files.opening import Opening
from mountd.files.page_faults import PageFaults
from mountd.files.page_fill import PageFill
from mountd.files.passthrough import Passthrough
from mountd.files.read_path import ReadPath
from mountd.files.readahead_windows import ReadaheadWindows
from mountd.files.readers import Readers
from mountd.files.recorder import Recorder
from mountd.files.refetching import Refetching
from mountd.files.residency import Residency
from mountd.files.sent_away import SentAway
from mountd.files.small_opens import SmallOpens
from mountd.files.status import TIERS, FilesStatus

__all__ = [
    "TIERS",
    "Delegations",
    "DirectoryHandle",
    "FilesStatus",
    "Handles",
    "IoMode",
    "OpenModes",
    "OpenObservers",
    "OpenedFiles",
    "Opening",
    "PageFaults",
    "PageFill",
    "Passthrough",
    "ReadPath",
    "ReadaheadWindows",
    "Readers",
    "Recorder",
    "Refetching",
    "Residency",
    "SentAway",
    "SmallOpens",
    "have_names_looked_up",
    "open_again",
]
