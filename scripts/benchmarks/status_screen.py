"""Row of the screen: `hfs status` of a mount with a million names, of which 64 learners have told an order.

The source is in memory: what is timed is the command, from its start to its last line, and what the daemon does for it.
"""

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator

import numpy as np

from hfs.client.client import Client, find_socket
from hfs.layouts.files import files_layout
from hfs.mountd.wire.hints import encode_layout, layout_digest
from hfs.mountd.wire.protocol import Join
from hfs.training.hint_connection import HintConnection
from scripts.benchmarks.common import HFS, BenchError, Mount, Work, hfs_mount, run
from scripts.benchmarks.options import Options
from scripts.benchmarks.planes_names import FOLDER, tree
from scripts.benchmarks.table import Row, at_most, median_row

FOLDERS, FOLDERS_QUICK = 1000, 20
LEARNERS = 64
REPEATS = 10
_SETTLED_S = 120


@contextlib.contextmanager
def _learners(mount: Mount, folders: int) -> Iterator[None]:
    paths = [
        mount.path / f"{folder:04d}" / f"{number:06d}.jpg" for folder in range(folders) for number in range(FOLDER)
    ]
    layout = files_layout(paths, str(mount.path))
    blob = encode_layout(layout.frame(""))
    digest, order = layout_digest(blob), np.random.default_rng(3).permutation(len(paths))
    with contextlib.ExitStack() as stack:
        for rank in range(LEARNERS):
            join = Join(digest, "train", "bench", rank, LEARNERS, f"learner {rank}")
            learner = HintConnection.join(find_socket(str(mount.path)), join, blob)
            stack.callback(learner.close)
            learner.send_order(0, order[rank::LEARNERS])
            learner.wait_answered(_SETTLED_S)
        yield


def screen(work: Work, options: Options, command: str) -> list[Row]:
    """Every name has been looked up before, so that the daemon knows all of them."""
    folders = options.size(FOLDERS, FOLDERS_QUICK)
    times, slowest, lines, of_daemon, of_commands = [], [], [], [], []
    with hfs_mount(work, tree(work, folders)) as mount:
        found = subprocess.run(["find", mount.path, "-type", "f", "-size", "-1"], capture_output=True, check=True)
        if found.stdout.count(b"\n") != folders * FOLDER:
            raise BenchError("not all names were found")
        with _learners(mount, folders):
            if len(json.loads(run(HFS, "status", "--json", mount.path))["hints"]["learners"]) != LEARNERS:
                raise BenchError("not all learners are known")
            for _ in range(options.runs):
                took = []
                for _ in range(REPEATS):
                    begin_s = time.monotonic()
                    shown = run(HFS, "status", mount.path)
                    took.append(time.monotonic() - begin_s)
                    lines.append(shown.count("\n"))
                times.append(float(np.median(took)))
                slowest.append(max(took))
                begin_s = time.monotonic()
                Client(find_socket(str(mount.path))).status()
                of_daemon.append(time.monotonic() - begin_s)
                begin_s = time.monotonic()
                run(HFS, "--version")
                of_commands.append(time.monotonic() - begin_s)
    names = f"{FOLDERS * FOLDER} names{options.scale(FOLDERS, FOLDERS_QUICK)}, {LEARNERS} learners"
    return [
        median_row(f"hfs status, {names}: lines", lines, "", command, at_most(40)),
        median_row(f"  time, median of {REPEATS}", times, "s", command, at_most(0.2)),
        median_row("  the slowest of them", slowest, "s", command),
        median_row("  the daemon's part", of_daemon, "s", command),
        median_row("  hfs --version", of_commands, "s", command),
    ]
