"""`scripts/bench codecs`: encoded samples: how small, how close, how fast to decode, and what that makes of an epoch.

Only the list of the groups of rows; `scripts/bench codecs --only GROUP` measures one. Ratios are taken within a run.
"""

from collections.abc import Callable

from scripts.benchmarks import codecs_decode, codecs_epoch, codecs_staged
from scripts.benchmarks.common import Work
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row

RUNS = 3


def convergence(work: Work, options: Options, command: str) -> list[Row]:
    from scripts.benchmarks import codecs_convergence  # with torch, which takes seconds to load

    return codecs_convergence.convergence(work, options, command)


def gpu(work: Work, options: Options, command: str) -> list[Row]:
    from scripts.benchmarks import codecs_gpu

    return codecs_gpu.gpu(work, options, command)


GROUPS: dict[str, Callable[[Work, Options, str], list[Row]]] = {
    "cosmoflow": codecs_decode.cosmoflow,
    "deepcam": codecs_decode.deepcam,
    "epoch": codecs_epoch.epoch,
    "epoch-busy": codecs_epoch.epoch_busy,
    "staged": codecs_staged.staged,
    "staged-busy": codecs_staged.staged_busy,
    "convergence": convergence,
    "gpu": gpu,
}
