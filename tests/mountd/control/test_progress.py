"""The figures of a command while it runs."""

from hfs.mountd.control.progress import ProgressCounter


def test_names_that_are_left_for_later_are_more_to_come() -> None:
    """Else what a warm takes would be told as all of it, when only what the data plane has looked at is known."""
    work = ProgressCounter()
    assert not work.progress().walking
    work.left = 3
    assert work.progress().walking
