"""What makes room under which policy, and what never does. A policy is a class and an entry in `eviction.py`: all else
asks it, and nobody asks for its name."""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfs.mountd.core.config.config import KEYS
from hfs.policies.cache import eviction
from hfs.policies.cache.eviction import DEFAULT, HINTED_IDLE_S, IDLE_S, POLICIES, Entry, EvictionPolicy, victims
from hfs.policies.simulation.node import HINTED, WAYS, SimulatedCache, SimulatedMount

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_says_all_that_is_asked(name: str) -> None:
    policy = POLICIES[name]
    assert policy.name == name
    assert policy.use_every_s > 0
    assert isinstance(policy.makes_room, bool)
    assert policy.help
    assert not policy.help.endswith("."), "the key's help ends it"


def test_each_policy_has_its_entry() -> None:
    assert {type(policy) for policy in POLICIES.values()} == {
        kind for kind in vars(eviction).values() if inspect.isclass(kind) and issubclass(kind, EvictionPolicy)
    } - {EvictionPolicy}


def test_the_key_and_the_simulation_know_the_policies_and_no_others() -> None:
    key = next(key for key in KEYS if key.name == "eviction")
    assert key.kind.allowed == " or ".join(POLICIES)
    for name, policy in POLICIES.items():
        assert key.kind.parse(name) == name
        assert f"`{name}`: {policy.help}." in key.meaning
        assert SimulatedMount(1, name).eviction == name
    assert (*POLICIES, HINTED) == WAYS
    assert SimulatedMount(1, HINTED).eviction == DEFAULT


def names_told(path: Path) -> Iterator[str]:
    """Texts of a file that are the name of a policy."""
    text = path.read_text()
    if not any(f'"{name}"' in text for name in POLICIES):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and node.value in POLICIES:
            yield f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}"


def test_nobody_asks_for_the_name_of_a_policy() -> None:
    own = {Path(eviction.__file__).resolve()}
    files = [path for room in ("policies", "mountd", "hfs") for path in (ROOT / room).glob("**/*.py")]
    told = [line for path in files if path.resolve() not in own for line in names_told(path)]
    assert told == [], "ask the policy (policies/cache/eviction.py), so that a new one needs no change here"


class Newest(EvictionPolicy):
    """The last come go first."""

    name = "newest"
    help = "what came last"
    use_every_s = 60
    makes_room = True

    def order(self, entry: Entry) -> tuple[float, ...]:
        return (-entry.last_use_s,)


def test_one_line_is_enough_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Newest()
    entries = [Entry(key, 10, key) for key in range(4)]
    assert [entry.key for entry in victims(entries, 15, policy, now_s=10)] == [3, 2]
    assert [entry.key for entry in victims(entries, 15, policy, now_s=10, forced=True)] == [3, 2]

    monkeypatch.setitem(POLICIES, "newest", policy)
    cache = SimulatedCache(5 * 16_384, "newest", [10_000] * 20)
    for piece in range(20):
        cache.stage(piece, 100.0 * piece)
    assert 0 in cache.staged, "the first have stayed"
    assert len(cache.staged) < 20


NOW_S = 1_000_000
FRESH = Entry(1, 10, NOW_S - 60)
FRESHER = Entry(2, 10, NOW_S - 30)
IDLE = Entry(3, 10, NOW_S - IDLE_S - 1)
SUPERSEDED = Entry(4, 10, NOW_S, superseded=True)
ALL = [FRESHER, FRESH, SUPERSEDED, IDLE]


def _keys(need: int, policy: str, entries: list[Entry] | None = None, *, forced: bool = False) -> list[int]:
    return [entry.key for entry in victims(entries or ALL, need, POLICIES[policy], now_s=NOW_S, forced=forced)]


def test_lru_takes_superseded_files_first_then_the_least_recently_used() -> None:
    assert _keys(35, "lru") == [4, 3, 1, 2]


def test_fill_once_keeps_what_was_used_today() -> None:
    assert _keys(1000, "fill-once") == [4, 3]


def test_fill_once_gives_up_what_is_used_when_the_room_is_no_longer_ours() -> None:
    assert _keys(25, "fill-once", forced=True) == [4, 3, 1]


def test_no_more_than_needed_goes() -> None:
    assert _keys(0, "lru") == []
    assert _keys(10, "lru") == [4]
    assert _keys(11, "lru") == [4, 3]


def test_open_files_never_go() -> None:
    pinned = [replace(entry, pinned=True) for entry in ALL]
    assert _keys(1000, "lru", pinned, forced=True) == []
    assert _keys(1000, "fill-once", pinned, forced=True) == []


entries = st.builds(
    Entry, st.integers(0, 99), st.integers(0, 50), st.integers(0, 2 * NOW_S), st.booleans(), st.booleans()
)


@given(st.lists(entries), st.integers(0, 500), st.sampled_from(["lru", "fill-once"]), st.booleans())
def test_the_last_victim_was_needed_and_the_first_ones_were_not_enough(
    found: list[Entry], need: int, policy: str, forced: bool
) -> None:
    chosen = victims(found, need, POLICIES[policy], now_s=NOW_S, forced=forced)
    freed = [entry.room_bytes for entry in chosen]
    assert not any(entry.pinned for entry in chosen)
    assert not chosen or sum(freed[:-1]) < need
    free = [entry for entry in found if not entry.pinned]
    if policy == "lru" and sum(freed) < need:
        assert len(chosen) == len(free)


@pytest.mark.parametrize("policy", ["fill-once", "lru"])
def test_what_an_order_names_stays_unless_the_room_is_not_ours(policy: str) -> None:
    named = Entry(1, 10, NOW_S - 10 * IDLE_S, hinted=True)
    assert victims([named], 10, POLICIES[policy], now_s=NOW_S) == []
    assert victims([named], 10, POLICIES[policy], now_s=NOW_S, forced=True) == [named]
    gone = Entry(1, 10, NOW_S, superseded=True, hinted=True)
    assert victims([gone], 10, POLICIES[policy], now_s=NOW_S) == [gone]


def test_fill_once_gives_up_what_is_idle_for_an_hour_while_orders_lack_room() -> None:
    hour, minute = Entry(1, 10, NOW_S - 3601), Entry(2, 10, NOW_S - 60)
    assert victims([hour, minute], 20, POLICIES["fill-once"], now_s=NOW_S) == []
    assert victims([hour, minute], 20, POLICIES["fill-once"], now_s=NOW_S, idle_s=HINTED_IDLE_S) == [hour]
