"""Objects in files of their own, or in packs: what to write them costs while old ones go, by a program in C.

It does nothing else, so what it gains is more than a daemon could: that also looks up, reads, pushes and answers.
"""

import subprocess
from pathlib import Path

from scripts.benchmarks.common import WORK, Work, run
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.options import Options
from scripts.benchmarks.planes_warm import THREADS
from scripts.benchmarks.table import Row

SOURCE = Path(__file__).resolve().parent / "floor" / "objects.c"
OBJECTS, OBJECTS_QUICK = 100_000, 5_000
KEPT = 2_000
"""So few that old ones go before the disk has them: else all of them wait for it."""

SIZES = (10_000, 43_000, 110_000)
WAYS = ("files", "packs")


def objects(work: Work, options: Options, command: str) -> list[Row]:
    """Both ways in turn, for each size."""
    got = Results(command)
    count = options.size(OBJECTS, OBJECTS_QUICK)
    program = WORK / "objects"
    run("cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-o", program, SOURCE, "-lpthread")
    for _ in range(options.runs):
        for size in SIZES:
            with got.attempt(f"gain {size}", *(f"{way} {size} {what}" for way in WAYS for what in ("speed", "cpu"))):
                for way in WAYS:
                    arguments = [way, work.new(way), size, count, KEPT, THREADS]
                    done = subprocess.run(
                        [program, *map(str, arguments)], check=True, capture_output=True, text=True
                    ).stdout
                    speed, cpu_us = map(float, done.split())
                    got.add(f"{way} {size} speed", speed)
                    got.add(f"{way} {size} cpu", cpu_us)
                got.add(f"gain {size}", got.last(f"packs {size} speed") / got.last(f"files {size} speed"))
    rows: list[Row] = []
    for size in SIZES:
        what = f"{OBJECTS} objects of {size // 1000} KB, {KEPT} of them kept{options.scale(OBJECTS, OBJECTS_QUICK)}"
        rows.append(got.row(f"{what}: packs / a file each", f"gain {size}"))
        for way, words in (("files", "a file each"), ("packs", "packs")):
            rows.append(got.row(f"  {words}", f"{way} {size} speed", None, "/s"))
            rows.append(got.row(f"  CPU of {words}", f"{way} {size} cpu", None, "us"))
    return rows
