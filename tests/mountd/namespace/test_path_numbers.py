"""Numbers of paths: the same for the same path, dense, in the order of appearance."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from mountd.namespace.path_numbers import PathNumbers


@given(st.lists(st.binary(max_size=5)))
def test_as_a_dict_would_do_it(paths: list[bytes]) -> None:
    numbers = PathNumbers()
    model: dict[bytes, int] = {}
    for path in paths:
        assert numbers.number(path) == model.setdefault(path, len(model))
    assert len(numbers) == len(model)
    for path, number in model.items():
        assert numbers.path(number) == path


def test_many_paths_take_little_memory() -> None:
    numbers = PathNumbers()
    paths = [b"train/class_%d/%06d.jpg" % (i % 10, i) for i in range(20_000)]
    for path in paths:
        numbers.number(path)
    assert [numbers.number(path) for path in paths] == list(range(20_000))
    held = sum(sys.getsizeof(part) for part in (numbers._hashes, numbers._numbers, numbers._names, numbers._ends))
    assert held < 100 * len(paths)
