"""policies/faults: pages that the kernel has let go are put back by chunks, ever more seldom."""

from policies.faults import Faults


def test_a_chunk_is_pushed_after_8_faults_then_after_twice_as_many() -> None:
    faults = Faults()
    pushed = [number for number in range(1, 8 + 16 + 32 + 1) if faults.push_again(3)]
    assert pushed == [8, 24, 56]
    assert not faults.push_again(4)


def test_memory_is_bounded() -> None:
    faults = Faults()
    for index in range(10_000):
        faults.push_again(index)
    assert len(faults._by_chunk) <= 4096
