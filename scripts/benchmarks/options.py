"""How a benchmark is to be run, and what a quick run leaves out."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    quick: bool
    runs: int
    plots: Path = Path("plots")
    """Folder of the plots; made where one is written."""
    seed: int = 1
    """Of the first run, where what is done is drawn at random; each further run has the next one."""

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def part(self, whole: int, quick: int) -> int:
        """How many of `whole` are read where all would take more than ten minutes: a tenth, but 100 at least.

        The spread of the runs, each of which draws others, is the error of what is extrapolated. A quick run takes
        `quick`.
        """
        return min(whole, quick) if self.quick else min(whole, max(100, -(-whole // 10)))

    def scale(self, full: int, quick: int) -> str:
        """Words for the name of a row whose data a quick run makes smaller."""
        return f" [quick: {quick / full:.3g} of the data]" if self.quick else ""
