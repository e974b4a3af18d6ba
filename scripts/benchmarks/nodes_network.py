"""A network on this machine: each node is a network namespace with an address, joined by the kernel's bridge, or by a
relay of ours that delays, loses and cuts (readers/relay.py), since few kernels have netem.

Needs root and `ip`. Namespaces have names of this process, and those of a run that was broken off go with the next.
"""

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from scripts.benchmarks.common import BenchError, Reader, reader, run

_PREFIX = "hfsb"
_NAMED = Path("/run/netns")
_NET = "10.78"


class Network:
    """`count` nodes, numbered from 0."""

    def __init__(self, names: Sequence[str], hub: str, relay: Reader | None) -> None:
        self._names, self._hub, self._relay = names, hub, relay

    def address(self, node: int) -> str:
        return f"{_NET}.{node // 250}.{node % 250 + 1}"

    def within(self, node: int) -> tuple[str, ...]:
        """The words that start a program there: in its network, but with the mounts of all."""
        return ("nsenter", f"--net={_NAMED / self._names[node]}", "--")

    def plug(self, node: int, *, is_in: bool) -> None:
        """Its cable, at the switch's end: the node is told nothing. Of the bridge only."""
        run("ip", "-n", self._hub, "link", "set", f"to{node}", "up" if is_in else "down")

    def faults(self, **rules: object) -> None:
        """What the relay does from now on: see readers/relay.py."""
        assert self._relay is not None
        self._relay.do(**rules)


def why_not() -> str | None:
    """Why there can be no such network here."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        for words in (("ip", "-V"), ("nsenter", "--version")):
            subprocess.run(words, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"there is no {words[0]}: {error}"
    return None


@contextlib.contextmanager
def network(count: int, *, relayed: bool = False) -> Iterator[Network]:
    """Raises BenchError where it cannot be made."""
    if (reason := why_not()) is not None:
        raise BenchError(reason)
    _clear_old()
    names = [f"{_PREFIX}-{os.getpid()}-{number}" for number in range(count)]
    hub = f"{_PREFIX}-{os.getpid()}-hub"
    with contextlib.ExitStack() as stack:
        for name in (hub, *names):
            run("ip", "netns", "add", name)
            stack.callback(subprocess.run, ["ip", "netns", "del", name], check=False)
        made = Network(names, hub, None)
        if relayed:
            ends = [str(_NAMED / name) for name in names]
            made = Network(names, hub, stack.enter_context(reader("relay.py", *ends)))
        else:
            _bridge(hub, names)
        for number, name in enumerate(names):
            for words in (
                ("link", "set", "lo", "up"),
                ("addr", "add", f"{made.address(number)}/16", "dev", "eth0"),
                ("link", "set", "eth0", "up"),
            ):
                run("ip", "-n", name, *words)
        yield made


def _bridge(hub: str, names: Sequence[str]) -> None:
    run("ip", "-n", hub, "link", "add", "switch", "type", "bridge")
    run("ip", "-n", hub, "link", "set", "switch", "up")
    for number, name in enumerate(names):
        end = f"to{number}"
        run("ip", "link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", end, "netns", hub)
        run("ip", "-n", hub, "link", "set", end, "master", "switch", "up")


def _clear_old() -> None:
    for path in _NAMED.glob(f"{_PREFIX}-*"):
        if not Path("/proc", path.name.split("-")[1]).exists():
            subprocess.run(["ip", "netns", "del", path.name], check=False)
