"""What others say to the keeper is taken by type, or not at all."""

import os
import socket

import pytest

from hfs.mountd.supervisor.daemons import Daemon, Malformed, Program, field, read, received


@pytest.mark.parametrize("line", [b"", b"5", b"[{}]", b'"ask"', b"{", b"\xff", b"[" * 100_000, b'{"a":' * 100_000])
def test_only_an_object_is_a_message(line: bytes) -> None:
    assert read(line) is None


def test_a_field_is_of_its_type() -> None:
    record = {"text": "a", "number": 1, "part": 0.5, "yes": True, "texts": ["a", "b"], "record": {}}
    assert field(record, "text", str) == "a"
    assert field(record, "number", float) == 1.0
    assert field(record, "part", float) == 0.5
    assert field(record, "yes", bool) is True
    assert field(record, "texts", list) == ["a", "b"]
    assert field(record, "none", str, "b") == "b"
    assert field(record, "record", dict) == {}


@pytest.mark.parametrize("kind", [str, float, int, bool, list, dict])
@pytest.mark.parametrize(
    "value", ["1", 1, 1.5, True, None, [], [1], ["a", None], {}, float("nan"), float("inf"), 10**400, [["a"]]]
)
def test_what_is_of_another_type_is_malformed(kind: type, value: object) -> None:
    if type(value) is kind and value not in ([], [1], ["a", None], [["a"]]) and repr(value) not in {"nan", "inf"}:
        assert field({"it": value}, "it", kind) == value
    elif kind is float and value == 1 and value is not True:
        assert field({"it": value}, "it", kind) == 1.0
    else:
        with pytest.raises(Malformed, match="it is no"):
            field({"it": value}, "it", kind)
    with pytest.raises(Malformed, match="other is no"):
        field({"it": value}, "other", kind)


@pytest.mark.parametrize(
    "line",
    [
        *(b'{"imported": "1"}', b'{"imported": null}', b'{"imported": -1}', b'{"imported": 0}', b'{"imported": true}'),
        *(b'{"imported": 1e400}', b'{"imported": ' + b"9" * 400 + b"}", b'{"imported": [1]}'),
        *(b'{"error": 5}', b'{"error": "a", "code": "b"}', b'{"imported": 2147483648}'),
        *(b"[" * 50_000, b"nonsense", b"5", b'{"error": "a", "code": ' + b"9" * 400 + b"e400}"),
    ],
)
def test_a_daemon_that_says_nonsense_has_said_nothing(line: bytes) -> None:
    ours, theirs = socket.socketpair()
    output, its_output = os.pipe2(os.O_CLOEXEC)
    daemon = Daemon(Program(["true"], "/", {}, {}), ours, output)
    try:
        os.write(its_output, line + b'\n{"ready": 1}\n')
        assert daemon.hear() == [{"ready": 1}]
        assert (daemon.pid, daemon.imported, daemon.said) == (0, False, {})
    finally:
        daemon.close()
        theirs.close()
        os.close(its_output)


def test_what_is_received_no_program_inherits() -> None:
    """Else it would hold a mount's connection, or its source, for as long as it runs."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(theirs, [b"these"], [theirs.fileno(), ours.fileno()])
        data, descriptors = received(ours, 16, 2)
    assert (data, [os.get_inheritable(descriptor) for descriptor in descriptors]) == (b"these", [False, False])
    for descriptor in descriptors:
        os.close(descriptor)


def test_descriptors_that_nobody_wants_are_not_taken() -> None:
    before = os.listdir("/proc/self/fd")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(theirs, [b"these"], [theirs.fileno()])
        assert received(ours, 16, 0) == (b"these", [])
    assert os.listdir("/proc/self/fd") == before
