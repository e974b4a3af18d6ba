"""The I/O mode of a mount and of an open: the choice, and the kernel's rules under any order of events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfs.policies.iomode import Answer, Wanted, answer, choose

NO_PASSTHROUGH = "Linux 6.9 or newer is needed"
NO_STATELESS = "only with --immutable"


@pytest.mark.parametrize(
    ("wanted", "immutable", "passthrough", "stateless", "mode"),
    [
        ("auto", False, True, False, "passthrough"),
        ("auto", False, False, False, "daemon"),
        ("auto", True, True, True, "passthrough"),
        ("auto", True, False, True, "daemon"),
        ("auto", True, False, False, "daemon"),
        ("passthrough", True, True, True, "passthrough"),
        ("stateless", True, True, True, "stateless"),
        ("daemon", True, True, True, "daemon"),
    ],
)
def test_the_mode_follows_from_what_is_asked_for_and_what_there_is(
    wanted: Wanted, immutable: bool, passthrough: bool, stateless: bool, mode: str
) -> None:
    choice = choose(
        wanted,
        immutable=immutable,
        passthrough_missing=None if passthrough else NO_PASSTHROUGH,
        stateless_missing=None if stateless else NO_STATELESS,
    )
    assert choice.mode == mode
    assert choice.reason
    assert choice.final == (not (wanted == "auto" and immutable and stateless))
    if wanted == "auto" and not passthrough:
        assert NO_PASSTHROUGH in choice.reason


@pytest.mark.parametrize(("wanted", "missing"), [("passthrough", NO_PASSTHROUGH), ("stateless", NO_STATELESS)])
def test_what_cannot_be_had_is_refused_with_what_is_missing(wanted: Wanted, missing: str) -> None:
    with pytest.raises(ValueError, match=missing):
        choose(wanted, immutable=False, passthrough_missing=NO_PASSTHROUGH, stateless_missing=NO_STATELESS)


@pytest.mark.parametrize("passthrough_missing", [None, NO_PASSTHROUGH])
def test_an_immutable_tree_of_small_files_becomes_stateless_and_one_with_large_files_does_not(
    passthrough_missing: str | None,
) -> None:
    def after(small: int, large: int, new: int = 0) -> tuple[str, bool]:
        choice = choose(
            "auto",
            immutable=True,
            passthrough_missing=passthrough_missing,
            stateless_missing=None,
            small_opens=small,
            large_opens=large,
            new_opens=new,
        )
        return choice.mode, choice.final

    without = "daemon" if passthrough_missing else "passthrough"
    assert after(63, 0) == (without, False)
    assert after(64, 0) == ("stateless", True)
    assert after(64, 0, 32) == ("stateless", True)
    assert after(64, 0, 33) == (without, True)
    assert after(63, 1) == (without, True)
    assert after(1000, 1) == (without, True)


class Kernel:
    """fs/fuse/iomode.c of one inode: `open` fails as the kernel does (EIO) when a reply breaks its rules."""

    def __init__(self) -> None:
        self.cached = 0
        self.passed = 0

    def open(self, reply: Answer) -> None:
        if reply is Answer.CACHED:
            assert not self.passed, "a cached open of an inode in passthrough mode"
            self.cached += 1
        else:
            assert reply is Answer.PASSED
            assert not self.cached, "a passed open of an inode in cached mode"
            self.passed += 1


# (event, number): an open, the close of one of the open handles, the staged file becoming complete or not.
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.booleans()),
        st.tuples(st.just("close"), st.integers(0, 99)),
        st.tuples(st.just("passable"), st.booleans()),
    ),
    max_size=60,
)


@given(EVENTS)
def test_any_answers_keep_the_kernels_rules_and_nobody_is_sent_away_twice(events: list[tuple[str, int]]) -> None:
    kernel = Kernel()
    handles: list[Answer] = []
    passable = False
    for event, value in events:
        if event == "passable":
            passable = bool(value)
        elif event == "close" and handles:
            reply = handles.pop(value % len(handles))
            kernel.cached -= reply is Answer.CACHED
            kernel.passed -= reply is Answer.PASSED
        elif event == "open":
            reply = answer(cached=kernel.cached, passed=kernel.passed, passable=passable, sent_away=bool(value))
            if reply is Answer.ANEW:
                assert not value
                assert passable or kernel.passed  # it becomes better, or what is read now is damaged
                continue
            kernel.open(reply)
            handles.append(reply)


def test_a_staged_file_is_passed_through_as_soon_as_the_rules_allow() -> None:
    assert answer(cached=0, passed=0, passable=True, sent_away=False) is Answer.PASSED
    assert answer(cached=1, passed=0, passable=True, sent_away=False) is Answer.ANEW
    assert answer(cached=1, passed=0, passable=True, sent_away=True) is Answer.CACHED
    assert answer(cached=0, passed=1, passable=True, sent_away=False) is Answer.PASSED
    assert answer(cached=0, passed=1, passable=False, sent_away=False) is Answer.ANEW
    assert answer(cached=0, passed=1, passable=False, sent_away=True) is Answer.PASSED
    assert answer(cached=0, passed=0, passable=False, sent_away=False) is Answer.CACHED
