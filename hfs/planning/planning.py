"""What `hfs plan` works with: rates as people write them, where each input came from, the epochs at each size of a job.

Decides and computes nothing by itself: the equations are in `policies/cluster/cost_model.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hfs.mountd.core.config.key import parse_size
from hfs.mountd.core.errors import ConfigError
from hfs.policies.cluster.cost_model import WAYS, Job, costs, expected_imbalance, gains_end, stops_scaling

Origin = Literal["given", "measured", "recorded", "assumed"]

RATES = {
    "storage": "what SOURCE gives to all nodes together",
    "train": "what one node trains on",
    "preprocess": "what one node prepares",
    "remote": "what all nodes together read from each other's caches",
    "local": "what one node reads from its own cache",
}
"""Each rate and whose it is."""

MOST_NODES = 65_536


@dataclass(frozen=True)
class Given:
    """One input: samples a second, or bytes, or a number; and where it is from."""

    value: float
    origin: Origin
    note: str = ""


@dataclass(frozen=True)
class Inputs:
    """Of one plan."""

    dataset_bytes: Given
    samples: Given
    rates: dict[str, Given]
    """Samples a second, by the names of RATES."""
    cache_bytes: Given
    """Of each node; infinite: all fits."""
    step_samples: Given
    """Samples that one node trains on in a step."""

    @property
    def job(self) -> Job:
        """For the equations."""
        rate = {name: given.value for name, given in self.rates.items()}
        return Job(
            samples=int(self.samples.value),
            train_rate=rate["train"],
            preprocess_rate=rate["preprocess"],
            storage_rate=rate["storage"],
            remote_rate=rate["remote"],
            local_rate=rate["local"],
            node_cached=min(1.0, self.cache_bytes.value / self.dataset_bytes.value),
            step_samples=int(self.step_samples.value),
        )

    def shown(self) -> dict[str, dict[str, Any]]:
        """For JSON; what is infinite is null."""
        found = {
            "dataset_bytes": self.dataset_bytes,
            "samples": self.samples,
            **{f"{name}_rate": given for name, given in self.rates.items()},
            "cache_bytes": self.cache_bytes,
            "step_samples": self.step_samples,
        }
        return {
            name: {**asdict(given), "value": given.value if math.isfinite(given.value) else None}
            for name, given in found.items()
        }


def rate_of(option: str, text: str, sample_bytes: float) -> float:
    """Samples a second of "200MB/s", "1.5GiB/s" or "1300 samples/s". Raises ConfigError.

    Sizes are written as everywhere in hfs: MB is a million bytes, MiB and M are 2**20.
    """
    match = re.fullmatch(r"\s*(.*?)\s*/\s*s\s*", text)
    if match is not None:
        samples = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*samples?", match[1])
        try:
            # At least a letter of a unit: a bare 200/s could be either.
            size = parse_size(match[1]) if match[1][-1:].isalpha() and samples is None else 0
        except (ValueError, TypeError):
            size = 0
        value = float(samples[1]) if samples is not None else size / sample_bytes
        if value > 0:
            return value
    raise ConfigError(f"{option} is {text!r}: give more than 0 with its unit, like 200MB/s or '1300 samples/s'")


def nodes_of(text: str) -> list[int]:
    """ "1,2,64" in ascending order. Raises ConfigError."""
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or not 1 <= found[0] <= found[-1] <= MOST_NODES:
        raise ConfigError(f"--nodes is {text!r}: give numbers of nodes, 1 to {MOST_NODES}, like 1,8,64")
    return found


def epochs(inputs: Inputs, nodes: Sequence[int]) -> dict[str, Any]:
    """What `hfs plan --json` prints: the inputs, an epoch at each number of nodes, and where each way stops scaling.

    Seconds; epochs after the first. `waits_from`: the fewest nodes that wait for data; `gains_end`: the fewest that are
    not worth doubling (less than 10 %); null: none up to 4096.
    """
    job = inputs.job
    rows = []
    for count in nodes:
        found = costs(job, count)
        moved = expected_imbalance(count, int(inputs.step_samples.value)) if count > 1 else 0.0
        rows.append({"nodes": count, "train_s": found.train_s, "moved": moved})
        rows[-1] |= {f"{way}_s": getattr(found, f"{way}_s") for way in WAYS}
    ways = {way: {"waits_from": stops_scaling(job, way), "gains_end": gains_end(job, way)} for way in WAYS}
    return {"inputs": inputs.shown(), "epochs": rows, "ways": ways}
