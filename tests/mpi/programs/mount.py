"""One daemon of a job: `hfs mount` at BASE/mnt-RANK with its cache in BASE/cache-RANK; options by rank as RANK:OPTION.

Ends in exec: the rank's process is the daemon.
"""

import os
import shutil
import sys
from pathlib import Path

source, base, *options = sys.argv[1:]
rank = os.environ["MPI_TEST_RANK"]  # from tests/mpi/start.py
mine = []
for option in options:
    number, colon, text = option.partition(":")
    if colon and number.isdigit():
        mine += [text] if number == rank else []
    else:
        mine.append(option)
mountpoint = Path(base) / f"mnt-{rank}"
mountpoint.mkdir(exist_ok=True)
command = shutil.which("hfs") or "hfs"
os.execv(
    command, [command, "mount", source, str(mountpoint), "--cache", f"{base}/cache-{rank}", "--peers", "mpi", *mine]
)
