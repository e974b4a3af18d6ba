"""Rows of what a link carries: chunks and parts over both transports, beside a plain TCP stream. Nothing else runs: no
daemon, no mount."""

import json
import secrets
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.benchmarks.common import READERS, BenchError, Work
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.nodes_daemons import PORT
from scripts.benchmarks.nodes_network import Network, network, why_not
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_least, skipped_row
from tests.mpi.harness import Job

PROGRAM = READERS / "part_rates.py"
CHUNKS, CHUNKS_QUICK = 1000, 200
CHUNK_BYTES, PART_BYTES = 1 << 20, 128 << 10
PARTS = 2000
LIMIT_S = 120.0

Found = list[dict[str, float]]
"""Of chunks, four at a time, and of parts, one after the other: see readers/part_rates.py."""


def _sizes(options: Options) -> str:
    chunks = options.size(CHUNKS, CHUNKS_QUICK)
    return f"{CHUNK_BYTES}:{chunks}:4,{PART_BYTES}:{options.size(PARTS, PARTS // 5)}:1"


def _pair(net: Network, out: Path, commands: Sequence[Sequence[str]]) -> Found:
    """The first gives, the second asks, each on a node of its own."""
    programs = [
        subprocess.Popen([*net.within(number), sys.executable, PROGRAM, *words], start_new_session=True)
        for number, words in enumerate(commands)
    ]
    try:
        for program in programs:
            if program.wait(LIMIT_S):
                raise BenchError(f"{PROGRAM.name} ended with exit code {program.returncode}; its message is above")
    except subprocess.TimeoutExpired:
        raise BenchError(f"{PROGRAM.name} did not end in {LIMIT_S:g} s") from None
    finally:
        for program in programs:
            program.kill()
            program.wait()
    found: Found = json.loads(out.read_text())
    return found


def _tcp(work: Work, options: Options, net: Network) -> Found:
    out, address = work.new("rates") / "out", net.address(0)
    words = (str(out), _sizes(options), "tcp")
    return _pair(net, out, [(*words, role, address, "7000") for role in ("give", "ask")])


def _zeromq(work: Work, options: Options, net: Network) -> Found:
    out, secret = work.new("rates") / "out", secrets.token_hex(32)
    hosts = [f"{net.address(number)}:{PORT}" for number in (0, 1)]
    words = (str(out), _sizes(options), "zeromq", ",".join(hosts))
    return _pair(net, out, [(*words, host, secret) for host in hosts])


def _mpi(work: Work, options: Options, *mca: str) -> Found:
    folder = work.new("job")
    out = folder / "out"
    job = Job(folder, 2, [sys.executable, str(PROGRAM), str(out), _sizes(options), "mpi"], list(mca), {})
    try:
        if job.finish():
            raise BenchError(f"mpirun failed: {job.text()[-1000:]}")
    finally:
        job.close()
    found: Found = json.loads(out.read_text())
    return found


def rates(work: Work, options: Options, command: str) -> list[Row]:
    if (reason := why_not()) is not None:
        return [skipped_row("rates between nodes", reason, command)]
    got = Results(command)
    for _ in range(options.runs):
        with network(2) as net:
            with got.attempt(*_keys("tcp")):
                _add(got, "tcp", _tcp(work, options, net))
            with got.attempt(*_keys("zeromq"), "zeromq share"):
                _add(got, "zeromq", _zeromq(work, options, net))
                got.add("zeromq share", got.last("zeromq rate") / got.last("tcp rate"))
        for kind, mca in {
            "mpi tcp": ("--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"),
            "mpi memory": (),
        }.items():
            with got.attempt(*_keys(kind), f"{kind} share"):
                _add(got, kind, _mpi(work, options, *mca))
                got.add(f"{kind} share", got.last(f"{kind} rate") / got.last("tcp rate"))
    what = f"chunks of 1 MiB from one node to another{options.scale(CHUNKS, CHUNKS_QUICK)}"
    rows = [got.row(f"{what}, plain TCP", "tcp rate", None, "MB/s")]
    for kind, words, bar in (
        ("zeromq", "ZeroMQ, encrypted: rate / plain TCP", None),
        ("mpi tcp", "MPI over TCP on one machine, not encrypted: rate / plain TCP", at_least(0.8)),
        ("mpi memory", "MPI over shared memory: rate / plain TCP", None),
    ):
        rows += [got.row(f"{what}, {words}", f"{kind} share", bar), got.row("  rate", f"{kind} rate", None, "MB/s")]
    rows += [
        got.row(f"a part of 128 KiB, {words}: {figure}", f"{kind} {figure}", None, "ms")
        for kind, words in {
            "tcp": "plain TCP",
            "zeromq": "ZeroMQ",
            "mpi tcp": "MPI over TCP",
            "mpi memory": "MPI",
        }.items()
        for figure in ("p50", "p99")
    ]
    return rows


def _keys(kind: str) -> list[str]:
    return [f"{kind} {figure}" for figure in ("rate", "p50", "p99")]


def _add(got: Results, kind: str, found: Found) -> None:
    chunks, parts = found
    for key, value in zip(
        _keys(kind), (chunks["bytes_per_s"] / 1e6, parts["p50_s"] * 1e3, parts["p99_s"] * 1e3), strict=True
    ):
        got.add(key, value)
