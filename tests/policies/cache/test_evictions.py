"""A policy of eviction is a class and an entry in `evictions.py`: all else asks it, and nobody asks for its name."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hfs.mountd.core.config.config import KEYS
from hfs.policies.cache import evictions
from hfs.policies.cache.eviction import Entry, EvictionPolicy, victims
from hfs.policies.cache.evictions import DEFAULT, POLICIES
from hfs.policies.simulation.cache import SimulatedCache
from hfs.policies.simulation.pieces import HINTED, WAYS, Pieces, SimulatedMount

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
        kind for kind in vars(evictions).values() if inspect.isclass(kind) and issubclass(kind, EvictionPolicy)
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
    own = {Path(evictions.__file__).resolve()}
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
    count, size = 20, 10_000
    each = np.arange(count)
    pieces = Pieces(np.full(count, size), each, np.zeros(count, int), [b"%d" % i for i in range(count)], each)
    cache = SimulatedCache(5 * 16_384, "newest", pieces)
    for piece in range(count):
        cache.stage(piece, 100.0 * piece)
    assert 0 in cache, "the first have stayed"
    assert len(cache.pieces()) < count
