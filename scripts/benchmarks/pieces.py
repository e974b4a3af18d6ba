"""What `scripts/bench all` measures, in pieces: one group of one benchmark each, with the file that keeps it.

A piece is up to date when nothing that it measures has changed since the commit that its file names.
"""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.benchmarks.common import ROOT, WORK
from scripts.benchmarks.main import BENCHMARKS

RESULTS = ROOT / "results"
QUICK_RESULTS = WORK / "quick"
"""Quick runs show that a piece works; they are not published."""

USUAL_S = 240.0
"""What a piece is taken to need of which no run is known."""

NIGHTLY = frozenset(
    {
        *(("trust", group) for group in ("soak", "calls")),
        *(("lmdbio", group) for group in ("random", "random-lustre", "ladder", "ladder-lustre")),
        *(("async-io", group) for group in ("samples-busy", "cosmoflow-busy", "buffers-busy")),
    }
)
"""They take longer than ten minutes."""

_ALL = ("mountd", "policies", "hfs")
SUBJECTS = {
    "async-io": (*_ALL,),
    "codecs": ("hfs/codecs", "policies/codecs", "mountd/cache"),
    "eviction": ("policies/cache", "policies/simulation"),
    "loading": ("policies/cluster", "hfs/training"),
    "lmdbio": ("mountd", "policies/prefetch", "hfs/layouts", "hfs/shared"),
    "status": ("mountd/control", "mountd/monitoring", "mountd/daemon", "hfs/cli", "hfs/client"),
    "trace": ("policies", "mountd/files", "mountd/fetch", "hfs/planning"),
    "why": ("policies/diagnosis", "hfs/cli", "mountd"),
}
"""Paths that a benchmark measures; all of the product, if it is not here."""


@dataclass(frozen=True)
class Piece:
    """One group of a benchmark."""

    benchmark: str
    group: str
    quick: bool = False

    @property
    def name(self) -> str:
        return f"{self.benchmark}-{self.group}"

    @property
    def file(self) -> Path:
        return (QUICK_RESULTS if self.quick else RESULTS) / f"{self.name}.json"

    @property
    def is_nightly(self) -> bool:
        return not self.quick and (self.benchmark, self.group) in NIGHTLY

    @property
    def subject(self) -> tuple[str, ...]:
        return SUBJECTS.get(self.benchmark, _ALL)

    def kept(self) -> dict[str, Any] | None:
        """What its file says; None: there is none, or it is of another kind of run."""
        try:
            record: dict[str, Any] = json.loads(self.file.read_text())
        except (OSError, ValueError):
            return None
        return record if record.get("quick") == self.quick else None

    def expected_s(self) -> float:
        """How long it took last."""
        spent_s = (self.kept() or {}).get("spent_s")
        return float(spent_s) if spent_s is not None else USUAL_S / (8 if self.quick else 1)

    def commits_since(self) -> int | None:
        """How many commits have changed what it measures since it was kept. None: it was not, or nobody knows when."""
        commit = ((self.kept() or {}).get("versions") or {}).get("commit", "").rstrip("+")
        if not commit:
            return None
        words = ["git", "rev-list", "--count", f"{commit}..HEAD", "--", *self.subject]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        return int(done.stdout) if done.returncode == 0 else None


def pieces(*, quick: bool, only: str | None = None) -> Iterator[Piece]:
    """All, in the order of the benchmarks' names. `only`: those whose name begins so."""
    for benchmark, module in sorted(BENCHMARKS.items()):
        for group in module.GROUPS:
            piece = Piece(benchmark, group, quick)
            if only is None or piece.name.startswith(only):
                yield piece
