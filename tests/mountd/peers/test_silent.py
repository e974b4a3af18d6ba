"""Silent peers: each silence in a row has a node left alone twice as long, up to half an hour, until it answers."""

import trio

from hfs.mountd.peers.silent import REST_S, SilentPeers


async def test_each_silence_in_a_row_is_followed_by_a_rest_twice_as_long_and_no_longer_than_half_an_hour() -> None:
    silent = SilentPeers()
    rests_s = []
    for _ in range(9):
        rest_s = silent.hangs(1)
        await trio.sleep(rest_s - 1)
        assert silent.rests(1)
        await trio.sleep(1)
        assert not silent.rests(1)
        rests_s.append(round(rest_s))
    assert rests_s == [REST_S * 2 ** min(n, 6) for n in range(9)]


async def test_one_silence_that_several_notice_counts_once() -> None:
    silent = SilentPeers()
    silent.hangs(1)
    await trio.sleep(REST_S / 3)
    assert round(silent.hangs(1)) == round(REST_S * 2 / 3)
    await trio.sleep(REST_S)
    assert round(silent.hangs(1)) == 2 * REST_S


async def test_an_answer_ends_the_row_and_a_loss_the_rest() -> None:
    silent = SilentPeers()
    silent.hangs(1)
    silent.answered(1)
    assert silent.rests(1), "it may have answered late"
    await trio.sleep(REST_S)
    assert round(silent.hangs(1)) == REST_S
    assert not silent.rests(2)
    silent.lost(1)
    assert not silent.rests(1)
