"""Rows of decoding on a GPU: against the bytes that must be moved, and against decoding on the host."""

import time
from collections.abc import Callable

import torch

from hfs.codecs import decode, encode
from hfs.codecs.codec import Decoded
from scripts.benchmarks import codecs_data
from scripts.benchmarks.common import Work
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_least, at_most, skipped_row

TIMES = 20
COPY_BYTES = 1 << 30


def gpu(work: Work, options: Options, command: str) -> list[Row]:  # noqa: ARG001 - as all groups
    if not torch.cuda.is_available():
        return [skipped_row("decoding on a GPU", "there is no GPU here", command)]
    got = Results(command)
    bytes_a_s = _bandwidth()
    counts = codecs_data.volume(0)
    values, _ = codecs_data.fields(0)
    scale = [1 / size for _, size in codecs_data.UNITS]
    shift = [middle for middle, _ in codecs_data.UNITS]
    names = (
        ("cosmoflow", encode(counts), {"op": "log1p"}),
        ("deepcam", encode(values), {"scale": scale, "shift": shift}),
    )
    for _ in range(options.runs):
        for name, encoded, asked in names:
            out_bytes = decode(encoded, **asked).nbytes

            def there(encoded: bytes = encoded, asked: dict = asked) -> Decoded:
                return decode(bytearray(encoded), device="cuda", **asked)

            def here(encoded: bytes = encoded, asked: dict = asked) -> Decoded:
                return torch.from_numpy(decode(encoded, **asked)).to("cuda")

            floor_s = (len(encoded) + out_bytes) / bytes_a_s
            got.add(f"{name} floor", _kernels_s(there) / floor_s)
            got.add(f"{name} host", _least_s(here) / _least_s(there))
    rows = []
    for name in ("cosmoflow", "deepcam"):
        rows += [
            got.row(f"{name}: kernels on the GPU / time to move their bytes", f"{name} floor", at_most(2)),
            got.row("  decoded on the host and copied / decoded on the GPU, end to end", f"{name} host", at_least(2)),
        ]
    return rows


def _bandwidth() -> float:
    """Bytes read and written in a second by a copy on the device."""
    one = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(one)
    return 2 * COPY_BYTES / _least_s(lambda: other.copy_(one))


def _least_s(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(TIMES):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    return best


def _kernels_s(work: Callable[[], object]) -> float:
    """Time on the device of all but the copies from the host."""
    work()
    activity = torch.profiler.ProfilerActivity.CUDA
    with torch.profiler.profile(activities=[activity]) as profile:
        for _ in range(TIMES):
            work()
        torch.cuda.synchronize()
    spent_us = sum(event.device_time_total for event in profile.events() if "Memcpy HtoD" not in event.name)
    return spent_us / 1e6 / TIMES
