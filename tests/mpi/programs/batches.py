"""Scenarios of hfs.shared.NodeBatches, each a function that every rank runs: python batches.py FOLDER NAME...

FOLDER has what `tests/mpi/test_shared.py` has put there. A rank prints "NAME ok" after each; an exception ends the job.
"""

import faulthandler
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

from hfs.hint import hinted
from hfs.layouts.layout import Layout, LayoutError
from hfs.mountd.core.errors import ConfigError
from hfs.shared import NodeBatches, NodeWindow, RankLost
from tests.mpi.shared_data import SHAPE, batches_of, fixed_layout, ragged_layout, sample_of

faulthandler.register(signal.SIGUSR1)
world = MPI.COMM_WORLD
FOLDER = sys.argv[1]


def check_part(batch: Any, layout: Layout, want: list[int], rank: int, size: int) -> None:
    first, last = rank * len(want) // size, (rank + 1) * len(want) // size
    assert (batch.first, batch.last, batch.count) == (first, last, len(want))
    assert batch.indices.tolist() == want[first:last]
    assert len(batch) == last - first
    for i, index in enumerate(want[first:last]):
        assert batch[i].tobytes() == sample_of(layout, index), (batch.number, index)
    assert not batch.data.flags.writeable
    assert batch.offsets[-1] == batch.data.nbytes


def parity() -> None:
    """Fixed and differing sizes, several epochs, parts and whole, a ring of two batches: the plain reader's bytes."""
    for layout, more in ((fixed_layout(), {"shape": SHAPE, "dtype": "<u2"}), (ragged_layout(), {})):
        for whole in (False, True):
            with NodeBatches(world, layout, root=FOLDER, whole=whole, window=NodeWindow(1 << 17), **more) as node:
                for epoch in range(2):
                    seen = 0
                    for batch, want in zip(node.epoch(batches_of(epoch)), batches_of(epoch), strict=True):
                        assert batch.number == seen
                        check_part(batch, layout, want, *((0, 1) if whole else (world.rank, world.size)))
                        seen += 1
                assert node.statistics().batches == 2 * seen > 20
            if more and not whole:
                total = world.allreduce(node.statistics().bytes_read)
                assert total == 2 * sum(len(want) for epoch in (0,) for want in batches_of(epoch)) * 2 * np.prod(SHAPE)


def function() -> None:
    """A function of the user's, for fixed and for differing sizes; only the root calls it."""
    calls = []

    def fixed(indices: Any, out: Any) -> None:
        calls.append(len(indices))
        out[:] = indices[:, None]

    with NodeBatches(world, fixed, shape=(3,), dtype=np.int64) as node:
        for batch in node.epoch([[5, 6, 7, 8], [1, 2]]):
            assert batch.data.tolist() == [[i] * 3 for i in batch.indices.tolist()]
    assert calls == ([4, 2] if world.rank == 0 else [])

    def ragged(indices: Any, out: Any) -> None:
        out[:] = np.repeat(indices, indices).astype(np.uint8)

    with NodeBatches(world, ragged, sizes=np.arange(10), whole=True) as node:
        batch = next(node.epoch([[3, 0, 9]]))
        assert [batch[i].tolist() for i in range(3)] == [[3] * 3, [], [9] * 9]
        del batch


def nodes() -> None:
    """Two nodes of two ranks, dealt as cards: each root reads the rows of its own ranks, once."""
    layout = ragged_layout()
    node_comm = world.Split(world.rank % 2, world.rank)
    with NodeBatches(world, layout, root=FOLDER, window=NodeWindow(ranks=node_comm)) as node:
        for batch, want in zip(node.epoch(batches_of(3)), batches_of(3), strict=True):
            check_part(batch, layout, want, world.rank, world.size)
    node_comm.Free()
    total = world.allreduce(node.statistics().bytes_read)
    assert total == sum(len(sample_of(layout, i)) for want in batches_of(3) for i in want)


def alone() -> None:
    """A world of one."""
    layout = fixed_layout()
    with NodeBatches(MPI.COMM_SELF, layout, root=FOLDER, shape=SHAPE, dtype="<u2") as node:
        for batch, want in zip(node.epoch(batches_of(0)), batches_of(0), strict=True):
            check_part(batch, layout, want, 0, 1)


def early_stop() -> None:
    """All stop after three batches, then begin another epoch; stop in it again, and close."""
    layout = ragged_layout()
    with NodeBatches(world, layout, root=FOLDER, window=NodeWindow(1 << 17)) as node:
        for epoch in range(3):
            for number, (batch, want) in enumerate(zip(node.epoch(batches_of(epoch)), batches_of(epoch), strict=False)):
                check_part(batch, layout, want, world.rank, world.size)
                if number == 3 + world.rank % 2:  # not even all at the same batch
                    break
        old = node.epoch(batches_of(0))
        new = node.epoch([])
        assert list(new) == []
        assert "another one has been begun" in raised(ValueError, next, old)


def uneven() -> None:
    """A rank that is slow, one that is fast; batches with fewer samples than ranks, and without any."""
    orders = [[0], [], [1, 2], [3, 4, 5, 6, 7]] * 10
    layout = ragged_layout()
    with NodeBatches(world, layout, root=FOLDER, window=NodeWindow(1 << 16)) as node:
        for batch, want in zip(node.epoch(orders), orders, strict=True):
            check_part(batch, layout, want, world.rank, world.size)
            if world.rank == batch.number % 8:
                time.sleep(0.003)


def hints() -> None:
    """An order that is hinted: the root alone draws it, so the daemon has one learner, and it is told nothing twice."""
    layout = fixed_layout()
    order = hinted(batches_of(5), layout=layout, mount=FOLDER, rank=0, world=1)
    with NodeBatches(world, layout, root=FOLDER, shape=SHAPE, dtype="<u2", window=NodeWindow(1 << 16)) as node:
        for batch, want in zip(node.epoch(order), batches_of(5), strict=True):
            check_part(batch, layout, want, world.rank, world.size)
            if batch.number == 9 and world.rank == 0:
                status = json.loads(subprocess.check_output(["hfs", "status", FOLDER, "--json"]))
                assert len(status["hints"]["learners"]) == 1, status["hints"]


class Odd(Exception):
    """Does not come back from pickle as it went."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def errors() -> None:
    """What the source, the order or the arguments raise is raised in all ranks; then another epoch works."""
    layout = fixed_layout()

    def bad_order() -> Iterator[list[int]]:
        yield [0, 1, 2, 3]
        raise KeyError("no more")

    def odd_order() -> Iterator[list[int]]:
        yield [0, 1, 2, 3]
        raise Odd(1, 2)

    with NodeBatches(world, layout, root=FOLDER, shape=SHAPE, dtype="<u2", window=NodeWindow(1 << 16)) as node:
        for order, kind, words in (
            (bad_order(), KeyError, "no more"),
            (odd_order(), Exception, "Odd: 1 and 2"),
            ([[0, 1], [10**6]], IndexError, "batch 1: sample 1000000: there are"),
            ([[0.5]], TypeError, "list of integers"),
            ([[0] * 1000], ConfigError, "budget_bytes of twice that"),
        ):
            taken = 0

            def take_all(order: Any = order) -> None:
                nonlocal taken
                for _ in node.epoch(order):
                    taken += 1

            assert words in raised(kind, take_all), (kind, words)
            assert taken == (1 if kind in {KeyError, IndexError} or "Odd" in words else 0)
        assert len([1 for _ in node.epoch(batches_of(0))]) == len(batches_of(0))
    with NodeBatches(world, layout, root=FOLDER, shape=(5,)) as node:
        assert "Leave shape away" in raised(ConfigError, list, node.epoch([[0]]))
    changed = fixed_layout(1)
    with NodeBatches(world, changed, root=FOLDER) as node:
        assert "changed since the layout was made" in raised(LayoutError, list, node.epoch([[0]]))
    with NodeBatches(world, layout, root=FOLDER + "/nowhere") as node:
        assert "nowhere" in raised(FileNotFoundError, list, node.epoch([[0]]))
    # In the root alone, or in another rank alone: still an error in all.
    assert "no such file" in raised(LayoutError, NodeBatches, world, FOLDER + "/none.layout")
    assert "timeout_s" in raised(
        ConfigError, NodeBatches, world, layout, window=NodeWindow(timeout_s=0 if world.rank == 1 else 9)
    )
    assert "/dev/shm" in raised(ConfigError, NodeBatches, world, layout, window=NodeWindow(1 << 50))
    assert "shape and dtype, or sizes" in raised(ConfigError, NodeBatches, world, lambda i, out: None)


def held_arrays() -> None:
    """Arrays that are used after the end still have memory below them; and a released batch says that it is."""
    layout = fixed_layout()
    with NodeBatches(world, layout, root=FOLDER, shape=SHAPE, dtype="<u2") as node:
        kept = []
        for batch in node.epoch(batches_of(0)[:2]):
            if world.rank == 1:
                kept.append(batch.data[:1, 2])
            batch.release()
            assert "released" in raised(ValueError, lambda batch=batch: batch.data)
    assert len([array.sum() for array in kept]) == (2 if world.rank == 1 else 0)


def raised(kind: type[BaseException], call: Callable[..., Any], *arguments: Any, **more: Any) -> str:
    try:
        call(*arguments, **more)
    except kind as error:
        return str(error)
    raise AssertionError(f"{kind.__name__} was not raised")


# --- Those that lose a rank ------------------------------------------------------------


def one_raises() -> None:
    """Rank 2 leaves by an exception: the others hear its words, and nobody waits for long."""
    try:
        with NodeBatches(world, fixed_layout(), root=FOLDER, window=NodeWindow(1 << 16)) as node:
            for batch in node.epoch(batches_of(0)):
                if world.rank == 2 and batch.number == 2:
                    raise OSError("the disk of rank 2")
    except RankLost as error:
        assert world.rank != 2
        assert "rank 2 of 4 has left: OSError: the disk of rank 2" in str(error), error
    except OSError:
        assert world.rank == 2
    else:
        raise AssertionError("nothing was raised")


def one_dies() -> None:
    """Rank 2 (or the root) waits to be killed; the others hear of it."""
    victim = int(sys.argv[3])
    try:
        with NodeBatches(world, fixed_layout(), root=FOLDER, window=NodeWindow(1 << 16)) as node:
            for batch in node.epoch(batches_of(0)):
                if world.rank == victim and batch.number == 2:
                    print("kill me", flush=True)
                    signal.pause()
    except RankLost as error:
        print(f"heard: {error}", flush=True)
    # MPI's own end would wait for the dead.
    os._exit(0)


def one_sleeps() -> None:
    """Rank 1 takes nothing for longer than the time limit: a clear error in all, also in rank 1."""
    try:
        with NodeBatches(world, fixed_layout(), root=FOLDER, window=NodeWindow(1 << 16, 0.2)) as node:
            for batch in node.epoch(batches_of(0)):
                if world.rank == 1 and batch.number == 1:
                    time.sleep(1.3)
    except RankLost as error:
        assert "rank 1 of 4 has not taken its next batch" in str(error), error
    else:
        raise AssertionError("nothing was raised")


def main() -> None:
    for name in sys.argv[2:3] if sys.argv[2] == "one_dies" else sys.argv[2:]:
        globals()[name]()
        gc.collect()
        print(f"{name} ok", flush=True)


main()
