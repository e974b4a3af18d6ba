"""What plans are asked of a file that is opened."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from hfs.mountd.core.metrics import Metrics
from hfs.mountd.hints.followed_plans import FollowedPlans
from hfs.mountd.namespace.nodes.node import SOME_NAMES, Dentry, Node
from tests.support.fake_source import attributes

NAMES = 1000


def with_many_names() -> Node:
    root = Node(attributes(2), None, None, b"")
    file = Node(attributes(11), None, root, b"0")
    file.links = {Dentry(file, 0.0, root, b"%d" % number): None for number in range(1, NAMES)}
    return file


class Plans:
    """Three that are followed, and name nothing."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        layout = SimpleNamespace(whole=True, find=lambda path, _hash: self.asked.append(path))
        files = SimpleNamespace(unit=lambda _node: None)
        self._plans = [SimpleNamespace(layout=layout, files=files) for _ in range(3)]

    def __iter__(self) -> Iterator[SimpleNamespace]:
        return iter(self._plans)

    def followed(self) -> Iterator[SimpleNamespace]:
        return iter(self._plans)


def test_an_open_of_a_file_with_many_names_asks_each_plan_for_some_of_them() -> None:
    plans: Any = Plans()
    nobody: Any = None
    assert not FollowedPlans(plans, nobody, nobody, nobody, Metrics()).opened(with_many_names(), staged=True)
    assert len(plans.asked) == 3 * SOME_NAMES
    assert {b"0", b"%d" % (NAMES - 1)} <= set(plans.asked), "the first one, and the newest"
