"""So many reads of a file at a time, readers before readahead, in the order of the file, and nobody is forgotten."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from hfs.policies.cluster.stagger import Place, Stagger


def offsets_in_turn(stagger: Stagger, going: list[Place]) -> list[int]:
    """Let all go, one after the other; the offsets of those that had to wait."""
    waited = []
    while going:
        following = stagger.leave(going.pop(0))
        if following is not None:
            assert following.may
            waited.append(following.offset)
            going.append(following)
    return waited


def test_who_waits_goes_in_the_order_of_the_file_from_the_last_one_on() -> None:
    stagger = Stagger(2)
    first = [stagger.enter("f", offset, urgent=False) for offset in (7, 5)]
    assert [place.may for place in first] == [True, True]
    for offset in (9, 1, 6, 3):
        assert not stagger.enter("f", offset, urgent=False).may
    assert offsets_in_turn(stagger, first) == [6, 9, 1, 3]
    assert len(stagger) == 0


def test_readers_go_first() -> None:
    stagger = Stagger(1)
    first = stagger.enter("f", 5, urgent=False)
    for offset, urgent in ((6, False), (2, True), (8, True)):
        stagger.enter("f", offset, urgent=urgent)
    assert offsets_in_turn(stagger, [first]) == [8, 2, 6]


def test_files_do_not_wait_for_each_other() -> None:
    stagger = Stagger(1)
    assert stagger.enter("f", 0, urgent=False).may
    assert stagger.enter("g", 0, urgent=False).may


def test_who_gives_up_is_passed_over() -> None:
    stagger = Stagger(1)
    first, second, third = (stagger.enter("f", offset, urgent=False) for offset in (0, 1, 2))
    assert stagger.leave(second) is None
    assert stagger.leave(first) is third
    assert stagger.leave(third) is None
    assert len(stagger) == 0


@given(st.integers(1, 4), st.randoms(use_true_random=True))
def test_never_more_than_said_never_fewer_than_could_and_in_one_round(most: int, random: Random) -> None:
    stagger = Stagger(most)
    going: list[Place] = []
    waiting: dict[Place, int] = {}
    for _ in range(200):
        if random.random() < 0.55:
            place = stagger.enter("f", random.randrange(50), urgent=random.random() < 0.2)
            if place.may:
                going.append(place)
            else:
                waiting[place] = 0
        elif going or waiting:
            place = random.choice(going) if going and random.random() < 0.8 else random.choice([*going, *waiting])
            following = stagger.leave(place)
            if place in waiting:
                del waiting[place]
                assert following is None
            else:
                going.remove(place)
            if following is not None:
                del waiting[following]
                going.append(following)
        assert len(going) <= most
        assert len(going) == most or not waiting
        assert all(place.may for place in going)
        assert not any(place.may for place in waiting)
