"""`hfs-hint send`, `record`, `replay` and `show` over real mounts: the same hints without touching a script."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hfs.layouts.layout import Layout
from tests.fuse.harness import BIN, HfsMount, environment, must, run
from tests.fuse.hinted import all_staged, content, counter, learner_of, total_of, tree, wait_until
from tests.fuse.slowfs import SlowSource
from tests.support.pattern import pattern

HINT = BIN / "hfs-hint"

READER = """
import os, sys
for line in sys.argv[2:]:
    name, offset, size = line.rsplit(":", 2)
    file = os.open(os.path.join(sys.argv[1], name), os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    assert len(os.pread(file, int(size), int(offset))) == int(size)
    os.close(file)
"""


@contextlib.contextmanager
def running(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """`hfs-hint` in the background, ended as by Ctrl-C, which is no error."""
    # Who runs the tests in the background has SIGINT ignored, and so would the command.
    command = ["env", "--default-signal=INT", *(str(part) for part in (HINT, *arguments))]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            _, error = process.communicate()
        assert process.returncode == 0, error


def test_send_and_show(tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount) -> None:
    names = tree(tmp_path / "tree", 40)
    slow = slow_source(tmp_path / "tree")
    hfs = hfs_mount(slow.path)
    (tmp_path / "list.txt").write_text("".join(f"{name}\n" for name in names))
    np.save(tmp_path / "order.npy", np.random.default_rng(1).permutation(40))
    given = ("--order", tmp_path / "order.npy", "--files", tmp_path / "list.txt", "--mount", hfs.path)
    assert must(HINT, "show", "--mount", hfs.path) == "no hints\n"
    with running("send", *given, "--epoch", "3", "--rank", "1", "--world", "2") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "40 samples of epoch 3 are known to the daemon\n"
        status = wait_until(hfs, all_staged)
        learner = learner_of(status)
        assert (learner["epoch"], learner["rank"], learner["world"], learner["total"]) == (3, 1, 2, 40)
        assert counter(status, "hinted_bytes") == total_of(names)
        assert "rank 1 of 2" in must(HINT, "show", "--mount", hfs.path)
        shown = json.loads(must(HINT, "show", "--mount", hfs.path, "--json"))
        assert [each["epoch"] for each in shown["learners"]] == [3]
    wait_until(hfs, lambda status: not status["hints"]["learners"])
    for number, name in enumerate(names):
        assert (hfs.path / name).read_bytes() == content(number)
    assert slow.counters()["read_bytes"] == total_of(names)
    # Staged already: it ends at once.
    must(HINT, "send", *given, "--until-staged")


def test_what_was_recorded_is_replayed(tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount) -> None:
    """The trace of a run names its reads in their order; on another mount they are then fetched before they are read,
    and those of a large file alone: no byte that the run did not need the chunk of."""
    names = tree(tmp_path / "tree", 12)
    chunk = 64 << 10
    (tmp_path / "tree" / "large").write_bytes(pattern(77, 0, 40 * chunk))
    slow = slow_source(tmp_path / "tree")
    hfs = hfs_mount(slow.path)
    reads = [f"large:{offset}:5000" for offset in (31 * chunk, 3 * chunk + 7, 17 * chunk)]
    reads[1:1] = [f"{names[number]}:0:{len(content(number))}" for number in (7, 2, 11)]
    trace = tmp_path / "trace"
    must(HINT, "record", "--mount", hfs.path, "-o", trace, "--", sys.executable, "-c", READER, hfs.path, *reads)
    layout = Layout.load(str(trace))
    assert [bytes(name) for name in layout.files] == [b"large", *(names[number].encode() for number in (7, 2, 11))]
    recorded = list(zip(layout.extents.tolist(), layout.offsets.tolist(), layout.sizes.tolist(), strict=True))
    small = [(file, offset, size) for file, offset, size in recorded if file]
    assert small == [(i + 1, 0, len(content(number))) for i, number in enumerate((7, 2, 11))]
    large = [offset // chunk for file, offset, _ in recorded if not file]
    assert list(dict.fromkeys(large)) == [31, 3, 17]
    assert recorded[0][0] == 0
    assert [file for file, _, _ in recorded if file] == [1, 2, 3]

    other = hfs_mount(slow.path, cache=tmp_path / "other-cache")
    with running("replay", trace, "--mount", other.path) as process:
        assert process.stderr is not None
        process.stderr.readline()
        status = wait_until(other, all_staged)
        needed = 3 * chunk + sum(len(content(number)) for number in (7, 2, 11))
        assert counter(status, "hinted_bytes") == status["source"]["bytes"] == needed
        must(sys.executable, "-c", READER, other.path, *reads)
        assert other.source_bytes() == needed
    third = hfs_mount(slow.path, cache=tmp_path / "third-cache")
    must(HINT, "replay", trace, "--warm", "--mount", third.path)
    assert third.source_bytes() == 40 * chunk + sum(len(content(number)) for number in (7, 2, 11))
    # It belongs to these versions of the files.
    (tmp_path / "tree" / "large").write_bytes(pattern(78, 0, 39 * chunk))
    fourth = hfs_mount(tmp_path / "tree", cache=tmp_path / "fourth-cache")
    done = run(HINT, "replay", trace, "--mount", fourth.path)
    assert done.returncode == 2
    assert "make it again" in done.stderr
