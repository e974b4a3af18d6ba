"""What `hfs trace simulate` works with: the rates and where each is from, the mounts to try, what they come to, and
which is worth having. Simulates nothing by itself: `policies.simulation` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from hfs.mountd.core.config.key import parse_count, parse_duration, parse_size
from hfs.mountd.core.errors import ConfigError
from hfs.planning.planning import Given
from hfs.planning.recorded import Recorded, later_epochs
from hfs.policies.cache.admission import BLOCK_BYTES, blocks_bytes, grant_bytes, object_overhead_bytes
from hfs.policies.simulation.job import simulate
from hfs.policies.simulation.pieces import WAYS, EpochOutcome, Pieces, Rates, SimulatedMount

PARTS = (0.25, 0.5, 0.75, 1.0)
"""Of the data: the caches that are tried where none is given."""

MOST_NODES = 64
"""All nodes are simulated, each with its cache."""

LOOK_PART = 0.5
"""Of a fetch: what it takes to ask the source whether a small file is what it was."""

PEER_RATE = 12.5e9
PEER_S = 0.001
"""As in `hfs plan`: one link of 100 Gbit/s for all nodes together."""

_WORTH = 0.05
"""Less of an epoch is not worth a larger cache, or another way."""
_GAIN = 0.02


@dataclass(frozen=True)
class SimulationInputs:
    """Of one simulation. Seconds, and bytes a second; infinite: no limit."""

    latency_s: Given
    source_rate: Given
    between_s: Given
    readers: Given

    @property
    def rates(self) -> Rates:
        """For the simulation."""
        return Rates(
            latency_s=self.latency_s.value,
            source_rate=self.source_rate.value,
            look_s=self.latency_s.value * LOOK_PART,
            compute_s=self.between_s.value,
            peer_rate=PEER_RATE,
            peer_s=PEER_S,
        )

    def shown(self) -> dict[str, dict[str, Any]]:
        """For JSON; what is infinite is null."""
        return {
            name: {**asdict(given), "value": given.value if math.isfinite(given.value) else None}
            for name, given in vars(self).items()
        }


def inputs_of(found: Recorded, given: Mapping[str, Given]) -> SimulationInputs:
    """`given` (given or measured) first, then what the trace tells. Raises ConfigError for what neither has."""
    recorded = {
        "latency_s": found.latency_s if found.source_rate is None else 0.0,
        "source_rate": found.source_rate,
        "between_s": found.between_s,
        "readers": found.readers,
    }
    assumed = {"source_rate": Given(math.inf, "assumed", "no limit"), "readers": Given(1, "assumed")}
    assumed["between_s"] = Given(0.0, "assumed", "readers do nothing but read")
    notes = {"source_rate": "what SOURCE gave in the first epoch"}
    values = {}
    for name, value in recorded.items():
        from_trace = None if value is None else Given(float(value), "recorded", notes.get(name, ""))
        chosen = given.get(name) or from_trace or assumed.get(name)
        if chosen is None:
            raise ConfigError(
                "the trace does not say how long SOURCE takes, since hardly anybody waited for it: give "
                "--source-latency, or --measure SOURCE"
            )
        values[name] = chosen
    return SimulationInputs(**values)


def mount_of(options: Iterable[str]) -> tuple[SimulatedMount, int]:
    """A mount with these `-o` options, and its chunks in bytes. Raises ConfigError."""
    mount, chunk_bytes = SimulatedMount(0), 8 << 20
    for name, text in (part.partition("=")[::2] for option in options for part in option.split(",") if part):
        try:
            if name == "ttl":
                mount = replace(mount, ttl_s=parse_duration(text))
            elif name == "immutable" and not text:
                mount = replace(mount, ttl_s=math.inf)
            elif name == "siblings":
                mount = replace(mount, siblings_bytes=parse_size(text))
            elif name == "buffer":
                mount = replace(mount, buffer_bytes=parse_size(text))
            elif name == "prefetch-threads":
                mount = replace(mount, fetches_ahead=max(1, 2 * parse_count(text)))
            elif name == "chunk":
                chunk_bytes = parse_size(text)
                if not 1 << 16 <= chunk_bytes <= 1 << 26 or chunk_bytes & (chunk_bytes - 1):
                    raise ValueError(text)
            else:
                raise ConfigError(
                    f"-o {name}: only what makes a difference here: ttl, immutable, siblings, buffer, "
                    "prefetch-threads, chunk"
                )
        except (ValueError, TypeError):
            raise ConfigError(f"-o {name} is {text!r}: give it as to hfs mount") from None
    return mount, chunk_bytes


def fits_bytes(pieces: Pieces) -> int:
    """The cache size from which on all of it stays: with what each file takes besides, and what is granted ahead."""
    room = sum(map(blocks_bytes, pieces.sizes.tolist())) + object_overhead_bytes(1) * len(set(pieces.files.tolist()))
    size = room + BLOCK_BYTES
    while size - grant_bytes(size) < room:
        size = room + grant_bytes(size) + BLOCK_BYTES
    return size


@dataclass(frozen=True)
class Row:
    """One mount, and what its epochs come to."""

    way: str
    nodes: int
    cache_bytes: int
    outcomes: Sequence[EpochOutcome]

    @property
    def later(self) -> Sequence[EpochOutcome]:
        """Epochs after the first; if there is only one, that."""
        return self.outcomes[1:] or self.outcomes

    @property
    def later_s(self) -> float:
        """Of an epoch after the first, on average."""
        return sum(outcome.seconds for outcome in self.later) / len(self.later)

    @property
    def hit_share(self) -> float:
        """The same."""
        return sum(outcome.hit_share for outcome in self.later) / len(self.later)

    def shown(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "eviction": self.way,
            "nodes": self.nodes,
            "cache_bytes": self.cache_bytes,
            "hit_share": round(self.hit_share, 4),
            "first_s": round(self.outcomes[0].seconds, 3),
            "later_s": round(self.later_s, 3),
            "epochs": [{**asdict(outcome), "hit_share": round(outcome.hit_share, 4)} for outcome in self.outcomes],
        }


def rows(
    found: Recorded,
    inputs: SimulationInputs,
    mount: SimulatedMount,
    *,
    cache_sizes: Sequence[int],
    ways: Sequence[str],
    nodes: Sequence[int],
    epochs: int,
) -> Iterator[Row]:
    """Each combination, as it is simulated."""
    orders = later_epochs(found, epochs)
    readers = max(1, round(inputs.readers.value))
    for way in ways:
        for count in nodes:
            for size in cache_sizes:
                one = replace(mount, cache_bytes=size, way=way, nodes=count, readers=readers)
                yield Row(way, count, size, simulate(found.pieces, orders, one, inputs.rates))


def recommended(made: Sequence[Row]) -> Row:
    """The least that has the shortest epochs, or hardly longer ones: the fewest nodes, then the smallest cache, then
    the way that asks for least."""
    best_s = min(row.later_s for row in made)
    near = [row for row in made if row.later_s <= best_s * (1 + _WORTH)]
    return min(near, key=lambda row: (row.nodes, row.cache_bytes, WAYS.index(row.way)))


def advice(made: Sequence[Row], row: Row, whole_bytes: int, size: Callable[[float], str]) -> list[str]:
    """What to tell of `row`, which is recommended. `whole_bytes`: the cache that all fits. `size`: bytes as text."""
    nodes = f" on {row.nodes} nodes" if row.nodes > 1 else ""
    said = [f"recommended: {size(row.cache_bytes)}, {row.way}{nodes}"]
    larger = [each for each in made if (each.way, each.nodes) == (row.way, row.nodes)]
    if row.cache_bytes < max(each.cache_bytes for each in larger):
        said.append(f"more than {size(row.cache_bytes)} gives nothing")
    need_bytes = -(-whole_bytes // row.nodes) if row.nodes > 1 else whole_bytes
    if row.hit_share < 1 - _GAIN:
        said.append(f"with {size(need_bytes)} a node all of it would stay after the first epoch")
    return said
