"""Daemons that share their caches without MPI: what one has read is read once, also after one was killed."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fuse.harness import Hfs, drop_pages
from tests.support.pattern import pattern, write_pattern

SIZES = [3_000_000, *range(20_000, 20_020)]


def read_all(*nodes: Hfs) -> None:
    for path, seed in ((hfs.path / f"{seed}", seed) for hfs in nodes for seed in range(len(SIZES))):
        assert path.read_bytes() == pattern(seed + 1, 0, SIZES[seed]), f"{path} is wrong"
        drop_pages(path)


def test_three_share_and_one_that_is_killed_is_a_member_again(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for seed, size in enumerate(SIZES):
        write_pattern(tmp_path / "data" / str(seed), seed + 1, size)
    (tmp_path / "secret").touch(0o600)
    (tmp_path / "secret").write_text("of tests" * 8)
    hosts = [f"127.{os.getpid() % 251 + 1}.{os.getpid() // 251 % 251}.{number}:24370" for number in (1, 2, 3)]
    options = ("--placement=partition", f"--peers={','.join(hosts)}", "--chunk=64K", "--cache-size=1G")
    nodes = []
    for host in hosts:
        mine = (*options, "-o", f"peer-secret={tmp_path}/secret,buffer=1M,peer-listen={host}")
        base = tmp_path / f"node-{len(nodes)}"
        nodes.append(Hfs(tmp_path / "data", base / "mnt", base / "cache", base / "log", mine))
    try:
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(Hfs.mount, nodes))
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
    finally:
        faults = [fault for hfs in nodes for fault in hfs.close()]
    assert faults == []


def test_who_has_another_secret_gets_nothing(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for seed, size in enumerate(SIZES):
        write_pattern(tmp_path / "data" / str(seed), seed + 1, size)
    nodes = []
    for number, secret in enumerate(("of tests" * 8, "another" * 9)):
        base = tmp_path / f"node-{number}"
        base.mkdir()
        (base / "secret").touch(0o600)
        (base / "secret").write_text(secret)
        host = f"127.{os.getpid() % 251 + 1}.{os.getpid() // 251 % 251}"
        mine = f"peer-secret={base}/secret,peer-listen={host}.{number + 4}:24370"
        options = ("--placement=partition", f"--peers={host}.4", "-o", mine, "--chunk=64K", "--cache-size=1G")
        nodes.append(Hfs(tmp_path / "data", base / "mnt", base / "cache", base / "log", options))
        nodes[-1].mount()
    try:
        read_all(*nodes)
        assert [hfs.status()["peers"]["nodes"] for hfs in nodes] == [1, 1]
        assert [hfs.status()["counters"]["peer_served"]["value"] for hfs in nodes] == [0, 0]
    finally:
        assert [fault for hfs in nodes for fault in hfs.close()] == []
