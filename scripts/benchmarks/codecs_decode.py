"""Rows of single samples in memory: ratio, accuracy, and decoding against what it replaces."""

import gzip
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hfs.codecs import decode, encode
from hfs.codecs.converting import accuracy
from hfs.codecs.sample import unpack
from scripts.benchmarks import codecs_data, data
from scripts.benchmarks.common import BenchError, Work, reader, seconds, slowfs
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_least, at_most

FEWEST_GROUPS, MOST_GROUPS = 30_000, 37_000
"""Distinct groups of four in a volume, for the rows to be about what the paper is about."""

VOLUMES, VOLUMES_QUICK = 24, 6
FIELDS = 4

TIMES = 5
"""A time is the least of so many: what is slower was held up by others on the machine."""


def volumes_folder(work: Work, options: Options) -> Path:
    count = options.size(VOLUMES, VOLUMES_QUICK)
    return data.stamped(
        work.data / f"codecs-volumes-{count}",
        {"count": count, "made_by": 1},
        lambda path: codecs_data.write_volumes(path, count),
    )


def fields_folder(work: Work) -> Path:
    return data.stamped(
        work.data / "codecs-fields",
        {"count": FIELDS, "made_by": 2},
        lambda path: codecs_data.write_fields(path, FIELDS),
    )


def least_s(work: Callable[[], object]) -> float:
    def once() -> float:
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin

    return min(once() for _ in range(TIMES))


def read_s(work: Work, folder: Path) -> float:
    """Seconds for each raw sample of a folder, read from a cold `lustre` one after the other."""
    with slowfs(work, folder, "lustre") as source, reader("encoded.py", source.path) as program:
        files = sorted((folder / "raw").iterdir())
        return seconds(program.do(kind="bytes", names=[f"raw/{file.name}" for file in files])) / len(files)


def cosmoflow(work: Work, options: Options, command: str) -> list[Row]:
    folder = volumes_folder(work, options)
    got = Results(command)
    for run in range(options.runs):
        read = read_s(work, folder)
        for name, value in _of_volume(np.load(folder / "raw" / f"{run:04d}.npy"), read).items():
            got.add(name, value)
    what = "CosmoFlow-like, 128^3 x 4 int16"
    return [
        got.row(f"{what}: raw / encoded, decoded exactly equal", "ratio", at_least(3.7)),
        got.row("  distinct groups of four", "groups", unit=""),
        got.row("  distinct values", "values", unit=""),
        got.row("  raw / gzip", "gzip"),
        got.row("  encode", "encode", unit="s"),
        got.row("  decode with log1p to float16, one thread", "decode", unit="ms"),
        got.row("    time / that: NumPy log1p of the raw sample in memory", "numpy", at_least(2)),
        got.row("    time / that: torch log1p of it, as many threads as cores", "torch"),
        got.row("    time / that: gunzip and NumPy log1p", "gunzip", at_least(5)),
        got.row("    time / that: reading the raw sample from lustre", "read", at_least(2)),
        got.row("    two threads / that", "threads"),
        got.row("    as a tensor on the CPU / that", "tensor"),
        got.row("    channels first / that", "first"),
    ]


def _of_volume(counts: np.ndarray, read: float) -> dict[str, float]:
    """The figures of one sample; `read`: seconds that one takes to come from the source. Raises BenchError."""
    import torch

    begin = time.perf_counter()
    encoded = encode(counts)
    encode_s = time.perf_counter() - begin
    packed = gzip.compress(counts.tobytes(), codecs_data.GZIP_LEVEL)
    groups = len(unpack(encoded)[0].parts["entries"])
    if not FEWEST_GROUPS <= groups <= MOST_GROUPS:
        raise BenchError(f"a sample has {groups} distinct groups: not like those of the paper")
    if not np.array_equal(decode(encoded), counts):
        raise BenchError("a sample is not decoded to what it was")
    if not np.array_equal(decode(encoded, op="log1p"), np.log1p(counts).astype(np.float16)):
        raise BenchError("the logarithm of a sample is not what NumPy makes of it")
    one_s = least_s(lambda: decode(encoded, op="log1p"))
    return {
        "encode": encode_s,
        "groups": groups,
        "values": len(np.unique(counts)),
        "ratio": counts.nbytes / len(encoded),
        "gzip": counts.nbytes / len(packed),
        "decode": one_s * 1e3,
        "threads": least_s(lambda: decode(encoded, op="log1p", threads=2)) / one_s,
        "tensor": least_s(lambda: decode(encoded, op="log1p", device="cpu")) / one_s,
        "first": least_s(lambda: decode(encoded, op="log1p", channels="first")) / one_s,
        "numpy": least_s(lambda: np.log1p(counts).astype(np.float16)) / one_s,
        "torch": least_s(lambda: torch.from_numpy(counts).to(torch.float32).log1p_().to(torch.float16)) / one_s,
        "gunzip": least_s(lambda: gunzip(packed, counts.shape)) / one_s,
        "read": read / one_s,
    }


def gunzip(packed: bytes, shape: tuple[int, ...]) -> np.ndarray:
    return np.log1p(np.frombuffer(gzip.decompress(packed), np.int16).reshape(shape)).astype(np.float16)


def deepcam(work: Work, options: Options, command: str) -> list[Row]:
    folder = fields_folder(work)
    got = Results(command)
    for run in range(options.runs):
        read = read_s(work, folder)
        for name, value in _of_fields(np.load(folder / "raw" / f"{run % FIELDS:04d}.npy"), read).items():
            got.add(name, value)
    return [
        got.row("DeepCAM-like, 16 x 768 x 1152 float32: raw / encoded", "ratio", at_least(3)),
        got.row("  values off by more than 10 %", "off", at_most(3), "%"),
        got.row("    of these near zero (below 0.01 standard deviations)", "off near zero", unit="%"),
        got.row("    and elsewhere", "off elsewhere", unit="%"),
        got.row("  largest error, of the standard deviation of its channel", "worst", unit="%"),
        got.row("  lines that stay raw", "raw lines", unit="%"),
        got.row("  raw / encoded with max_relative_error=0.1", "bounded"),
        got.row("  encode", "encode", unit="s"),
        got.row("  decode and scale to float16, one thread", "decode", unit="ms"),
        got.row("    time / that: reading the raw sample from lustre", "read", at_least(1)),
        got.row("    two threads / that", "threads"),
        got.row("    as a tensor on the CPU / that", "tensor"),
    ]


def _of_fields(values: np.ndarray, read: float) -> dict[str, float]:
    """The same of fields."""
    asked = {"scale": [1 / size for _, size in codecs_data.UNITS], "shift": [middle for middle, _ in codecs_data.UNITS]}
    begin = time.perf_counter()
    encoded = encode(values)
    encode_s = time.perf_counter() - begin
    close = accuracy(values, decode(encoded, dtype="float32"), "first")
    bounded = encode(values, max_relative_error=0.1)
    one_s = least_s(lambda: decode(encoded, **asked))
    segments = unpack(encoded)[0].parts["segments"]
    return {
        "encode": encode_s,
        "ratio": values.nbytes / len(encoded),
        "raw lines": float((segments == 0).mean()) * 100,
        "off": close.off / close.values * 100,
        "off elsewhere": (close.off - close.near_zero_off) / close.values * 100,
        "off near zero": close.near_zero_off / close.values * 100,
        "worst": close.worst * 100,
        "bounded": values.nbytes / len(bounded),
        "decode": one_s * 1e3,
        "threads": least_s(lambda: decode(encoded, threads=2, **asked)) / one_s,
        "tensor": least_s(lambda: decode(encoded, device="cpu", **asked)) / one_s,
        "read": read / one_s,
    }
