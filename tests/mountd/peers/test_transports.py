"""The fake network and ZeroMQ do what every transport must; MPI runs the same in tests/mpi/test_harness.py."""

from functools import partial

import trio

from tests.support.fake_transport import FakeNetwork
from tests.support.transport_exchange import exchange
from tests.support.zeromq_nodes import zeromq_nodes


async def test_the_fake_network() -> None:
    async with trio.open_nursery() as nursery:
        network = FakeNetwork(nursery, 3)
        async with trio.open_nursery() as nodes:
            for node in network.nodes:
                nodes.start_soon(partial(exchange, node, [*{0, 1, 2} - {node.number}], goes_first=node.number == 1))


def test_zeromq() -> None:
    async def main() -> None:
        async with zeromq_nodes(3) as nodes, trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(partial(exchange, node, [1, 2], goes_first=node is nodes[1]))

    trio.run(main)
