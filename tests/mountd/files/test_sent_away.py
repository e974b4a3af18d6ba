"""Threads that were sent away from a node are known as long as the node lives."""

from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from hfs.mountd.files.open_modes import SentAway
from hfs.mountd.namespace.nodes.node import Node
from tests.support.fake_source import attributes


def a_node() -> Node:
    return Node(attributes(5, 10), None, None, b"f")


def test_a_thread_is_sent_away_once_and_is_known_until_it_is_answered() -> None:
    away, node, fresh = SentAway(), a_node(), a_node()
    for sent_from in (node, fresh):
        away.add(sent_from, 7)
    assert away.has(fresh, 7)
    assert not away.has(fresh, 8)
    away.came_back(fresh, 7)
    away.came_back(fresh, 7)
    assert not away.has(fresh, 7)
    assert away.has(node, 7), "it may come by the old node again"
    away.forget(node)
    away.forget(node)
    assert not away.has(node, 7)


def test_of_too_many_threads_none_is_sent_away_any_more() -> None:
    away, node = SentAway(), a_node()
    for thread_id in range(64):
        assert not away.has(node, 1000)
        away.add(node, thread_id)
    assert away.has(node, 1000)


def test_who_came_by_a_node_that_had_gone_is_sent_away_from_no_other() -> None:
    away, node = SentAway(), a_node()
    away.add_stale(7)
    assert away.may_have(7)
    assert not away.has(node, 7), "what is no longer right is given to nobody for that"
    assert not away.may_have(8)
    away.came_back(node, 7)
    assert not away.may_have(7)
    for thread_id in range(2000):
        away.add_stale(thread_id)
    assert away.may_have(1999)
    assert not away.may_have(900), "the first ones are forgotten"


def test_a_daemon_that_takes_over_sends_nobody_away_at_first() -> None:
    async def main() -> None:
        away = SentAway()
        away.inherit()
        assert away.may_have(7)
        await trio.sleep(11)
        assert not away.may_have(7)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_while_somebody_makes_overlays_nobody_is_sent_away() -> None:
    """An overlay keeps to the node that it has looked up: it would not find the other one."""
    telling: Any = SimpleNamespace(has_makers=False)
    away = SentAway(telling)
    assert not away.may_have(7)
    telling.has_makers = True
    assert away.may_have(7)
