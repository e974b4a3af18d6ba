"""policies/faults: pages that the kernel has let go are put back by rows, then by chunks, ever more seldom."""

import pytest

from hfs.policies.geometry import Extent
from hfs.policies.prefetch.faults import Again, Faults, neighbours

KIB = 1024


def test_a_chunk_is_pushed_after_16_faults_then_after_twice_as_many() -> None:
    faults = Faults()
    asked = [faults.push_again(3) for _ in range(16 + 32 + 64)]
    assert [number for number, again in enumerate(asked, 1) if again is Again.CHUNK] == [16, 48, 112]
    assert set(asked[:15] + asked[16:47]) == {Again.NEIGHBOURS}
    assert set(asked[48:111]) == {Again.NOTHING}, "a reader past the page cache costs no more than two rounds"
    assert faults.push_again(4) is Again.NEIGHBOURS


@pytest.mark.parametrize(
    ("fault_kib", "row_kib"),
    [(4, (0, 128)), (124, (0, 128)), (128, (128, 256)), (1020, (896, 1001))],
)
def test_the_row_of_a_fault_ends_with_its_chunk(fault_kib: int, row_kib: tuple[int, int]) -> None:
    fault = Extent(fault_kib * KIB, (fault_kib + 4) * KIB)
    assert neighbours(fault, Extent(0, 1001 * KIB)) == Extent(row_kib[0] * KIB, row_kib[1] * KIB)


def test_a_row_is_of_one_chunk_however_small() -> None:
    chunk = Extent(64 * KIB, 128 * KIB)
    assert neighbours(Extent(100 * KIB, 104 * KIB), chunk) == chunk


def test_memory_is_bounded() -> None:
    faults = Faults()
    for index in range(10_000):
        faults.push_again(index)
    assert len(faults._by_chunk) <= 4096
