"""Several daemons under mpirun, each with its own cache and mount, over one source: what one has read is read once."""

import gc
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hfs.hint import hinted
from tests.fuse.harness import drop_pages, hfs_command, mounts_below, must, stopped, unmount_lazily, wait_gone
from tests.mpi.daemons import Daemons
from tests.support.pattern import pattern, write_pattern

FILES = {b"large.bin": (3, (3 << 20) + 12345), **{b"small-%02d" % i: (10 + i, 20_000 + i) for i in range(40)}}
CHUNK_BYTES = 64 << 10
TOTAL_BYTES = sum(size for _, size in FILES.values())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for name, (seed, size) in FILES.items():
        write_pattern(folder / name.decode(), seed, size)
    return folder


def read_all(mount: Path) -> None:
    """Read everything in a mount; every byte must be right. Its pages go afterwards."""
    for name, (seed, size) in FILES.items():
        path = mount / name.decode()
        assert path.read_bytes() == pattern(seed, 0, size), f"{path} is wrong"
        drop_pages(path)


def assert_read_once(nodes: Daemons) -> None:
    """All daemons together have read the source once; what the cache disk did not take in time may be read again."""
    allowed_bytes = 1.02 * TOTAL_BYTES + nodes.dropped_bytes(CHUNK_BYTES)
    assert sum(nodes.counters("source_read_bytes")) <= allowed_bytes, nodes.counters("staging_dropped")


@pytest.mark.parametrize("placement", [pytest.param("replicate", marks=pytest.mark.long), "partition"])
def test_the_source_is_read_once_for_all(placement: str, data: Path, daemons: Callable[..., Daemons]) -> None:
    nodes = daemons(data, 3, "--placement", placement, "-o", f"buffer={16 * CHUNK_BYTES}").wait()
    for rank in range(3):
        read_all(nodes.path(rank))
    assert_read_once(nodes)
    before = nodes.counters("peer_read_bytes")
    assert min(before) > 0
    for rank in range(3):
        read_all(nodes.path(rank))
    assert_read_once(nodes)
    again = [after - then for after, then in zip(nodes.counters("peer_read_bytes"), before, strict=True)]
    if placement == "replicate":
        assert sum(again) <= nodes.dropped_bytes(CHUNK_BYTES)
    else:
        assert sum(again) == pytest.approx(2 * TOTAL_BYTES, rel=0.1)  # less what memory held


def test_parts_of_a_large_file_read_at_random_come_from_their_owners(
    tmp_path: Path, daemons: Callable[..., Daemons]
) -> None:
    """Epochs of random reads in partition: the first reads the source once, the second not at all."""
    seed, size, part = 5, 24 << 20, 96 << 10
    folder = tmp_path / "data"
    folder.mkdir()
    write_pattern(folder / "large.bin", seed, size)
    nodes = daemons(folder, 2, "--placement", "partition", "-o", "push=no,buffer=4M", chunk="1M").wait()

    def epoch(number: int) -> None:
        starts = np.random.default_rng(number).permutation(np.arange(0, size - part, part))
        for rank in range(2):
            with open(nodes.path(rank) / "large.bin", "rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
                for start in starts[rank::2].tolist():
                    assert os.pread(file.fileno(), part, start) == pattern(seed, start, part), f"wrong at {start}"
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    epoch(1)
    must(hfs_command(), "cache", "warm", nodes.path(0))  # what no read has touched yet
    before = nodes.counters("source_read_bytes"), nodes.counters("peer_reads")
    epoch(2)
    assert nodes.counters("source_read_bytes") == before[0]
    assert min(after - then for after, then in zip(nodes.counters("peer_reads"), before[1], strict=True)) > 0


def test_a_killed_daemon_costs_the_others_nothing_but_time(data: Path, daemons: Callable[..., Daemons]) -> None:
    """kill -9 in mid-epoch: readers of the other mounts see no error, and its share has another owner."""
    nodes = daemons(data, 3, "--placement", "partition", "-o", f"buffer={16 * CHUNK_BYTES}").wait()
    read_all(nodes.path(2))
    names = sorted(FILES)
    for i, name in enumerate(names * 2):
        if i == 10:
            nodes.kill(1)
        for rank in (0, 2):
            seed, size = FILES[name]
            path = nodes.path(rank) / name.decode()
            assert path.read_bytes() == pattern(seed, 0, size)
            drop_pages(path)
    assert nodes.status(0)["peers"]["gone"] == nodes.status(2)["peers"]["gone"] != []
    shown = must(hfs_command(), "status", "--cluster", nodes.path(0))
    assert "gone" in shown
    assert f"{os.uname().nodename}#2" in shown
    before = sum(nodes.counters("source_read_bytes"))
    for rank in (0, 2):
        read_all(nodes.path(rank))
    read_again = sum(nodes.counters("source_read_bytes")) - before
    assert read_again <= nodes.dropped_bytes(CHUNK_BYTES), "what the lost one had is staged again, by its next owner"
    unmount_lazily(nodes.path(1))


def test_a_daemon_that_hangs_or_crashes_costs_the_others_nothing_but_time(
    data: Path, daemons: Callable[..., Daemons]
) -> None:
    """SIGSTOP: it is alive and says nothing. The others read all the same, and from it again when it goes on. One that
    crashes is followed by one that runs alone, since none can rejoin the job, and says so; to the others it is a node
    that is silent, as long as its keeper lives."""
    nodes = daemons(data, 3, "--placement", "partition", "-o", f"buffer={16 * CHUNK_BYTES},peer-timeout=500ms").wait()

    def faults() -> int:
        return sum(int(nodes.status(rank)["counters"]["peer_faults"]["value"]) for rank in (0, 2))

    read_all(nodes.path(2))
    silent = nodes.status(1)
    with stopped(silent["pid"], silent["keeper"]["pid"]):
        for rank in (0, 2):
            read_all(nodes.path(rank))
        assert faults() > 0
        host = os.uname().nodename
        assert f"{host}#1" in [name for rank in (0, 2) for name in nodes.status(rank)["peers"]["resting"]]
        assert nodes.status(0)["peers"]["gone"] == []
    for rank in range(3):
        read_all(nodes.path(rank))
    nodes.crash(1)
    for rank in (1, 0, 2):
        read_all(nodes.path(rank))
    peers = nodes.status(1)["peers"]
    assert peers["reason"] == "the daemon before this one has ended, and none can rejoin the job"
    assert nodes.status(1)["keeper"]["restarts"] == 1
    assert nodes.status(0)["peers"]["gone"] == nodes.status(2)["peers"]["gone"] == []


def test_nodes_take_turns_at_one_large_file(data: Path, daemons: Callable[..., Daemons]) -> None:
    """Where all of them together may read less at a time than each could; one is killed with a read slot or without."""
    nodes = daemons(data, 3, "--placement", "partition", "-o", f"buffer={16 * CHUNK_BYTES},stagger-job=1").wait()
    read_all(nodes.path(0))
    assert sum(nodes.counters("peer_read_slots")) >= FILES[b"large.bin"][1] // CHUNK_BYTES
    assert_read_once(nodes)
    nodes.kill(1)
    for rank in (0, 2):
        # Before that it is a node that does not answer, and counted as a fault where it takes long.
        nodes.wait_gone(rank)
        read_all(nodes.path(rank))
    assert sum(nodes.counters("peer_faults")) == 0
    unmount_lazily(nodes.path(1))


def test_daemons_that_do_not_fit_together_say_so(data: Path, daemons: Callable[..., Daemons]) -> None:
    """All refuse, and each names what differs, where, and the remedy."""
    different = (
        "--chunk=128K",
        "--placement=replicate",
        "-ostagger-job=3",
        "-opeer-timeout=3",
        "--source-id=0123456789abcdef",
    )
    nodes = daemons(data, 2, *(f"1:{option}" for option in different))
    assert nodes.job.finish() != 0
    first, second = (f"{os.uname().nodename}#{rank}" for rank in range(2))
    for rank in range(2):
        for said in (
            f"--chunk differs: 65536 on {first}; 131072 on {second}; give all the same",
            f"--placement differs: auto on {first}; replicate on {second}; give all the same",
            f"-o stagger-job differs: 64 on {first}; 3 on {second}; give all the same",
            f"-o peer-timeout differs: 10.0 on {first}; 3.0 on {second}; give all the same",
            "the source differs",
        ):
            assert said in nodes.job.err(rank), nodes.job.text()
        assert wait_gone(nodes.job.pid(rank))  # mpirun ends with the first of them
    assert not mounts_below(nodes.base)


@pytest.mark.long  # 15 s are waited for the daemon that has the cache to end (mountd/ledger/ledger.py)
def test_who_cannot_start_tells_the_others(data: Path, daemons: Callable[..., Daemons]) -> None:
    """One cache is in use: nobody waits for its daemon."""
    first = daemons(data, 1).wait()
    nodes = daemons(data, 2, f"1:--cache={first.base}/cache-0")
    assert nodes.job.finish() != 0
    assert "cannot start: " in nodes.job.err(0), nodes.job.text()
    assert "in use" in nodes.job.err(0)


def test_one_alone_has_no_peers_and_says_so(data: Path, daemons: Callable[..., Daemons]) -> None:
    """A world of one, as a daemon that is started again."""
    nodes = daemons(data, 1).wait()
    read_all(nodes.path(0))
    assert nodes.status(0)["peers"]["mode"] == "none"
    assert "runs alone" in nodes.job.err(0)


def test_a_node_without_room_reads_from_the_others(data: Path, daemons: Callable[..., Daemons]) -> None:
    """Its cache holds nothing: it owns nothing, and reads all from its peers."""
    nodes = daemons(data, 3, "1:--cache-size=64K", "--placement", "replicate").wait()
    read_all(nodes.path(0))
    read_all(nodes.path(1))
    assert nodes.counters("source_read_bytes")[1] == 0
    assert_read_once(nodes)


@pytest.mark.parametrize(("cache_bytes", "on"), [(TOTAL_BYTES, False), (TOTAL_BYTES // 3, True)])
def test_all_decide_alike_whether_to_encode(
    cache_bytes: int, on: bool, data: Path, daemons: Callable[..., Daemons]
) -> None:
    """One has looked how much there is; each sees whether its share fits."""
    nodes = daemons(
        data, 2, "--placement", "partition", "--stage-encoding", "auto", f"--cache-size={cache_bytes}"
    ).wait()
    assert [nodes.status(rank)["stage_encoding"]["on"] for rank in range(2)] == [on] * 2
    read_all(nodes.path(1))


def test_orders_of_several_nodes_read_the_source_once(data: Path, daemons: Callable[..., Daemons]) -> None:
    """Hinted learners, one on each node of a job that is partitioned, two epochs in orders of their own."""
    nodes = daemons(data, 3, "--placement", "partition", "-o", f"buffer={16 * CHUNK_BYTES}").wait()
    names = sorted(FILES)
    for epoch in range(2):
        for rank in range(3):
            order = np.random.default_rng([epoch, rank]).permutation(len(names))
            files = [nodes.path(rank) / name.decode() for name in names]
            sampler = hinted(order, files=files, mount=str(nodes.path(rank)), rank=rank, world=3)
            for index in sampler:
                seed, size = FILES[names[index]]
                assert files[index].read_bytes() == pattern(seed, 0, size), f"{files[index]} is wrong"
                drop_pages(files[index])
            del sampler
            gc.collect()
        assert_read_once(nodes)
    assert sum(nodes.counters("hints_refused")) == 0
    # And one unmounts while the others go on.
    must(hfs_command(), "umount", nodes.path(1))
    nodes.gone.add(1)
    assert wait_gone(nodes.job.pid(1), 0)
    read_all(nodes.path(2))
    assert len(nodes.status(2)["peers"]["gone"]) == 1
