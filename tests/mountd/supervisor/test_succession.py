"""Whether a connection is given up: not for one daemon that hung, but for the second that did so soon after."""

from hfs.mountd.supervisor.succession import Restarts


def test_the_second_that_hangs_within_a_minute_gives_the_connection_up() -> None:
    restarts = Restarts()
    assert [restarts.hung(now_s) for now_s in (0.0, 60.0, 119.0, 130.0, 190.0)] == [False, False, True, True, False]
