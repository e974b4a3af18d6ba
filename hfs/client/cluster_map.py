"""The directory of a job: which node has which sample cached, computed from what the daemon of a mount says once.

The owners of chunks follow from the list of nodes (`policies/cluster/placement.py`), so one small answer is enough for
any number of samples, and every learner comes to the same owners. Nodes that a daemon has lost meanwhile count as if
they were there: another daemon may not have noticed yet, and learners that disagree would train on other batches.

Runs inside training jobs. Looks at no file of the data set, asks nobody but the daemon.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from hfs.client.client import Client, find_socket
from hfs.layouts.layout import Layout
from hfs.mountd.core.errors import HfsError
from hfs.mountd.wire.layout import ranges
from hfs.mounting import mountinfo
from hfs.policies.cluster.placement import NOBODY, Nodes, Placement, keys, owners

_ANSWER_S = 10.0
"""The daemon answers from memory."""
_PIECES = 1 << 20
"""Parts of samples that are looked at together: some 60 MiB of arrays."""


class NoClusterMap(HfsError):
    """A daemon said what is no directory."""


@dataclass(frozen=True)
class ClusterMap:
    """What `mountd.wire.protocol.Directory` answers, and where its paths begin."""

    nodes: Nodes
    names: tuple[str, ...] = ()
    """Of the nodes, for people and launchers; empty: not known."""
    node: int | None = None
    """The number of this node; None: not known."""
    placement: Placement = "partition"
    chunk_bytes: int = 8 << 20
    root: str = "/"
    """The mountpoint: what the paths of layouts are relative to."""
    part: str = ""
    """The directory of the mount that `root` is; empty: all of it. Keys are of paths relative to all of it."""
    alone: str = ""
    """Why a daemon that was to have peers has none; empty: it has, or was to have none."""

    @classmethod
    def ask(cls, path: str, control: str | None = None) -> Self:
        """Of the mount that `path` lies in, or whose control socket is `control`; where the latter is not seen here,
        `path` is taken for its mountpoint.

        Raises DaemonSilent where there is no mount of hfs or no daemon answers, Refused or NoClusterMap where it does
        not know nodes.
        """
        address = control if control is not None else find_socket(path, limit_s=_ANSWER_S)
        mount = mountinfo.enclosing(mountinfo.canonical(path))
        ours = mount is not None and mount.may_be_hfs
        root, part = (mount.mountpoint, mount.part) if mount is not None and ours else (path, "")
        return cls.of(Client(address).directory(_ANSWER_S), root, part)

    @classmethod
    def of(cls, answer: Mapping[str, Any], root: str = "/", part: str = "") -> Self:
        """Raises NoClusterMap for an answer that means nothing."""
        try:
            hashes, weights = tuple(map(int, answer["hashes"])), tuple(map(float, answer["weights"]))
            nodes = Nodes(hashes, weights, float(answer["data"]))
            names = tuple(map(str, answer["nodes"]))
            node, chunk_bytes, placement = answer["node"], int(answer["chunk_bytes"]), answer["placement"]
            node = None if node is None else int(node)
        except (KeyError, TypeError, ValueError) as error:
            raise NoClusterMap(f"the daemon's answer about its nodes means nothing: {error!r}") from None
        fits = len(names) in {0, len(nodes.hashes)} and (node is None or 0 <= node < len(nodes.hashes))
        if not fits or chunk_bytes < 1 or placement not in {"partition", "replicate"}:
            raise NoClusterMap(f"the daemon's answer about its nodes contradicts itself: {dict(answer)!r:.300}")
        return cls(nodes, names, node, placement, chunk_bytes, root, part, str(answer.get("alone") or ""))

    @property
    def divided(self) -> bool:
        """Whether it matters which node reads a sample: each stages only its share."""
        return self.placement == "partition" and self.count > 1 and any(self.nodes.weights)

    @property
    def count(self) -> int:
        """How many nodes there are."""
        return len(self.nodes.hashes)

    def numbers(self, given: Sequence[str | int]) -> list[int]:
        """The numbers of nodes that are given by number or by name, with or without domain. Raises ValueError."""
        short: dict[str, list[int]] = {}
        for number, name in enumerate(self.names):
            short.setdefault(name.split(".")[0], []).append(number)
        found = []
        for each in given:
            if isinstance(each, str):
                fits = [self.names.index(each)] if each in self.names else short.get(each.split(".")[0], [])
                number = fits[0] if len(fits) == 1 else -1
            else:
                number = int(each)
            if not 0 <= number < self.count:
                known = ", ".join(self.names[:8]) + (", ..." if len(self.names) > 8 else "")
                raise ValueError(f"{each!r} is none of the {self.count} nodes that share their caches ({known})")
            found.append(number)
        return found

    def owners(self, layout: Layout) -> NDArray[np.int32]:
        """int32 [samples]: the node that most bytes of each sample belong to, NOBODY if no cache has room for them; of
        equals the first.

        A file whose size the layout does not know counts as small: its owner is that of its first chunk.
        """
        names = layout.names.split(b"\0")
        if self.part:
            names = [os.fsencode(f"{self.part}/") + name for name in names]
        hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, names), np.uint64, len(names))
        del names
        table = np.maximum(self.nodes.table(), NOBODY)
        known = layout.sample_bytes
        if not layout.extent_count and (known is None or int(layout.file_sizes.max(initial=0)) <= self.chunk_bytes):
            return owners(table, keys(hashes, np.zeros(len(hashes), np.int64)))
        mean_pieces = (known or 0) // (layout.samples * self.chunk_bytes) + 1
        block = max(1, min(1 << 16, _PIECES // mean_pieces))
        found = np.empty(layout.samples, np.int32)
        for start in range(0, layout.samples, block):
            samples = np.arange(start, min(start + block, layout.samples))
            found[samples] = self._owners_of(layout, samples, hashes, table)
        return found

    def _owners_of(
        self, layout: Layout, samples: NDArray[np.int64], hashes: NDArray[np.uint64], table: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        counts, files, offsets, sizes = layout.extents_of_each(samples)
        sizes = np.maximum(sizes, 1)  # not known, or an empty file
        first = offsets // self.chunk_bytes
        pieces = (offsets + sizes - 1) // self.chunk_bytes - first + 1
        chunks, of = ranges(first, first + pieces)
        starts = np.maximum(offsets[of], chunks * self.chunk_bytes)
        ends = np.minimum((offsets + sizes)[of], (chunks + 1) * self.chunk_bytes)
        of_pieces = owners(table, keys(hashes[files[of]], chunks))
        # A sample without bytes can be read anywhere; all learners must mean the same place.
        found = (samples % self.count).astype(np.int32)
        sample_of, kinds = np.repeat(np.arange(len(samples)), counts)[of], self.count + 1
        pairs, inverse = np.unique(sample_of * kinds + of_pieces - NOBODY, return_inverse=True)
        together = np.bincount(inverse, weights=ends - starts, minlength=len(pairs))
        order = np.lexsort((pairs, -together, pairs // kinds))
        with_bytes, best = np.unique(pairs[order] // kinds, return_index=True)
        found[with_bytes] = pairs[order][best] % kinds + NOBODY
        return found
