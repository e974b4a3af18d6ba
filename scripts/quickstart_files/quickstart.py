"""The quickstart: trains a script twice on a simulated parallel file system, directly and through hfs, and compares.

Run by scripts/quickstart inside .venv. Makes the data set, mounts scripts/slowfs before it anew for each way (so that
each starts cold), runs the unmodified train.py (PyTorch) or train_numpy.py, and reads slowfs's own counters at the end
of each epoch. Everything lies below one folder (build/quickstart) and is gone at the end, mounts first, also after a
failure or Ctrl-C.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import make_images
import picture
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SLOWFS = ROOT / "scripts" / "slowfs" / "slowfs"
HFS_COMMAND = Path(sys.executable).parent / "hfs"

EPOCHS = 2
EPOCH_LINE = re.compile(r"epoch (\d+): ([\d.]+) s, loss ([\d.]+), accuracy ([\d.]+)")
PRESETS = ["lustre", "busy"]
SCRIPTS = {"torch": ("train.py", "PyTorch"), "numpy": ("train_numpy.py", "NumPy")}
"""Each model: the script that trains it, and what it is made with."""
DIRECT, HFS = "direct", "hfs run"
console = Console(highlight=False)


def unmount(point: Path) -> None:
    """Take away a mount, if there is one, whatever state it is in."""
    with open("/proc/self/mountinfo", errors="surrogateescape") as file:
        # Spaces and the like stand there as octal numbers.
        points = {re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), line.split()[4]) for line in file}
    if str(point) not in points:
        return
    for command in (["umount"], ["fusermount3", "-u"], ["umount", "-l"], ["fusermount3", "-uz"]):
        with contextlib.suppress(OSError):
            if subprocess.run([*command, point], stderr=subprocess.DEVNULL, check=False).returncode == 0:
                return


class Places:
    """The folders of one run, all below `work`."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.data, self.slow, self.mount, self.cache = (work / name for name in ("data", "slow", "mnt", "cache"))

    def clean_up(self) -> None:
        """Nothing of this or of an earlier, broken run stays: mounts first, so that nothing below them is touched."""
        unmount(self.mount)
        unmount(self.slow)
        shutil.rmtree(self.work, ignore_errors=True)

    @contextlib.contextmanager
    def cold(self, preset: str) -> Iterator[None]:
        """A simulated file system at `slow` that shows `data` and of which nothing is in memory; an empty cache."""
        for folder in (self.slow, self.mount, self.cache):
            folder.mkdir(exist_ok=True)
        subprocess.run([SLOWFS, "--preset", preset, self.data, self.slow], check=True)
        try:
            yield
        finally:
            unmount(self.mount)
            unmount(self.slow)
            shutil.rmtree(self.cache)

    def counters(self) -> dict[str, int]:
        """slowfs's own count of what has reached it."""
        descriptor = os.open(self.slow / ".slowfs", os.O_RDONLY)
        try:
            return json.loads(os.read(descriptor, 1 << 16))
        finally:
            os.close(descriptor)


def train(places: Places, command: list[str | Path]) -> list[dict[str, float]]:
    """Run a training command to its end, showing its output. One row per epoch, with what it asked of slowfs."""
    rows: list[dict[str, float]] = []
    before = places.counters()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stdout
        for line in process.stdout:
            console.print(f"  {line.rstrip()}", style="dim", markup=False, soft_wrap=True)
            if match := EPOCH_LINE.search(line):
                after = places.counters()
                requests = sum(after[kind] - before[kind] for kind in ("lookup", "getattr", "open", "readdir", "read"))
                rows.append(
                    {
                        "seconds": float(match[2]),
                        "loss": float(match[3]),
                        "requests": requests,
                        "bytes": after["read_bytes"] - before["read_bytes"],
                    }
                )
                before = after
    if process.returncode != 0 or len(rows) != EPOCHS:
        raise SystemExit(f"quickstart: the training ended with exit code {process.returncode} after {len(rows)} epochs")
    return rows


def show(results: dict[tuple[str, str], list[dict[str, float]]], made_with: str) -> None:
    """The table, and what it says. Fails if training through hfs computed anything else than training directly."""
    table = Table(title=f"An unmodified {made_with} script on a simulated parallel file system")
    table.add_column("source")
    table.add_column("way")
    for epoch in range(1, EPOCHS + 1):
        for column in (f"epoch {epoch}", "requests", "MB"):
            table.add_column(column, justify="right", no_wrap=True)
    for (preset, way), rows in results.items():
        cells = [(f"{row['seconds']:.1f} s", f"{row['requests']:.0f}", f"{row['bytes'] / 1e6:.1f}") for row in rows]
        table.add_row(preset, way, *(cell for row in cells for cell in row), end_section=way == HFS)
    console.print(table)
    console.print(
        "requests, MB: what reached the source, as the simulated file system counts it.\n"
        "lustre: a parallel file system in good order; busy: ten times slower.\n"
        "The data set is small: in epoch 2 the direct way finds its bytes in this machine's memory,\n"
        "where a real data set does not fit, and pays for lookups and opens only.",
        soft_wrap=True,
    )
    losses = {tuple(row["loss"] for row in rows) for rows in results.values()}
    if len(losses) != 1:
        raise SystemExit("quickstart: training through the mount gave other losses than training directly")
    console.print("The losses of every epoch are the same in all ways.")


def main() -> None:
    """Make, train, compare, clean up."""
    parser = argparse.ArgumentParser(prog="scripts/quickstart", description="Shows on one machine what hfs does.")
    parser.add_argument("--images", type=int, default=400, help="JPEG files of about 110 KB (default %(default)s)")
    parser.add_argument("--preset", nargs="+", choices=PRESETS, default=PRESETS, help="how slow the source is")
    parser.add_argument("--workers", type=int, default=2, help="processes that load (default %(default)s)")
    parser.add_argument("--model", choices=SCRIPTS, help="what is trained (default torch, where PyTorch is there)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the epochs into FILE (.png, .svg)")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "quickstart", help="folder to make and remove")
    args = parser.parse_args()
    has_torch = importlib.util.find_spec("torch") is not None
    if args.model == "torch" and not has_torch:
        raise SystemExit("quickstart: PyTorch is not installed here: scripts/setup --torch, or --model numpy")
    name, made_with = SCRIPTS[args.model or ("torch" if has_torch else "numpy")]
    if args.plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("quickstart: --plot needs matplotlib, which is not installed here: the extra plot has it")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise SystemExit("quickstart: /dev/fuse is missing or closed to this user, so nothing can be mounted here")
    # A closed terminal and a plain kill clean up as Ctrl-C does.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(130))

    places = Places(args.work.absolute())
    places.clean_up()
    try:
        places.data.mkdir(parents=True)
        if os.getloadavg()[0] > (cores := len(os.sched_getaffinity(0))):
            load = f"load {os.getloadavg()[0]:.1f} on {cores} cores"
            console.print(
                f"This machine is busy ({load}): this takes longer, and its times say less than on a quiet one."
            )
        size = make_images.make(places.data, args.images)
        console.print(f"made {args.images} JPEG files of {size / args.images / 1000:.0f} KB")
        script = [sys.executable, HERE / name]
        options = ["--epochs", str(EPOCHS), "--workers", str(args.workers)]
        hfs_run = [HFS_COMMAND, "run", "--source", places.slow, "--at", places.mount, "--cache", places.cache, "--"]
        results = {}
        for preset in args.preset:
            console.print(f"\n[bold]{preset}[/bold] $ python {name} slow")
            with places.cold(preset):
                results[preset, DIRECT] = train(places, [*script, places.slow, *options])
            console.print(
                f"\n[bold]{preset}[/bold] $ hfs run --source slow --at mnt --cache cache -- python {name} mnt"
            )
            with places.cold(preset):
                results[preset, HFS] = train(places, [*hfs_run, *script, places.mount, *options])
        console.print()
        show(results, made_with)
        if args.plot is not None:
            try:
                picture.draw({key: [row["seconds"] for row in rows] for key, rows in results.items()}, args.plot)
            except (OSError, ValueError) as error:
                raise SystemExit(f"quickstart: the picture cannot be drawn: {args.plot}: {error}") from None
            console.print(f"The picture is in {args.plot}.")
    finally:
        places.clean_up()


if __name__ == "__main__":
    main()
