"""Folders of files to train on, and waiting until a hint about them has done its work."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.fuse.harness import Hfs
from tests.support.pattern import pattern


def content(number: int) -> bytes:
    return pattern(number + 1, 0, 3000 + 977 * (number % 50))


def tree(folder: Path, count: int) -> list[str]:
    """`count` files of 3 to 50 KB in four directories; their names below `folder`."""
    names = [f"d{number % 4}/{number}" for number in range(count)]
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(number))
    return names


def total_of(names: Sequence[str]) -> int:
    return sum(len(content(number)) for number in range(len(names)))


def wait_until(hfs: Hfs, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Ask the daemon for its status until `condition` is true of it; the limit of the test ends it else."""
    while not condition(status := hfs.status()):
        pass
    return status


def learner_of(status: dict[str, Any]) -> dict[str, Any]:
    (learner,) = status["hints"]["learners"]
    return dict(learner)


def all_staged(status: dict[str, Any]) -> bool:
    return [learner.get("staged_share") for learner in status["hints"]["learners"]] == [1.0]


def counter(status: dict[str, Any], name: str) -> int:
    return int(status["counters"][name]["value"])


@contextlib.contextmanager
def begun(sampler: Any) -> Iterator[tuple[int, Iterator[int]]]:
    """The first index of an epoch whose order the daemon has been told, and the rest; ended with the block."""
    rest = iter(sampler)
    try:
        yield next(rest), rest
    finally:
        rest._hfs_told.end()  # type: ignore[attr-defined]  # as if it was dropped, which the block's variables hold
