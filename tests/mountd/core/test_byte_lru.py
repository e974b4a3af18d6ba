"""What is kept in memory: the newest, as far as the limit goes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hfs.mountd.core.byte_lru import ByteLRU

KEYS = st.integers(0, 5)


@given(st.lists(st.tuples(st.sampled_from(["keep", "drop", "clear", "touch", "goes first"]), KEYS, st.integers(0, 40))))
def test_as_a_list_would_do_it(steps: list[tuple[str, int, int]]) -> None:
    kept: ByteLRU[int] = ByteLRU(100)
    model: list[tuple[int, bytes]] = []
    for what, key, size in steps:
        if what == "clear":
            kept.clear()
            model = []
        elif what in ("touch", "goes first"):
            (kept.touch if what == "touch" else kept.goes_first)(key)
            model.sort(key=lambda entry: (entry[0] == key) == (what == "touch"))
        else:
            model = [entry for entry in model if entry[0] != key]
            if what == "drop":
                kept.drop(key)
            else:
                data = bytes([key]) * size
                kept.keep(key, memoryview(data))
                model.append((key, data))
        while sum(len(data) for _, data in model) > 100:
            del model[0]
        assert kept.bytes == sum(len(data) for _, data in model) <= 100
        for i in range(6):
            held = kept.get(i)
            assert (None if held is None else bytes(held)) == dict(model).get(i)


def test_what_is_larger_than_the_limit_is_not_kept() -> None:
    kept: ByteLRU[str] = ByteLRU(10)
    kept.keep("small", memoryview(b"12345"))
    kept.keep("large", memoryview(b"x" * 11))
    assert kept.get("large") is None
    assert kept.bytes == 0
