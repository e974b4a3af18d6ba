"""Whether encoding is worth it: of a mount by what fits, of a chunk by whole blocks."""

import pytest

from hfs.policies.cache.encoding import choose, pays


@pytest.mark.parametrize(
    ("size", "stored", "expected"),
    [
        (4096, 1, False),  # one block it is and stays
        (4097, 4096, True),
        (4097, 4097, False),
        (3 * 4096, 2 * 4096, True),
        (3 * 4096, 2 * 4096 + 1, False),
        (8 << 20, 1365 * 4096, True),
        (8 << 20, 1365 * 4096 + 1, False),
    ],
)
def test_three_blocks_must_become_two(size: int, stored: int, expected: bool) -> None:
    assert pays(size, stored) is expected


def test_what_is_stored_ends_before_the_file_does() -> None:
    """Whole blocks are written, and the object stays as long as the file."""
    for size in range(1, 40_000, 37):
        most = max((stored for stored in range(4096, size + 4096, 4096) if pays(size, stored)), default=0)
        assert most <= size


def test_a_mount_encodes_only_where_the_cache_is_too_small() -> None:
    assert not choose("none", data_bytes=10, capacity_bytes=1).on
    assert choose("auto", data_bytes=10, capacity_bytes=9).on
    assert choose("auto", data_bytes=None, capacity_bytes=1 << 60).on
    fits = choose("auto", data_bytes=10, capacity_bytes=10)
    assert not fits.on
    assert "fits" in fits.reason
