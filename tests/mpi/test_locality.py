"""LocalityAwareSampler over real daemons: it asks one of them, and only what moves is read from other nodes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hfs.client.cluster_map import ClusterMap
from hfs.layouts.layout import Layout
from hfs.samplers import Locality, LocalityAwareSampler
from tests.fuse.harness import drop_pages
from tests.mpi.daemons import Daemons
from tests.support.pattern import pattern, write_pattern

NODES, FILES, BATCH = 2, 60, 20
CHUNK_BYTES = 64 << 10


def names() -> list[str]:
    return [f"d{number % 4}/{number}" for number in range(FILES)]


def size(number: int) -> int:
    return 20_000 + number


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    for number, name in enumerate(names()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_pattern(folder / name, number + 1, size(number))
    return folder


@pytest.mark.slow
def test_a_node_reads_from_others_only_what_moves(data: Path, daemons: Callable[..., Daemons]) -> None:
    nodes = daemons(data, NODES, "--placement", "partition", "-o", f"buffer={16 * CHUNK_BYTES}").wait()
    samplers = [
        LocalityAwareSampler(FILES, BATCH, 7, rank, NODES, Locality(nodes.path(rank), names(), learners=[0, 1]))
        for rank in range(NODES)
    ]
    assert all(sampler.local for sampler in samplers)
    assert len({sampler.digest for sampler in samplers}) == 1
    with pytest.raises(ValueError, match="learner 0 is on node 1 of the mount and not on node 0"):
        LocalityAwareSampler(FILES, BATCH, 7, 0, 2, Locality(nodes.path(1), names(), learners=[0, 1]))

    def epoch(number: int) -> int:
        """Bytes of the samples that move."""
        moved = 0
        owners = ClusterMap.ask(str(nodes.path(0))).owners(Layout("\0".join(names()).encode()))
        for rank, sampler in enumerate(samplers):
            sampler.set_epoch(number)
            for batch in sampler:
                for index in batch:
                    path = nodes.path(rank) / names()[index]
                    assert path.read_bytes() == pattern(index + 1, 0, size(index))
                    drop_pages(path)
                    moved += size(index) * (owners[index] != rank)
        return moved

    def read_bytes() -> tuple[int, int]:
        return sum(nodes.counters("source_read_bytes")), sum(nodes.counters("peer_read_bytes"))

    first, moved = read_bytes(), [epoch(0)]
    second = read_bytes()
    moved.append(epoch(1))
    third = read_bytes()
    total = sum(map(size, range(FILES)))
    dropped_bytes = nodes.dropped_bytes(CHUNK_BYTES)
    assert total <= second[0] - first[0] <= 1.02 * total + dropped_bytes, "in the first epoch the source is read once"
    assert third[0] - second[0] <= dropped_bytes
    # Memory may hold some of what moves since the first epoch; what is fetched ahead may be somebody else's.
    assert third[1] - second[1] <= 1.1 * moved[1] <= 0.2 * total
