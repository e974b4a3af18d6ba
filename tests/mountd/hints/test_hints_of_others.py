"""Orders of users who are neither root nor the owner: only what they may read at the source is fetched, or told."""

from __future__ import annotations

import pytest
import trio

from hfs.mountd.core.caller import Credentials
from hfs.mountd.hints import hints, plan_registry
from hfs.mountd.hints.hint_session import HintSession
from hfs.mountd.wire.hints import LayoutFrame, LayoutPart, encode_layout, layout_digest
from hfs.mountd.wire.layout import LayoutError
from hfs.mountd.wire.protocol import Failure, Join
from tests.conftest import Logs
from tests.support.fake_source import FakeSource
from tests.support.hinted_orders import joined, list_of, order, samples_of, shown, source_of, told
from tests.support.read_parts import CHUNK, Parts, daemon

ANN, BOB = Credentials(1000, 1000, (7,)), Credentials(1001, 1000, ())


def fetched(parts: Parts) -> list[bytes]:
    return [path for path, _ in parts.source.reads]


async def follows(parts: Parts, count: int, readable: set[int] | None, reader: Credentials = ANN) -> HintSession:
    parts.built.answers = None if readable is None else {b"%d" % number for number in readable}
    learner = await joined(parts, list_of(count), reader=reader)
    await told(learner, order(list(range(count))))
    await trio.sleep(10)
    return learner


async def test_only_what_a_reader_may_read_is_fetched(logs: Logs) -> None:
    logs.expect("names what cannot be had")
    async with daemon(source_of(6), workers=1) as parts:
        learner = await follows(parts, 6, {0, 2, 5})
        assert fetched(parts) == [b"d/0", b"d/2", b"d/5"]
        (layout,) = (await shown(parts.learners, ANN))["layouts"]
        assert layout["missing"] == 3
        assert parts.built.asked == [(ANN.uid, b"%d" % number) for number in range(6)], "each once"
        learner.leave()


async def test_a_chunk_of_a_file_that_may_not_be_read_is_not_fetched(logs: Logs) -> None:
    logs.expect("names what cannot be had")
    source = source_of(1, 4 * CHUNK)
    async with daemon(source, workers=1) as parts:
        parts.built.answers = set()
        learner = await joined(parts, samples_of(b"d/0", 4 * CHUNK, CHUNK), reader=ANN)
        await told(learner, order([3, 1]))
        await trio.sleep(10)
        assert fetched(parts) == []
        parts.built.answers = {b"0"}
        learner.leave()
        learner = await joined(parts, samples_of(b"d/0", 4 * CHUNK, CHUNK), reader=ANN)
        await told(learner, order([3, 1]))
        await trio.sleep(10)
        assert set(fetched(parts)) == {b"d/0"}
        assert parts.built.asked == [(ANN.uid, b"0")] * 3, "after a no for each chunk, after a yes once"
        learner.leave()


def farm() -> FakeSource:
    source = source_of(2)
    source.directory(b"own", 20)
    source.directory(b"e", 30)
    source.file(b"e/3", 31, 100)
    source.file(b"e/secret", 32, 100)
    for number, target in enumerate((b"../e/3", b"0", b"1", b"../e/secret")):
        source.link(b"d/%d" % (number + 2), 50 + number, target)
    return source


async def test_what_links_name_is_fetched_if_it_may_be_read_and_reached(logs: Logs) -> None:
    logs.expect("names what cannot be had")
    async with daemon(farm(), workers=1) as parts:
        parts.built.closed = {(b"d", b"4")}
        learner = await follows(parts, 6, {0, 3})
        assert sorted(fetched(parts)) == [b"d/0", b"e/3"]
        assert (await shown(parts.learners, ANN))["layouts"][0]["missing"] == 3
        learner.leave()


@pytest.mark.parametrize("swapped", [b"d/2", b"e/3"])
async def test_a_link_that_is_swapped_leads_to_nothing_else(swapped: bytes, logs: Logs) -> None:
    """Nor what it named, when that becomes a link."""
    if swapped == b"e/3":
        logs.expect("names what cannot be had")
    source = farm()
    async with daemon(source, workers=1) as parts:

        def swap(names: list[bytes]) -> None:
            if names != [b"3"]:
                return
            source.link(swapped, 99, b"../e/secret")
            for directory in parts.namespace.root.children.values():
                for dentry in directory.node.children.values():
                    dentry.expires_s = -1.0

        parts.built.asked_for = swap
        learner = await follows(parts, 3, {0, 1, 3})
        assert sorted(fetched(parts)) == [b"d/0", b"d/1", *[b"e/3"] * (swapped == b"d/2")]
        learner.leave()


async def test_a_link_that_leads_out_is_no_failure(logs: Logs) -> None:
    source = farm()
    source.link(b"d/2", 99, b"../../elsewhere")
    async with daemon(source, workers=1) as parts:
        learner = await follows(parts, 3, {0, 1})
        (layout,) = (await shown(parts.learners, ANN))["layouts"]
        assert (layout["missing"], layout["outside"]) == (0, 1)
        assert learner.shown()["staged_share"] == 1.0
        learner.leave()


async def test_while_the_source_does_not_say_nothing_is_fetched_and_then_all_is() -> None:
    async with daemon(source_of(3), workers=1) as parts:
        learner = await follows(parts, 3, None)
        assert fetched(parts) == []
        assert (await shown(parts.learners, ANN))["layouts"][0]["missing"] == 0
        parts.built.answers = {b"0", b"1", b"2"}
        await trio.sleep(60)
        assert sorted(fetched(parts)) == [b"d/0", b"d/1", b"d/2"]
        learner.leave()


async def test_the_same_layout_of_two_users_says_nothing_to_either(logs: Logs) -> None:
    logs.expect("names what cannot be had")
    async with daemon(source_of(4), workers=1) as parts:
        first = await follows(parts, 4, {0, 1, 2, 3})
        assert first.shown()["staged_share"] == 1.0
        second = await follows(parts, 4, set(), BOB)
        assert second.shown()["staged_share"] == 0.0
        for number in range(4):
            parts.opening.close(await parts.open(b"d/%d" % number))
        assert second.shown()["staged_share"] == 0.0, "others have opened and closed what is staged"
        assert [one["pid"] for one in (await shown(parts.learners, BOB))["learners"]] == [7]
        assert len((await shown(parts.learners))["learners"]) == 2
        first.leave()
        second.leave()
        assert [len((await shown(parts.learners, reader))["past"]) for reader in (ANN, BOB, None)] == [1, 1, 2]


async def test_the_next_job_is_asked_for_anew(logs: Logs) -> None:
    logs.expect("names what cannot be had")
    async with daemon(source_of(3), workers=1) as parts:
        (await follows(parts, 3, {0, 1, 2})).leave()
        assert len(parts.learners.plans) == 0
        learner = await follows(parts, 3, {1})
        assert (await shown(parts.learners, ANN))["layouts"][0]["missing"] == 2
        learner.leave()


async def test_a_rank_of_another_user_stands_in_nobodys_way() -> None:
    async with daemon(source_of(2), workers=1) as parts:
        sessions = [await joined(parts, list_of(2), process=f"p{uid}", reader=BOB._replace(uid=uid)) for uid in (5, 6)]
        same = Join(sessions[0].join.layout, name="train", process="other")
        refused = parts.learners.join(same, 9, BOB._replace(uid=5))[1]
        assert isinstance(refused, Failure)
        assert "rank 0 of 1 has joined already" in refused.message
        for session in sessions:
            session.leave()


async def test_one_user_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "_OF_A_USER", 1)
    async with daemon(source_of(2), workers=1) as parts:
        sessions = [await joined(parts, list_of(2), reader=reader) for reader in (ANN, BOB)]
        refused = parts.learners.join(Join("x", process="another"), 9, ANN)[1]
        assert isinstance(refused, Failure)
        assert "1 learners of user 1000 have joined" in refused.message
        sessions.append(await joined(parts, list_of(2)))
        for session in sessions:
            session.leave()


async def test_one_user_has_half_of_the_memory_of_hints(monkeypatch: pytest.MonkeyPatch, logs: Logs) -> None:
    logs.expect("is not followed")
    blob = encode_layout(list_of(1000))
    async with daemon(source_of(1), workers=1) as parts:
        monkeypatch.setattr(plan_registry, "_MAX_MEMORY_BYTES", len(blob) * 3)
        learner, _ = parts.learners.join(Join("x"), 9, ANN)
        assert learner is not None
        refused = await learner.receive(LayoutPart(blob * 2, False))
        assert isinstance(refused, Failure)
        assert "of one user" in refused.message
        learner.leave()
        owner, _ = parts.learners.join(Join("x"), 9)
        assert owner is not None
        assert await owner.receive(LayoutPart(blob * 2, False)) is None
        owner.leave()


async def test_short_names_are_many_files_and_counted_before_they_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, logs: Logs
) -> None:
    logs.expect("is not followed")
    layout = LayoutFrame(files=b"\0".join([b"a"] * 1000))
    blob = encode_layout(layout)
    monkeypatch.setattr(plan_registry, "_MAX_MEMORY_BYTES", 10 * len(blob))
    monkeypatch.setattr(plan_registry, "UnitLayout", None)  # would fail
    async with daemon(source_of(1), workers=1) as parts:
        learner, _ = parts.learners.join(Join(layout_digest(blob), name="x\nCRITICAL all is lost"), 9, ANN)
        assert learner is not None
        refused = await learner.receive(LayoutPart(blob, True))
        assert isinstance(refused, Failure)
        assert "are more than the 20590 that are kept" in refused.message
        learner.leave()
    assert ["\n" in record.getMessage() for record in logs.records] == [False], "a line of the log is ours"


async def test_others_leave_room_for_root_and_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "_OF_OTHERS", 2)
    monkeypatch.setattr(hints, "MAX_LEARNERS", 1)
    async with daemon(source_of(2)) as parts:
        sessions = [await joined(parts, list_of(2), reader=reader) for reader in (ANN, BOB)]
        refused = parts.learners.join(Join("x", process="another"), 9, BOB._replace(uid=5))[1]
        assert isinstance(refused, Failure)
        sessions.append(await joined(parts, list_of(2)))
        for session in sessions:
            session.leave()


async def test_layouts_that_are_read_at_once_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = plan_registry.HintMemory()
    monkeypatch.setattr(plan_registry, "_MAX_MEMORY_BYTES", 100)
    with memory.reserved(30, ANN):
        memory.check_room(45, BOB)
        with pytest.raises(LayoutError, match="of one user"):
            memory.check_room(30, ANN)
        with pytest.raises(LayoutError, match="do not own the mount"):
            memory.check_room(46, BOB)
        memory.check_room(70, None)
    memory.check_room(50, ANN)
