"""The fake network and ZeroMQ do what every transport must; MPI runs the same in tests/mpi/test_harness.py."""

from functools import partial
from unittest.mock import Mock

import trio
from zmq.utils import z85

from hfs.mountd.peers.sockets import Sockets
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


def test_a_key_that_is_not_the_secrets_is_refused() -> None:
    sockets = Sockets(b"s" * 32)
    sockets.context.destroy(0)
    for key, code in ((z85.decode(sockets._public), b"200"), (bytes(32), b"400")):
        sockets.zap = Mock(**{"recv_multipart.return_value": [b"1.0", b"1", b"hfs", b"", b"", b"CURVE", key]})
        sockets.authenticate()
        assert sockets.zap.send_multipart.call_args[0][0][2] == code
