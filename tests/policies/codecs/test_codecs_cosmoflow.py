"""The lossless kernel: every array of counts comes back, whatever its groups, in whatever pieces it is decoded."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hfs.policies.codecs import Unencodable, cosmoflow
from hfs.policies.codecs.cosmoflow import GROUP, PLAIN, Tables, decode, encode


def restored(tables: Tables, channels: int, pieces: int = 1, *, channels_first: bool = False) -> Any:
    """(voxels, channels), decoded in so many pieces."""
    voxels = tables.groups * GROUP // channels
    shape = (channels, voxels) if channels_first else (voxels, channels)
    out = np.full(shape, 12345, np.uint16)
    cuts = np.linspace(0, voxels, pieces + 1).astype(int) * (channels // GROUP)
    for first, last in itertools.pairwise(cuts):
        decode(tables, tables.entries, out, int(first), int(last), channels, channels_first=channels_first)
    return out.T if channels_first else out


counts = st.builds(
    lambda shape, seed, most: np.random.default_rng(seed).integers(0, most, shape, np.uint16, endpoint=True),
    st.tuples(st.integers(1, 5), st.integers(1, 40), st.sampled_from([4, 8, 12])),
    st.integers(0, 2**32),
    st.sampled_from([0, 1, 2, 3, 65535]),
)


@given(counts, st.integers(1, 7), st.booleans(), st.integers(1, 30), st.integers(1, 40))
@settings(deadline=None)
def test_round_trip(array: Any, pieces: int, channels_first: bool, a_block: int, most_keys: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cosmoflow, "MOST_GROUPS", a_block)
        patch.setattr(cosmoflow, "MOST_KEYS", most_keys)
        tables = encode(array)
    tables.check()
    channels = array.shape[-1]
    back = restored(tables, channels, pieces, channels_first=channels_first)
    assert (back == array.reshape(-1, channels)).all()


def test_few_groups_have_keys_of_one_byte_and_more_of_two() -> None:
    for distinct, width in ((256, 1), (257, 2)):
        array = np.zeros((40 * distinct, 4), np.int16)
        array[:, 2] = np.arange(len(array)) % distinct
        tables = encode(array)
        assert tables.key_bytes.tolist() == [width]
        assert len(tables.entries) == distinct
        assert (restored(tables, 4) == array).all()


def test_what_hardly_repeats_is_kept_plainly() -> None:
    array = np.random.default_rng(1).integers(0, 65535, (1000, 4), np.uint16)
    tables = encode(array)
    assert tables.key_bytes.tolist() == [PLAIN]
    assert tables.entries.nbytes == array.nbytes
    assert (restored(tables, 4, 3) == array).all()


def test_more_groups_than_keys_make_several_tables() -> None:
    # Each half has few: cut in two, both fit.
    array = np.zeros((600_000, 4), np.uint16)
    array[:, 0] = np.arange(600_000) % 50_000
    array[300_000:, 1] = 1
    tables = encode(array)
    assert tables.key_bytes.tolist() == [2, 2]
    assert tables.entry_counts.tolist() == [50_000, 50_000]
    assert (restored(tables, 4, 4) == array).all()


def test_frequent_groups_come_first() -> None:
    array = np.array([[9, 9, 9, 9]] * 5 + [[1, 1, 1, 1]] * 20 + [[5, 5, 5, 5]] * 10)
    assert encode(array).entries[:, 0].tolist() == [1, 5, 9]


def test_arrays_that_are_not_contiguous() -> None:
    array = np.random.default_rng(2).integers(0, 3, (8, 6, 10), np.int64).transpose(2, 1, 0)[::2]
    assert (restored(encode(array), 8).reshape(array.shape) == array).all()


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.full((3, 4), -1, np.int16), r"negative counts \(-1\)"),
        (np.full((3, 4), 65536, np.int32), "up to 65536"),
        (np.full((3, 4), 2**63, np.uint64), "up to 9223372036854775808"),
        (np.zeros((3, 4), np.float32), "these are float32"),
        (np.full((3, 4), np.nan), "these are float64"),
        (np.zeros((3, 4), bool), "these are bool"),
        (np.zeros((4, 3), np.uint16), r"the shape is \(4, 3\)"),
        (np.zeros((0, 4), np.uint16), r"the shape is \(0, 4\)"),
        (np.uint16(5), r"the shape is \(\)"),
    ],
)
def test_what_cannot_be_encoded(array: Any, words: str) -> None:
    with pytest.raises(Unencodable, match=words):
        encode(np.asarray(array))


@pytest.mark.parametrize(
    "change",
    [
        {"keys16": np.full(700, 300, np.uint16)},
        {"keys16": np.zeros(699, np.uint16)},
        {"entries": np.zeros((299, 4), np.uint16)},
        {"entries": np.zeros(1200, np.uint16)},
        {"key_bytes": np.array([3], np.uint8)},
        {"key_bytes": np.array([PLAIN], np.uint8)},
        {"key_bytes": np.array([2, 2], np.uint8)},
        {"group_counts": np.array([2**32 - 1], np.uint32)},
    ],
)
def test_damaged_parts_are_found_before_they_lead_outside(change: dict[str, Any]) -> None:
    array = np.zeros((700, 4), np.uint16)
    array[:, 0] = np.arange(700) % 300
    tables = encode(array)
    tables.check()
    with pytest.raises(Unencodable):
        dataclasses.replace(tables, **change).check()
