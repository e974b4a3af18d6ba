"""Whatever a daemon or a keeper of another user says, commands show it or say in a line why not; none ends over it."""

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from hfs.cli.learners import epochs_table, learners_table
from hfs.cli.mount_notes import notes, parts
from hfs.cli.render import render_tree
from hfs.cli.situation import situation_of
from hfs.cli.status_screen import run_lines, screen
from hfs.client.client import Client, DaemonSilent
from hfs.client.told import Nonsense, ReportedByKeeper, ReportedStatus, check, decode_json
from hfs.mountd.core.config import Config
from hfs.mountd.wire.protocol import Message, Result, encode
from hfs.policies.diagnosis.causes import found
from tests.hfs.daemon import speaking
from tests.support.statuses import STATUS, learner

WHOLE: dict[str, Any] = {
    **STATUS,
    "hints": {"learners": [learner(0, 1.0)], "past": [learner(1, 5.0)], "layouts": []},
    "readers": STATUS["readers"][:2],
    "keeper": {"pid": 5, "restarts": 1, "last_end": "was ended by SIGKILL", "reason": None},
    "io_mode": {**STATUS["io_mode"], "reason": "the kernel has it", "passthrough": "yes", "stateless": "no"},
    "faults": {"staging_errors": 1},
    "background_faults": {"scrub": 1},
    "stale_served": 2,
    "read_bytes": {"bypass": 5},
    "evicted": {"bytes": 7},
    "kernel": {"read_ahead_kb": 1024, "max_background": 512, "notes": ["a note"]},
    "monitoring": {"address": "127.0.0.1:9", "error": None, "file": None, "file_error": "no room"},
    "config": {"metrics": {"value": "127.0.0.1:9", "origin": "option"}, "foreground": {"value": False, "origin": "x"}},
    "counters": {"bytes_large": {"value": 7, "meaning": "bytes"}},
}
ESCAPE = "\x1b]0;owned\x07\n\u202eremoved /etc/passwd"
WRONG: list[Any] = [
    *(ESCAPE, None, -1, 1.5, float("nan"), float("-inf"), 1e308, -(1 << 63), True, [], {}, [[]], [None], {"": None}),
    *({"a": {"b": ESCAPE}}, [ESCAPE, 1], "A" * 70000, [{"epochs": [{"batches": 1}]}]),
]


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Ways to all values in it."""
    below = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [way for key, value in below for way in ((*path, key), *places(value, (*path, key)))]


def changed(tree: dict[str, Any], random_: random.Random) -> dict[str, Any]:
    """The same with some values that are something else, or missing."""
    made = copy.deepcopy(tree)
    for _ in range(random_.choice((1, 1, 2, 5))):
        *way, last = random_.choice(places(made))
        branch: Any = made
        for key in way:
            branch = branch[key]
        if random_.random() < 0.3 and isinstance(branch, dict):
            del branch[last]
        else:
            branch[last] = copy.deepcopy(random_.choice(WRONG))
    return made


def show(status: dict[str, Any]) -> list[str]:
    """As `hfs status`, `why`, `run`, `mount -v` and `hfs-hint show` do."""
    causes = [text for cause in found(situation_of(status)) for text in (cause.what, cause.evidence, cause.remedy)]
    hints = status.get("hints") or {}
    assert all(causes), "there is a text"
    learners_table(hints), epochs_table(hints), list(render_tree(status)), parts(status)
    list(notes(Config(source="/s", mountpoint="/m", cache="/c", metrics="127.0.0.1:9"), status))
    return [*screen(status), *run_lines(status)]


@pytest.mark.slow
def test_what_is_let_through_can_be_shown() -> None:
    """One line each; and what a daemon of ours says is let through."""
    check(WHOLE, ReportedStatus)
    assert show(WHOLE)
    random_, let_through = random.Random(7), 0
    for _ in range(800):
        status = changed(WHOLE, random_)
        try:
            check(status, ReportedStatus)
        except Nonsense as error:
            assert str(error).isprintable()
            continue
        let_through += 1
        assert all(line.isprintable() for line in show(status)), status
    assert 100 < let_through < 700


def nested(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


@pytest.mark.parametrize("detail", [{"staged": 5}, {"x": nested(500)}, {"x": float("nan")}, {"x": ["A" * 70000]}])
def test_a_status_that_makes_no_sense_is_one_line(tmp_path: Path, detail: dict[str, Any]) -> None:
    with speaking(tmp_path / "s", encode(Result(detail=detail))), pytest.raises(DaemonSilent, match="makes no sense"):
        Client(str(tmp_path / "s")).status()


@pytest.mark.parametrize("ask", ["cluster", "warm", "estimate", "evict"])
def test_every_answer_that_is_shown_is_looked_at(tmp_path: Path, ask: str) -> None:
    detail = {"nodes": [5], "pinned_files": ESCAPE, "missing_bytes": ESCAPE}
    arguments = () if ask == "cluster" else ([b"x"],)
    with speaking(tmp_path / "s", encode(Result(detail=detail))), pytest.raises(DaemonSilent, match="makes no sense"):
        getattr(Client(str(tmp_path / "s")), ask)(*arguments)


def test_texts_of_a_refusal_are_one_line(tmp_path: Path) -> None:
    class Failure(Message, frozen=True):
        message: str

    with speaking(tmp_path / "s", encode(Failure(ESCAPE))), pytest.raises(Exception, match="removed") as caught:
        Client(str(tmp_path / "s")).status()
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "said",
    [
        *({"held_by": 5}, {"held_by": [5]}, {"held_by": [{"job": 4711}]}, {"config": []}, {"device": 7}),
        *({"mountpoint": ["/m"]}, {"refusing": {"a": 1}}, {"given": "yes"}, {"config": {"a": nested(500)}}),
    ],
)
def test_a_keeper_that_makes_no_sense(said: dict[str, Any]) -> None:
    with pytest.raises(Nonsense):
        check(said, ReportedByKeeper)


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b'{"a": NaN}', b"\xff", b'{"a": 1}x'])
def test_what_is_no_json(data: bytes) -> None:
    assert decode_json(data) is None
    assert decode_json(json.dumps(WHOLE).encode()) == WHOLE
