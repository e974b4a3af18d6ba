"""What the keeper writes, with the standard library alone, is what the daemon reads."""

import base64
import json

import pytest

from hfs.mountd.core.config import Config
from hfs.mountd.core.config.loading import dump, undump
from hfs.mountd.core.errors import ConfigError
from hfs.mountd.wire.handover import Handover, descriptors_of, handed_over


def test_it_comes_beside_the_configuration() -> None:
    config = Config(source="/caf\udce9", mountpoint="/m", cache="/c")
    alone = dump(config, {"source": "x"})
    given = {"init": base64.b64encode(bytes(range(256))).decode(), "generation": 3}
    both = json.dumps({**json.loads(alone), "handover": given}).encode()
    assert undump(both) == (config, {"source": "x"})
    assert handed_over(both, [4, 5, 6, 7]) == Handover(4, bytes(range(256)), 5, (6, 7), 3)
    assert descriptors_of(both) == 4, "of a keeper that says nothing of it"


def test_how_many_descriptors_belong_to_it() -> None:
    both = json.dumps({"handover": {"init": "", "generation": 0, "descriptors": 5}}).encode()
    assert descriptors_of(both) == 5
    handover = handed_over(both, [4, 5, 6, 7, 8])
    assert (handover.journal_fds, handover.opens_fd) == ((6, 7), 8)
    handover = handed_over(both, [4, 5, 6, 7, 8, 9, 10])
    assert (handover.opens_fd, handover.beats_fd) == (8, 9), "a later keeper hands more"
    assert [descriptors_of(text) for text in (b"", b"[]", b'{"handover": 5}')] == [4, 4, 4]


@pytest.mark.parametrize(
    ("text", "descriptors"),
    [
        (b"", []),
        (b"[]", []),
        (b"{}", [1, 2, 3, 4]),
        (b'{"handover": 5}', [1, 2, 3, 4]),
        (b'{"handover": {"generation": 1}}', [1, 2, 3, 4]),
        (b'{"handover": {"generation": 1, "init": ""}}', [1, 2, 3]),
        (b'{"handover": {"generation": 1, "init": ""}}', []),
    ],
)
def test_something_else_is_refused(text: bytes, descriptors: list[int]) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        handed_over(text, descriptors)
