"""Where samples are cached and where learners run: by what `LocalityAwareSampler` divides its global batches.

`Locality` is what a training program knows of it; `Division` what follows for one learner. Runs inside training jobs;
draws nothing.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hfs.client.cluster_map import ClusterMap
from hfs.layouts.files import Path, check_samples, files_layout
from hfs.layouts.layout import Layout
from hfs.mountd.core.errors import HfsError
from hfs.policies.cluster.locality import node_epoch
from hfs.training.launcher import nodes_of_ranks

log = logging.getLogger("hfs.samplers")

_REMEDY = "give learners=, the name of the node of each rank"


@dataclasses.dataclass(frozen=True)
class Locality:
    """What is where.

    directory   any path in the mount, whose daemon knows the nodes; or the nodes themselves
    files, layout   one of the two: sample i is `files[i]` or sample i of the layout (or of the file that has it), as
                for `hfs.hint.hinted`
    learners    for each rank the name of its node, or its number among those that `hfs status --cluster` lists; None:
                as the launcher says
    control     the daemon's control socket, where the mount does not lead to it
    """

    directory: str | os.PathLike[str] | ClusterMap
    files: Sequence[Path] | None = None
    layout: str | os.PathLike[str] | Layout | None = None
    learners: Sequence[str | int] | None = None
    control: str | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for what contradicts itself, TypeError for a directory of another kind."""
        check_samples(self.files, self.layout)
        if not isinstance(self.directory, str | os.PathLike | ClusterMap):
            raise TypeError(f"directory must be a path in a mount of hfs, not {type(self.directory).__name__}")

    def division(self, n: int, rank: int, world: int, now: Division | None = None) -> Division | None:
        """How learner `rank` of `world` divides batches of `n` samples with the others; None: by slices, since it does
        not matter which node reads what. Where no daemon answers (which is logged) as `now`.

        Raises ValueError where it cannot be known which learner is on which node, ConfigError and LayoutError for
        files and layouts that do not fit the mount.
        """
        layout = Layout.load(os.fspath(self.layout)) if isinstance(self.layout, str | os.PathLike) else self.layout
        files = () if self.files is None else self.files
        samples, given = (len(files), "files") if layout is None else (layout.samples, "layout")
        if samples != n:
            raise ValueError(f"n is {n}, and there are {samples} samples in {given}=")
        found = self._directory(now)
        if found is None:
            return now
        if found.alone:
            self._check_alone(found.alone, rank, world)
        if not found.divided:
            return None
        nodes = self._nodes_of_learners(found, rank, world)
        owners = found.owners(files_layout(files, found.root) if layout is None else layout)
        counts = np.bincount(nodes, minlength=found.count).tolist()
        return Division(owners, counts, nodes[rank], nodes[:rank].count(nodes[rank]))

    def _directory(self, now: Division | None) -> ClusterMap | None:
        if isinstance(self.directory, ClusterMap):
            return self.directory
        try:
            return ClusterMap.ask(os.fspath(self.directory), self.control)
        except HfsError as error:
            otherwise = "each learner takes its slice of each batch, wherever that is cached"
            log.warning("%s; %s", error, "all learners go on with the nodes that they knew" if now else otherwise)
            return None

    def _check_alone(self, reason: str, rank: int, world: int) -> None:
        """Raises ValueError where the learners of other nodes may have an answer of several nodes, and we have not."""
        places = nodes_of_ranks(rank, world) if self.learners is None else self.learners
        if places is not None and len(set(places)) > 1:
            raise ValueError(
                f"the daemon of this node has no peers ({reason}), and the learners are on {len(set(places))} nodes:"
                " others may divide the batches by who has what, and samples would be trained on twice, or not at all;"
                " mount again on all nodes, or leave out the locality on all"
            )

    def _nodes_of_learners(self, directory: ClusterMap, rank: int, world: int) -> list[int]:
        """The number of the node of each rank. Raises ValueError."""
        learners = self.learners
        if learners is None:
            alone = directory.node if world == 1 else None
            learners = nodes_of_ranks(rank, world) if alone is None else [alone]
        if learners is None:
            raise ValueError(f"which of the {world} learners are on which node cannot be known here: {_REMEDY}")
        if len(learners) != world:
            raise ValueError(f"learners= says the nodes of {len(learners)} learners, and there are {world}")
        try:
            nodes = directory.numbers(learners)
        except ValueError as error:
            raise ValueError(f"{error}: {_REMEDY}") from None
        if directory.node not in {None, nodes[rank]}:
            raise ValueError(
                f"learner {rank} is on node {directory.node} of the mount and not on node {nodes[rank]}, where it would"
                f" be if learners= (or what the launcher says of their order) were right: {_REMEDY}"
            )
        return nodes


@dataclasses.dataclass(frozen=True)
class Division:
    """How the batches of an epoch are divided by what nodes have cached, as one learner sees it."""

    owners: NDArray[np.int32]
    """int32 [n]: the node that has each sample."""
    learners: list[int]
    """Of each node, how many."""
    node: int
    """That of this learner."""
    number: int
    """Of this learner among those of its node, from 0."""

    def divide(self, order: NDArray[np.int64], batch: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Of the samples of all learners, `batch` a step: this learner's, and for each step the share that is not
        trained on where it is cached, 0..1."""
        positions, moved = node_epoch(self.owners[order], batch, self.learners, self.node)
        # Dealt out in turn: those that come from other nodes, the last of each step, are spread over the learners.
        mine = positions.reshape(-1, self.learners[self.node])[:, self.number]
        sizes = np.full(len(moved), batch)
        if len(sizes):
            sizes[-1] = len(order) - (len(sizes) - 1) * batch
        return order[mine], moved / sizes
