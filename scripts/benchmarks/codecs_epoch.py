"""Rows of a whole epoch through the mount: volumes from a slow source to float16 tensors, encoded, raw and gzipped."""

import math

import numpy as np

from scripts.benchmarks.codecs_data import SIDE
from scripts.benchmarks.codecs_decode import VOLUMES, VOLUMES_QUICK, volumes_folder
from scripts.benchmarks.common import BenchError, Work, hfs_mount, reader, seconds, slowfs
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_least

KINDS = ("encoded", "raw", "gzip")
HOW = {" hint": "epoch 1 with a hint", "": "epoch 1 without", " again": "epoch 2 (staged)"}


def epoch(work: Work, options: Options, command: str, preset: str = "lustre") -> list[Row]:
    folder = volumes_folder(work, options)
    got = Results(command)
    for seed in range(options.runs):
        totals = []
        for kind in KINDS:
            files = sorted((folder / kind).iterdir())
            order = np.random.default_rng(seed).permutation(len(files))
            request = {"kind": kind, "names": [files[number].name for number in order], "shape": [SIDE, SIDE, SIDE, 4]}
            for hint in (False, True):
                with (
                    slowfs(work, folder / kind, preset) as source,
                    hfs_mount(work, source.path) as mount,
                    reader("encoded.py", mount.path) as program,
                ):
                    first = program.do(hint=hint, **request)
                    totals.append(first["total"])
                    got.add(f"{kind}{' hint' * hint}", seconds(first))
                    if not hint:
                        got.add(f"{kind} again", seconds(program.do(hint=False, **request)))
        if not all(math.isclose(total, totals[0]) for total in totals):
            raise BenchError(f"the tensors differ: {totals}")
        for kind in KINDS[1:]:
            for how in HOW:
                got.add(f"{kind}{how} / encoded", got.last(f"{kind}{how}") / got.last(f"encoded{how}"))
    count = options.size(VOLUMES, VOLUMES_QUICK)
    what = f"{count} volumes of 17 MB, 1 worker, random order, mount over {preset}, to float16 tensors with log1p"
    bar = at_least(3)
    rows = []
    for how, words in HOW.items():
        measured = None if how == " again" else bar
        rows += [
            got.row(f"{what}, {words}: raw / encoded", f"raw{how} / encoded", measured),
            got.row("  gzip / encoded", f"gzip{how} / encoded", measured if preset == "lustre" else None),
            *(got.row(f"  {kind}", f"{kind}{how}", unit="s") for kind in KINDS),
        ]
    return rows


def epoch_busy(work: Work, options: Options, command: str) -> list[Row]:
    return epoch(work, options, command, "busy")
