"""Peers give right bytes or none, whatever goes wrong between them, and nobody waits for one that hangs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from hfs.mountd.core.errors import ConfigError, SourceError
from hfs.mountd.peers.answering import TAKEN_S
from hfs.mountd.peers.asking import REST_S, PeerAnswer
from hfs.mountd.peers.joining import Agreed, OwnerTable, agree, decode_infos, encode_info
from hfs.mountd.peers.messages import ChunkRequest, MessageError, Offer, Patience, Refusal, decode, encode
from hfs.policies.geometry import Extent
from tests.conftest import Logs
from tests.support.peer_job import CARD, CHUNK, SILENCE_S, VERSION, job


async def test_a_chunk_comes_from_its_owner_and_one_s_own_from_nowhere() -> None:
    async with job() as nodes:
        assert await nodes.fetch(nodes.path_at(1)) is PeerAnswer.HIT
        assert await nodes.fetch(nodes.path_at(0)) is PeerAnswer.MISS
        assert (nodes.metrics[0]["peer_reads"], nodes.metrics[1]["peer_served"]) == (1, 1)
        assert nodes.nodes[0].owners.caches_locally(nodes.path_at(0), 0)
        assert not nodes.nodes[0].owners.caches_locally(nodes.path_at(1), 0)
    async with job(placement="replicate") as nodes:
        assert nodes.nodes[0].owners.caches_locally(nodes.path_at(1), 0)


@pytest.mark.parametrize("lost", [ChunkRequest, Offer])
async def test_a_peer_that_says_nothing_is_waited_for_once(lost: type, logs: Logs) -> None:
    """Whichever message is lost. Then it is left alone for a while, and asked again after."""
    logs.expect("node 1 has not answered for 10 s")
    async with job() as nodes:
        nodes.network.fault = lambda _sender, _to, message: None if isinstance(decode(message), lost) else message
        path = nodes.path_at(1)
        start_s = trio.current_time()
        assert await nodes.fetch(path) is PeerAnswer.MISS
        assert trio.current_time() - start_s == pytest.approx(SILENCE_S, abs=2.1)
        start_s = trio.current_time()
        assert await nodes.fetch(path) is PeerAnswer.MISS
        assert trio.current_time() == start_s
        assert nodes.metrics[0]["peer_faults"] == 1
        await trio.sleep(REST_S)
        assert await nodes.fetch(path) is PeerAnswer.MISS
        assert nodes.metrics[0]["peer_faults"] == (2 if lost is ChunkRequest else 1)
        nodes.network.fault = lambda _sender, _to, message: message
        nodes.network.release()
        await trio.sleep(2 * REST_S)
        assert await nodes.fetch(path) is PeerAnswer.HIT


async def test_a_peer_that_waits_itself_is_waited_for() -> None:
    async with job() as nodes:
        nodes.stores[1].delay_s = 100
        assert await nodes.fetch(nodes.path_at(1)) is PeerAnswer.HIT
        assert trio.current_time() >= 100


async def test_a_late_answer_does_not_land_in_a_buffer_that_is_used_again(logs: Logs) -> None:
    logs.expect("node 1 has not answered for 10 s")
    async with job() as nodes:
        nodes.network.fault = lambda _sender, _to, message: None if isinstance(decode(message), Offer) else message
        buffer = bytearray(CHUNK)
        assert await nodes.fetch(nodes.path_at(1), buffer) is PeerAnswer.MISS
        buffer[:] = bytes(CHUNK)
        nodes.network.release()
        await trio.sleep(1)
        assert buffer == bytes(CHUNK)
        assert not nodes.network.gifts, "the sender got rid of its bytes"


async def test_a_buffer_that_bytes_are_coming_into_is_not_given_back(logs: Logs) -> None:
    """The owner hangs in the middle of its answer, or dies there."""
    logs.expect("node 1 has not answered for 10 s")
    async with job(3) as nodes:
        nodes.network.transfer_s = 1000
        start_s = trio.current_time()
        assert await nodes.fetch(nodes.path_at(1)) is PeerAnswer.BUFFER_IN_USE
        assert trio.current_time() - start_s < SILENCE_S + 1
        async with trio.open_nursery() as nursery:
            found: list[PeerAnswer] = []

            async def ask() -> None:
                found.append(await nodes.fetch(nodes.path_at(2)))

            nursery.start_soon(ask)
            await trio.sleep(0.5)
            nodes.network.kill(2)
        assert found == [PeerAnswer.BUFFER_IN_USE]


async def test_a_wrong_checksum_is_no_answer(logs: Logs) -> None:
    logs.expect("checksum is wrong")
    async with job() as nodes:

        def spoil(_sender: int, _to: int, message: bytes) -> bytes:
            word = decode(message)
            return encode(Offer(word.request, word.size, word.checksum ^ 1)) if isinstance(word, Offer) else message

        nodes.network.fault = spoil
        assert await nodes.fetch(nodes.path_at(1)) is PeerAnswer.MISS
        assert nodes.metrics[0]["peer_faults"] == 1


@pytest.mark.parametrize("error", [SourceError(5, "the source"), ValueError("a defect")])
async def test_whatever_fails_at_the_home_the_source_is_next_at_once(error: Exception, logs: Logs) -> None:
    if isinstance(error, ValueError):
        logs.expect("unforeseen error while a peer was answered")
    async with job() as nodes:
        nodes.stores[1].error = error
        start_s = trio.current_time()
        assert await nodes.fetch(nodes.path_at(1)) is PeerAnswer.MISS
        assert trio.current_time() - start_s < 1
        nodes.stores[1].error = None
        assert await nodes.fetch(nodes.path_at(1)) is PeerAnswer.HIT


async def test_what_a_lost_node_was_home_of_belongs_to_another() -> None:
    async with job(3) as nodes:
        path = nodes.path_at(1)
        nodes.stores[1].delay_s = 1000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(nodes.fetch, path)
            await trio.sleep(1)
            nodes.network.kill(1)
        assert trio.current_time() < 2, "who waited for it waits no longer"
        await trio.sleep(1)
        owners = [nodes.nodes[number].owners.owner(path, 0) for number in (0, 2)]
        assert owners[0] == owners[1] != 1
        assert nodes.nodes[0].view.directory()["gone"] == [1]
        asker = 2 - owners[0]
        assert await nodes.fetch(path, asker=asker) is PeerAnswer.HIT


async def test_a_new_owner_asks_who_owned_it_before() -> None:
    """Where a node has gone, and where it has come back; of what is not new to it nobody is asked."""
    async with job(3) as nodes:
        path, of_others = nodes.path_at(1), [nodes.path_at(0), b"", nodes.path_at(2)]
        nodes.network.kill(1)
        await trio.sleep(1)
        owner = nodes.nodes[0].owners.owner(path, 0)
        assert await nodes.fetch(path, asker=owner) is PeerAnswer.HIT
        assert await nodes.fetch(of_others[owner], asker=owner) is PeerAnswer.MISS
        nodes.start_again(1)
        await trio.sleep(1)
        assert await nodes.fetch(path, asker=1) is PeerAnswer.HIT
        assert [len(store.asked) for store in nodes.stores] == [1, 0, 1]
        nodes.stores[owner].has = False
        assert await nodes.fetch(path, asker=1) is PeerAnswer.MISS


async def test_nodes_that_go_together_are_counted_out_together() -> None:
    """Each change may cost a tenth of a second of processor time, on every node of many."""
    calls: list[object] = []

    async def run(function: Callable[..., object], *args: object) -> object:
        calls.append(args)
        await trio.sleep(1)
        return function(*args)

    owners = OwnerTable(agree([CARD] * 9), 0, run)
    async with trio.open_nursery() as nursery:
        for node in range(1, 9):
            owners.lose(node)
            nursery.start_soon(owners.renew)
            await trio.sleep(0.01)
    assert set(owners.table.tolist()) == {0}
    assert len(calls) == 2


async def test_a_table_that_could_not_be_made_is_made_at_the_next_change() -> None:
    async def run(function: Callable[..., object], *args: object) -> object:
        if len(owners.gone) == 1:
            raise MemoryError
        return function(*args)

    owners = OwnerTable(agree([CARD] * 3), 0, run)
    owners.lose(1)
    with pytest.raises(MemoryError):
        await owners.renew()
    owners.lose(2)
    await owners.renew()
    assert set(owners.table.tolist()) == {0}


async def test_who_waits_for_a_node_that_comes_back_asks_it_again() -> None:
    async with job(3) as nodes, trio.open_nursery() as nursery:
        nodes.stores[1].delay_s = 100
        nursery.start_soon(nodes.fetch, nodes.path_at(1))
        await trio.sleep(1)
        nodes.stores[1].delay_s = 0.01
        nodes.network.kill(1)
        nodes.start_again(1)
        await trio.sleep(1)
        assert nodes.metrics[0]["peer_reads"] == 1


@pytest.mark.slow
async def test_few_are_answered_at_a_time_and_too_many_are_refused() -> None:
    async with job() as nodes:
        nodes.stores[1].delay_s = 0.01
        path = nodes.path_at(1)
        found: list[PeerAnswer] = []

        async def ask() -> None:
            found.append(await nodes.fetch(path))

        async with trio.open_nursery() as nursery:
            for _ in range(1100):
                nursery.start_soon(ask)
        assert nodes.stores[1].most_at_once == 16
        assert found.count(PeerAnswer.MISS) == 1100 - 16 - 1024 == nodes.metrics[1]["peer_refused_busy"]


async def test_a_peer_that_does_not_take_its_bytes_is_not_answered_again() -> None:
    async with job() as nodes:
        path = nodes.path_at(1)
        wish = ChunkRequest(5, path, VERSION, CHUNK, 0, CHUNK)
        nodes.network.nodes[0].send_nowait(1, encode(wish))  # and nobody there takes what comes
        await trio.sleep(TAKEN_S + 1)
        assert await nodes.fetch(path) is PeerAnswer.MISS
        assert nodes.metrics[1]["peer_refused_busy"] == 1
        nodes.network.nodes[0].take_nowait(1, 5, memoryview(bytearray(CHUNK)), lambda _whole: None)
        await trio.sleep(1)
        assert await nodes.fetch(path) is PeerAnswer.HIT


async def test_who_wants_much_memory_for_peers_waits_for_others() -> None:
    async with job() as nodes:
        peers = nodes.nodes[0]
        async with peers.room(16 * CHUNK, urgent=True), peers.room(16 * CHUNK, urgent=False):
            with trio.move_on_after(1) as limit:
                async with peers.room(1, urgent=True):
                    pass
            assert limit.cancelled_caught
        async with peers.room(1000 * CHUNK, urgent=True):  # alone, whatever it wants
            pass


async def test_only_to_have_a_chunk_staged_moves_no_bytes() -> None:
    async with job() as nodes:
        assert await nodes.nodes[0].have_staged(nodes.path_at(1), VERSION, CHUNK, Extent(0, CHUNK))
        assert nodes.stores[1].asked == [Extent(0, 0)]
        assert nodes.metrics[0]["peer_read_bytes"] == 0


async def test_all_nodes_say_how_they_are_and_who_does_not_is_named() -> None:
    async with job(4) as nodes:
        nodes.network.fault = lambda _sender, to, message: None if to == 2 else message
        nodes.network.kill(3)
        assert await nodes.fetch(nodes.path_at(1)) is PeerAnswer.HIT
        start_s = trio.current_time()
        first, second, *others = await nodes.nodes[0].view.figures({"staged": 7})
        assert trio.current_time() - start_s == pytest.approx(5)
        own, theirs = first.pop("figures"), second.pop("figures")
        assert [first, second] == [{"node": "host#0"}, {"node": "host#1"}]
        assert others == [{"node": "host#2", "error": "no answer"}, {"node": "host#3", "error": "gone"}]
        assert isinstance(own, dict)
        assert isinstance(theirs, dict)
        assert (own.pop("staged"), theirs.pop("staged")) == (7, 5)
        assert [own.pop("share"), theirs.pop("share")] == pytest.approx([333_333] * 2, rel=0.02)
        assert (own, theirs) == ({"bytes of host#1": CHUNK, "us of host#1": pytest.approx(10_000, rel=2)}, {})


async def test_messages_that_mean_nothing_are_dropped() -> None:
    async with job() as nodes:
        for message in (b"\xff\xff", bytes(100), encode(Offer(99, 5, 5)), encode(Patience(3)), encode(Refusal(4))):
            nodes.network.nodes[1].send_nowait(0, message)
        await trio.sleep(1)
        assert await nodes.fetch(nodes.path_at(1)) is PeerAnswer.HIT


@given(st.binary(max_size=40))
def test_decode_gives_a_word_or_a_word_error(message: bytes) -> None:
    try:
        decode(message)
    except MessageError:
        pass


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_message_may_be_lost_delayed_or_spoilt(data: st.DataObject) -> None:
    """Whatever becomes of them: right bytes or none, within the limit."""

    async def main() -> None:
        async with job(3) as nodes:

            def fault(_sender: int, _to: int, message: bytes) -> bytes | None:
                kind = data.draw(st.sampled_from(["right", "right", "lost", "late", "spoilt"]))
                if kind == "lost":
                    return None
                if kind == "spoilt":
                    at = data.draw(st.integers(0, len(message) - 1))
                    return message[:at] + bytes([message[at] ^ 1]) + message[at + 1 :]
                return message

            nodes.network.fault = fault
            for _ in range(4):
                buffer = bytearray(CHUNK)
                start_s = trio.current_time()
                path = nodes.path_at(data.draw(st.sampled_from([1, 2])))
                await nodes.fetch(path, buffer)
                assert trio.current_time() - start_s < 3 * SILENCE_S
                nodes.network.release()

    logging.disable(logging.WARNING)  # each example warns of something else
    try:
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        logging.disable(logging.NOTSET)


def test_cards_that_differ_are_told_with_nodes_and_values() -> None:
    card = partial(msgspec.structs.replace, CARD)
    assert agree([card(), card(host="other")]).names == ("host", "other")
    assert agree([card(), card()]).names == ("host#0", "host#1")
    for change, said in [
        ({"hfs_version": "2"}, r"the version of hfs differs: 1 on host#0, host#1; 2 on new; install"),
        ({"source_id": "a" * 16}, r"the source differs: f{16} on host#0, host#1; a{16} on new; give"),
        ({"root_inode": 9}, r"the directory of the source differs"),
        ({"reader": "61001:61001:"}, r"--as-user differs"),
        ({"chunk_bytes": 1 << 20}, r"--chunk differs"),
        ({"placement": "auto"}, r"--placement differs"),
        ({"stagger_job": 2}, r"-o stagger-job differs: 64 on"),
        ({"peer_timeout_s": 2.0}, r"-o peer-timeout differs: 10.0 on"),
        ({"fault": "no disk"}, r"new cannot start: no disk"),
    ]:
        with pytest.raises(ConfigError, match=said):
            agree([card(), card(), card(host="new", **change)])
    with pytest.raises(ConfigError, match="daemon 1 is of another release"):
        decode_infos([encode_info(card()), b"what"])


def agreed(placement: str, data_bytes: int | None, *capacities: int) -> Agreed:
    card = msgspec.structs.replace(CARD, placement=placement, data_bytes=data_bytes)
    return agree([msgspec.structs.replace(card, capacity_bytes=capacity) for capacity in capacities])


def test_auto_replicates_what_fits_every_node() -> None:
    assert agreed("auto", 100, 100, 200).placement == "replicate"
    assert agreed("auto", 101, 100, 200).placement == "partition"
    assert agreed("auto", None, 100, 200).placement == "partition"
    assert agreed("auto", 50, 100, 0).placement == "replicate"


def test_what_all_caches_have_no_room_for_is_known_to_all_alike_and_stays_so() -> None:
    def data(*infos: dict[str, object]) -> float:
        return agree([msgspec.structs.replace(CARD, **info) for info in infos]).nodes.data

    assert (
        data({"data_bytes": 900}, {})
        == data({}, {"data_bytes": 900})
        == data({"data_bytes": 7}, {"data_bytes": 900})
        == 900
    )
    assert data({"settled": "partition", "data_bytes": 900}, {"data_bytes": 950}) == 900, "those that share have agreed"
    assert data({}, {"data_bytes": 900, "encodes": True}) == data({"settled": "replicate", "data_bytes": 9}, {}) == 0


async def test_what_no_cache_has_room_for_is_read_by_who_wants_it_and_staged_by_nobody() -> None:
    async with job(3, data_bytes=6 << 40) as nodes:
        owners = nodes.nodes[0].owners
        paths = [b"%d" % number for number in range(1000)]
        left = next(path for path in paths if not owners.is_kept(path, 0))
        assert not owners.caches_locally(left, 0)
        assert owners.asked_first(left, 0) is None
        assert await nodes.fetch(left) is PeerAnswer.MISS
        assert not any(store.asked for store in nodes.stores)
        assert {node.owners.owner(left, 0) for node in nodes.nodes} == {owners.owner(left, 0)}
        assert sum(owners.is_kept(path, 0) for path in paths) == pytest.approx(500, abs=60)


def test_each_node_knows_how_much_it_would_keep() -> None:
    def shares(placement: str, data_bytes: int | None, *capacities: int) -> list[int | None]:
        return [*map(agreed(placement, data_bytes, *capacities).share_bytes, range(len(capacities)))]

    assert shares("partition", 900, 100, 200, 0) == [300, 600, 0]
    assert shares("replicate", 900, 100, 200) == [900, 900]
    assert shares("partition", None, 100, 200) == [None, None]
