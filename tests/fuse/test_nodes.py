"""Daemons that share their caches without MPI: what one has read is read once, also after one was killed; and learners
that go on when nodes come and leave."""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import numpy as np

from hfs.client.cluster_map import ClusterMap
from hfs.layouts.layout import Layout
from hfs.policies.cache.admission import blocks_bytes
from hfs.samplers import LocalityAwareSampler
from tests.fuse.harness import Hfs, drop_pages
from tests.support.pattern import pattern, write_pattern

SECRET = "of tests" * 8
SIZES = [3_000_000, *range(20_000, 20_020)]
MANY = [6_000_000, *range(20_000, 20_300)]


def read_all(*nodes: Hfs) -> None:
    for hfs in nodes:
        read(hfs, range(len(SIZES)))


def read(hfs: Hfs, seeds: Iterable[int], sizes: list[int] = SIZES) -> None:
    for seed in seeds:
        path = hfs.path / str(seed)
        assert path.read_bytes() == pattern(seed + 1, 0, sizes[seed]), f"{path} is wrong"
        drop_pages(path)


@contextmanager
def some_nodes(
    folder: Path, *secrets: str, mounted: int = 3, sizes: list[int] = SIZES, cache_bytes: int = 1 << 30
) -> Iterator[list[Hfs]]:
    """A node for each secret, of which so many are mounted; they leave nothing behind."""
    (folder / "data").mkdir()
    for seed, size in enumerate(sizes):
        write_pattern(folder / "data" / str(seed), seed + 1, size)
    hosts = [f"127.{os.getpid() % 251 + 1}.{os.getpid() // 251 % 251}.{n + 1}:24370" for n in range(len(secrets))]
    options = ("--placement=partition", f"--peers={','.join(hosts)}", "--chunk=64K", f"--cache-size={cache_bytes}")
    nodes = []
    for host, secret in zip(hosts, secrets, strict=True):
        base = folder / f"node-{len(nodes)}"
        base.mkdir()
        (base / "secret").touch(0o600)
        (base / "secret").write_text(secret)
        mine = (*options, "-o", f"peer-secret={base}/secret,buffer=1M,peer-listen={host}")
        nodes.append(Hfs(folder / "data", base / "mnt", base / "cache", base / "log", mine))
    try:
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(Hfs.mount, nodes[:mounted]))
        yield nodes
    finally:
        faults = [fault for hfs in nodes for fault in hfs.close()]
    assert faults == []


def test_three_share_and_one_that_is_killed_is_a_member_again(tmp_path: Path) -> None:
    with some_nodes(tmp_path, *[SECRET] * 3) as nodes:
        read_all(*nodes)
        dropped = sum(hfs.status()["counters"]["staging_dropped"]["value"] for hfs in nodes) << 16
        assert sum(hfs.source_bytes() for hfs in nodes) <= 1.02 * sum(SIZES) + dropped
        while any(nodes[1].status()["staged"][what] for what in ("queued_bytes", "uncommitted_bytes")):
            pass
        nodes[1].crash()
        while not all(hfs.status() and "is here; its share" in hfs.log_text() for hfs in (nodes[0], nodes[2])):
            pass
        before = sum(hfs.source_bytes() for hfs in nodes)
        read_all(*nodes)
        assert sum(hfs.source_bytes() for hfs in nodes) - before <= 0.05 * sum(SIZES), "it serves what its cache holds"


def test_what_both_caches_have_no_room_for_is_read_from_the_source_once_an_epoch(tmp_path: Path) -> None:
    """Caches of half of the data together; each file is read by one node an epoch, and by the other in the next."""
    room = sum(blocks_bytes(size) + 4096 for size in MANY)
    with some_nodes(tmp_path, SECRET, SECRET, sizes=MANY, cache_bytes=room // 4) as nodes:
        source = []
        for epoch in range(3):
            for number, hfs in enumerate(nodes):
                read(hfs, [seed for seed in range(len(MANY)) if (seed + epoch) % 2 == number], MANY)
            while any(hfs.status()["staged"][what] for hfs in nodes for what in ("queued_bytes", "uncommitted_bytes")):
                pass
            source.append(sum(hfs.source_bytes() for hfs in nodes))
        dropped = sum(hfs.status()["counters"]["staging_dropped"]["value"] for hfs in nodes) << 16
        chunks = [
            (seed, at, min(1 << 16, size - at)) for seed, size in enumerate(MANY) for at in range(0, size, 1 << 16)
        ]
        files, starts, sizes = np.array(chunks).T
        names = "\0".join(map(str, range(len(MANY)))).encode()
        layout = Layout(names, np.array(MANY), np.full(len(MANY), -1), files, starts, sizes)
        owners = ClusterMap.ask(str(nodes[0].path)).owners(layout)
        staged = [hfs.status()["staged"]["bytes"] for hfs in nodes]
    left = sizes[owners < 0].sum()
    assert 0.4 < left / sum(MANY) < 0.65
    taken = np.array([blocks_bytes(size) + 4096 * (size < 1 << 16) for size in sizes])
    over = sum(max(0, taken[owners == node].sum() + 4096 - room // 4) for node in (0, 1))
    for node, staged_bytes in enumerate(staged):
        owned = sizes[owners == node].sum()
        assert owned - over - dropped <= staged_bytes <= owned, "each stages what the map says, and no more"
    assert source[0] <= 1.05 * sum(MANY) + dropped
    for epoch_bytes in np.diff(source):
        # On top what a node drew more than it holds, and chunks that 1 MB of memory lost before their reader came.
        assert left <= epoch_bytes <= 1.01 * left + over + dropped + (4 << 16)


def here(peers: dict[str, Any]) -> int:
    return int(peers["nodes"]) - len(peers["gone"])


LEARNER = """
import json, sys
from hfs.samplers import Locality, LocalityAwareSampler
rank, n, (mount, names, learners) = int(sys.argv[1]), int(sys.argv[2]), map(json.loads, sys.argv[3:])
sampler = LocalityAwareSampler(n, 4, 7, rank, 2, Locality(mount, names, learners=learners))
for line in sys.stdin:
    sampler.renew(lambda text: print(text, flush=True) or json.loads(input()))
    sampler.set_epoch(int(line))
    print(json.dumps([sampler.digest, list(sampler)]), flush=True)
"""
"""What it is told before each epoch, and then what all have said."""


def test_learners_take_up_a_node_that_has_come_and_go_on_when_it_leaves(tmp_path: Path) -> None:
    """They are processes, each on a node of its own, which see what their daemons say; the third has none. It gets what
    the others have from them."""
    names = [f"{seed}" for seed in range(len(SIZES))]
    with some_nodes(tmp_path, *[SECRET] * 3, mounted=2) as nodes, ExitStack() as stack:
        hosts = [hfs.status()["peers"]["node"] for hfs in nodes[:2]]
        commands = [
            [sys.executable, "-c", LEARNER, f"{rank}", f"{len(SIZES)}", *map(json.dumps, (f"{hfs.path}", names, hosts))]
            for rank, hfs in enumerate(nodes[:2])
        ]
        learners = [
            stack.enter_context(Popen(each, stdin=PIPE, stdout=PIPE, text=True, bufsize=1)) for each in commands
        ]

        def told(learner: Popen[str], what: object) -> str:
            print(what, file=learner.stdin, flush=True)
            return str(learner.stdout and learner.stdout.readline())

        def epoch(number: int) -> str:
            """What both agree on; each step has all samples of its batch once, each where it is staged or moved."""
            said = json.dumps([told(learner, number) for learner in learners])
            digests, drawn = zip(*(json.loads(told(learner, said)) for learner in learners), strict=True)
            plain = LocalityAwareSampler(len(SIZES), 4, 7, 0, 2)
            plain.set_epoch(number)
            batches = [[*first, *second] for first, second in zip(*drawn, strict=True)]
            assert [sorted(batch) for batch in batches] == [
                sorted(batch) for batch in np.array_split(plain.global_order(), range(4, len(SIZES), 4))
            ]
            (digest,) = set(digests)
            return str(digest)

        def know(*hosts: Hfs) -> None:
            while any(len(hosts) != here(hfs.status()["peers"]) for hfs in hosts):
                pass

        first = epoch(0)
        read_all(*nodes[:2])
        dropped = sum(hfs.status()["counters"]["staging_dropped"]["value"] for hfs in nodes[:2]) << 16
        before = sum(hfs.source_bytes() for hfs in nodes[:2])
        nodes[2].mount()
        know(*nodes)
        read_all(*nodes)
        assert sum(hfs.source_bytes() for hfs in nodes) - before <= dropped, "what others have is read from them"
        owners = ClusterMap.ask(str(nodes[0].path)).owners(Layout("\0".join(names).encode()))
        assert set(owners.tolist()) == {0, 1, 2}, "the third one has its share"
        second = epoch(1)
        assert second != first, "and the others' learners divide by it"
        nodes[2].umount()
        know(*nodes[:2])
        assert [epoch(2), epoch(3)] == [first, first]


def test_who_has_another_secret_gets_nothing(tmp_path: Path) -> None:
    with some_nodes(tmp_path, SECRET, "another" * 9) as nodes:
        read_all(*nodes)
        assert [hfs.status()["peers"]["nodes"] for hfs in nodes] == [1, 1]
        assert [hfs.status()["counters"]["peer_served"]["value"] for hfs in nodes] == [0, 0]
