"""How long the event loop waited for a core: the kernel's own figure, and none where there is none."""

from pathlib import Path

from hfs.mountd.control import traffic


def test_the_second_number_counts(tmp_path: Path) -> None:
    file = tmp_path / "schedstat"
    file.write_text("7000000000 2500000000 12\n")
    assert traffic.waited_for_core_s(str(file)) == 2.5


def test_a_kernel_that_does_not_count(tmp_path: Path) -> None:
    file = tmp_path / "schedstat"
    assert traffic.waited_for_core_s(str(file)) == 0
    file.write_text("")
    assert traffic.waited_for_core_s(str(file)) == 0


def test_this_one_counts_forward() -> None:
    before = traffic.waited_for_core_s()
    assert 0 <= before <= traffic.waited_for_core_s()
