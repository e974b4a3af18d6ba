"""How long a warm would take, by those before it."""

from hfs.mountd.control import WarmRates


def test_each_kind_has_its_rate_and_the_time_in_which_it_was_fetched() -> None:
    rates = WarmRates()
    assert rates.seconds(0, 0) == 0.0
    assert rates.seconds(1, 0) is None
    rates.saw(1000, 0, 1.0)
    rates.saw(0, 0, 5.0)
    rates.saw(3000, 0, 1.0)
    assert rates.seconds(4000, 0) == 2.0
    assert rates.seconds(4000, 1) is None
    rates.saw(0, 50_000_000, 0.5)
    assert rates.seconds(2000, 200_000_000) == 3.0
