"""policies/followed: whose look-ups are believed to be opens."""

from collections.abc import Iterable

from hfs.policies.prefetch.followed import Followed


def believed(followed: Followed, steps: Iterable[str], thread_id: int = 7) -> list[bool]:
    """Of each look-up whether it was expected to be an open. Steps: "o" looks a new file up and opens it, "l" only
    looks it up."""
    found = []
    for number, step in enumerate(steps):
        found.append(followed.is_expected(thread_id))
        followed.looked_up(thread_id, (thread_id, number))
        if step == "o":
            followed.opened(thread_id, (thread_id, number))
    return found


def test_from_the_third_file_on_a_loader_is_believed() -> None:
    assert believed(Followed(), "oooooo") == [False, False, True, True, True, True]


def test_who_only_looks_is_never_believed() -> None:
    assert not any(believed(Followed(), "l" * 50))
    assert not any(believed(Followed(), "lo" * 50))
    assert not any(believed(Followed(), "llo" * 50))


def test_a_change_of_mind_costs_two_files_at_most() -> None:
    found = believed(Followed(), "o" * 20 + "l" * 20)
    assert sum(found[20:]) <= 2
    assert not any(found[22:])


def test_a_file_that_is_looked_at_and_opened_later_counts() -> None:
    followed = Followed()
    for number in range(4):
        followed.looked_up(1, number)
        followed.looked_up(1, number)  # stat(2), and once more
        followed.opened(1, number)
    assert followed.is_expected(1)


def test_threads_do_not_speak_for_each_other() -> None:
    followed = Followed()
    believed(followed, "oooo", 1)
    believed(followed, "llll", 2)
    assert followed.is_expected(1)
    assert not followed.is_expected(2)
    followed.looked_up(2, "x")
    followed.opened(1, "x")
    assert not followed.is_expected(2)


def test_nobody_is_never_believed_and_memory_is_bounded() -> None:
    followed = Followed()
    assert not any(believed(followed, "oooo", 0))
    for thread_id in range(1, 10_000):
        followed.looked_up(thread_id, 1)
    assert len(followed) == 4096
