"""Rows of cold small files in a job of two nodes, all of them the other node's: it has them, or nobody has. Beside a
mount without peers, whose source lies in memory as theirs does."""

import random
from pathlib import Path

from hfs.client.cluster_map import ClusterMap
from hfs.layouts.layout import Layout
from scripts.benchmarks.common import HFS, Work, files_at, hfs_mount, preload, run
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.fastpath_staged import FILE_BYTES, FILES, FILES_QUICK, small_folder
from scripts.benchmarks.first_epoch_cold import READERS, read_by_four
from scripts.benchmarks.nodes_daemons import nodes
from scripts.benchmarks.nodes_network import network, why_not
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_least, skipped_row

OPTIONS = ("--placement", "replicate")
"""As is chosen where all fits into each cache."""
SETTINGS = "push=yes,buffer=128M"


def _owned_by_the_other(mount: Path, names: list[str]) -> list[str]:
    cluster = ClusterMap.ask(str(mount))
    owners = cluster.owners(Layout("\0".join(names).encode()))
    return [name for name, owner in zip(names, owners.tolist(), strict=True) if owner != cluster.node]


def small(work: Work, options: Options, command: str) -> list[Row]:
    if (reason := why_not()) is not None:
        return [skipped_row("cold small files", reason, command)]
    got, folder = Results(command), small_folder(work, options)
    for seed in range(options.runs):
        names = [str(path.relative_to(folder)) for path in files_at(folder)]
        random.Random(seed).shuffle(names)
        preload(folder)
        with got.attempt("has", "nobody", "plain", "has speed", "nobody speed"):
            for who in ("has", "nobody"):
                with (
                    network(2) as net,
                    nodes(work, net, folder, OPTIONS, SETTINGS) as both,
                ):
                    both.start((0, 1))
                    mine = _owned_by_the_other(both.mounts[0].path, names)
                    if who == "has":
                        run(HFS, "cache", "warm", both.mounts[1].path)
                        both.until_settled()
                    with_s = read_by_four(both.mounts[0].path, mine)
                with hfs_mount(work, folder) as plain:
                    plain_s = read_by_four(plain.path, mine)
                got.add(who, plain_s / with_s)
                got.add(f"{who} speed", len(mine) / with_s)
            got.add("plain", len(mine) / plain_s)
    scale = options.scale(FILES, FILES_QUICK)
    what = f"cold files of {FILE_BYTES // 1000} KB, {FILES // 2} of them{scale}, {READERS} readers"
    return [
        got.row(f"{what}, their owner has them: speed / without peers", "has", at_least(0.5)),
        got.row("  files a second", "has speed", None, "/s"),
        got.row(f"{what}, nobody has them: speed / without peers", "nobody", at_least(0.9)),
        got.row("  files a second", "nobody speed", None, "/s"),
        got.row("  without peers", "plain", None, "/s"),
    ]
