"""The hints of one sampler in this process: which daemon, which layout, a connection for each iterator that lives.

Made by `hfs/hint.py`, asked by `hfs/exposed.py` to pass its figures on. Everything that can go wrong ends here: it is
logged, the first time as a warning, and the training goes on as if there were no daemon; the next epoch tries again.
"""

from __future__ import annotations

import logging
import os
import pickle
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hfs.client.client import Client, find_socket
from hfs.client.control_socket import Address, DaemonSilent
from hfs.layouts.files import Path, files_in_steps
from hfs.layouts.layout import Layout
from hfs.mountd.core.errors import HfsError
from hfs.mountd.wire.hints import Waited, encode_layout_pieces, new_layout_digest
from hfs.mountd.wire.layout import LayoutError
from hfs.mountd.wire.protocol import Join
from hfs.mounting import mountinfo
from hfs.training.hint_connection import JOIN_S, HintConnection, Steps
from hfs.training.known_orders import IndexOf, Indices, NotIndices, rank_of
from hfs.training.launcher import job_name, process_token, rank_and_world

log = logging.getLogger("hfs.hint")

_CONNECTIONS = 4
"""Iterators of one sampler that are followed at once; a further one takes the place of the oldest, which somebody has
forgotten in a reference cycle."""
_CHECKED_FILES = 64
"""The versions of more files than this are not compared with the layout: a stat each."""


class Hints:
    """The hints of one sampler in this process: which daemon, which layout, and a connection for each live iterator.

    Never raises; what goes wrong is logged, the first time as a warning.
    """

    def __init__(
        self,
        *,
        files: Sequence[Path] | None,
        layout: str | Layout | None,
        mount: str | None,
        control: str | None,
        name: str,
        learner: tuple[int, int] | None,
        ahead: bool = False,
        index_of: IndexOf | None = None,
    ) -> None:
        self.ahead = ahead
        """The job's word that its sampler may be copied and drawn."""
        self.index_of = index_of
        self._files, self._layout = files, layout
        self._mount, self._control = mount, control
        self._name, self._learner = name, learner
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._free: list[HintConnection] = []
        self._leases: list[Lease] = []
        self._digest = ""
        self._samples = 0
        self._epochs = 0
        self._last_epoch: int | None = None
        self._warned = False
        self._last: Lease | None = None
        self._left: tuple[int, Steps[HintConnection]] | None = None
        """Of which process, and what is to be done yet before there is a connection."""
        self.account: object = None
        """Of `hfs/exposed.py`."""

    def __getstate__(self) -> dict[str, Any]:
        """All but connections, which belong to this process."""
        kept = ("_files", "_layout", "_mount", "_control", "_name", "_learner", "ahead", "index_of")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def may_be_pickled(self) -> bool:
        """What the job has given can be sent to another process; a lambda cannot. If not, that is told."""
        try:
            pickle.dumps(self.index_of)
        except Exception as error:  # noqa: BLE001 - the job's own function, or object
            self.trouble(f"index_of cannot be pickled for another process ({error}); give a function of a module")
            return False
        return True

    def trouble(self, why: str | Exception) -> None:
        """Say that there are no hints for now, and why; loudly once."""
        text = str(why) if isinstance(why, str | HfsError) else f"{type(why).__name__}: {why}"
        loud = not self._warned
        self._warned = True
        log.log(
            logging.WARNING if loud else logging.DEBUG,
            "%s%s; the training goes on without hints",
            f"{self._name}: " if self._name else "",
            text,
        )

    def taking(self, sampler: object, epoch: int | None) -> Steps[Lease | None]:
        """A connection for an iterator that begins; None: go on without. `epoch` is the sampler's, if it has one.

        In steps, which give whether there is nothing to do but wait. An iterator that ends before has done its part:
        the next one goes on there.
        """
        pid = os.getpid()
        try:
            with self._lock:
                learner = self._connection()
                joining, self._left = self._left, None
            if learner is None:
                if joining is None or joining[0] != pid:
                    joining = pid, self._join(sampler)
                learner = yield from self._joined(*joining)
            if learner is None:
                return None
        except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on
            self.trouble(error)
            return None
        with self._lock:
            number = self._epochs if epoch is None else epoch
            self._epochs += 1
            again, self._last_epoch = number == self._last_epoch, number
            lease = Lease(self, learner, number, self._samples, again)
            self._leases.append(lease)
            self._last = lease
        return lease

    def _joined(self, pid: int, steps: Steps[HintConnection]) -> Steps[HintConnection | None]:
        """What the steps come to; None in a child of the process that has begun them. Raises HfsError."""
        while os.getpid() == pid:
            try:
                waits = next(steps)
            except StopIteration as end:
                learner: HintConnection = end.value
                return learner
            try:
                yield waits
            except GeneratorExit:
                self._left = pid, steps
                raise
        return None

    def _connection(self) -> HintConnection | None:
        """One that nobody uses, or the oldest; None if there may be a new one."""
        while self._free:
            learner = self._free.pop()
            if learner.usable():
                return learner
        self._leases = [lease for lease in self._leases if lease.learner is not None and lease.learner.usable()]
        if len(self._leases) >= _CONNECTIONS:
            oldest = self._leases.pop(0)
            taken, oldest.learner = oldest.learner, None
            return taken
        return None

    def give(self, lease: Lease) -> None:
        """The iterator has ended."""
        learner, lease.learner = lease.learner, None
        if learner is None:
            return
        # May be called by the garbage collector while this very thread holds the lock: list operations are whole.
        if lease in self._leases:
            self._leases.remove(lease)
        if not learner.closed:
            self._free.append(learner)

    def say_waited(self, waited: Waited) -> None:
        """Pass on where the time of an epoch went, over the connection of the newest iterator, or one that is free."""
        lease = self._last
        learner = lease.learner if lease is not None else None
        if learner is None and self._free:
            learner = self._free[-1]
        if learner is not None:
            learner.waited_nowait(waited)

    @property
    def epoch(self) -> int | None:
        """The epoch of the newest iterator that the daemon was told of; None: none yet."""
        return self._last_epoch

    def _join(self, sampler: object) -> Steps[HintConnection]:
        """Raises HfsError."""
        root, address = self._daemon()
        pieces: list[bytes] = []
        if not self._digest:
            pieces = yield from self._encoded(root)
        rank, world = self._learner or rank_of(sampler) or rank_and_world()
        join = Join(
            layout=self._digest,
            name=self._name,
            job=job_name(world),
            rank=rank,
            world=world,
            process=process_token(),
        )

        def layout() -> Steps[list[bytes]]:
            return pieces or (yield from self._encoded(root))

        # The encoding of a million paths is not kept between epochs: it is made again should another daemon want it.
        return (yield from HintConnection.joining(address, join, layout))

    def _encoded(self, root: str) -> Steps[list[bytes]]:
        """What is sent of the layout, and its digest, some milliseconds at a time. Raises HfsError."""
        mount = mountinfo.at(mountinfo.canonical(root))
        prefix = os.fsencode(mount.part) + b"/" if mount is not None and mount.part else b""
        if self._files is not None:
            texts, samples = (yield from files_in_steps(self._files, root)), len(self._files)
            fields = Layout(b"-").fields_in_pieces()  # without extents, whatever the names are
        else:
            layout = self._loaded(root)
            fields, texts, samples = layout.fields_in_pieces(), [], layout.samples
            for text in fields["files"][1]:
                texts.append(text)
                yield False
        for number, text in enumerate(texts if prefix else ()):
            texts[number] = (b"" if number else prefix) + text.replace(b"\0", b"\0" + prefix)
            yield False
        fields["files"] = sum(map(len, texts)), _used_up(texts)
        pieces, digest = [], new_layout_digest()
        for piece in encode_layout_pieces(fields):
            pieces.append(piece)
            digest.update(piece)
            yield False
        self._digest, self._samples = digest.hexdigest(), samples
        return pieces

    def _loaded(self, root: str) -> Layout:
        layout = self._layout if isinstance(self._layout, Layout) else Layout.load(self._layout or "")
        if layout.file_count <= _CHECKED_FILES and (wrong := layout.changed(root)):
            raise LayoutError(f"the layout does not fit: {wrong[0]}")
        return layout

    def _daemon(self) -> tuple[str, Address]:
        """(mountpoint, where its daemon is asked). Raises DaemonSilent."""
        if self._control is not None:
            return self._mount or str(Client(self._control).status(JOIN_S)["mountpoint"]), self._control
        mount = self._mount or self._enclosing_mount()
        return mount, find_socket(mount, limit_s=JOIN_S)

    def _enclosing_mount(self) -> str:
        table = mountinfo.mounts()
        if self._files is not None and len(self._files):
            first = os.fsdecode(self._files[0])
            found = mountinfo.enclosing(mountinfo.canonical(first, table), table) if os.path.isabs(first) else None
            if found is None or not found.may_be_hfs:
                raise DaemonSilent(f"{first} is in no mount of hfs (give mount=)")
            return found.mountpoint
        ours = mountinfo.hfs_mounts(table)
        if len(ours) != 1:
            raise DaemonSilent(f"there are {len(ours)} mounts of hfs (give mount=)" if ours else "no mount of hfs")
        return ours[0].mountpoint


def _used_up(texts: list[bytes]) -> Iterator[bytes]:
    texts.reverse()
    while texts:
        yield texts.pop()


class Lease:
    """What one iterator has of the hints: a connection, until it ends or another takes it."""

    def __init__(self, hints: Hints, learner: HintConnection, epoch: int, samples: int, again: bool) -> None:
        self.learner: HintConnection | None = learner
        self.hints = hints
        self.epoch = epoch
        self.samples = samples
        self.again = again
        """Whether the epoch before had the same number."""
        self._is_told = False
        self._complained = False

    def is_heard(self) -> bool:
        """Whether somebody listens, as far as is known."""
        if self.learner is not None and not self.learner.usable():
            self._complain(self.learner)
        return self.learner is not None and not self.learner.closed

    def tell(self, first: int, indices: Indices, *, only_given: bool) -> None:
        """The order from position `first` of the epoch on. Raises HfsError."""
        self._check(first, indices)
        if self.learner is not None and len(indices):
            self.learner.send_order(self.epoch, indices, first=first, only_given=only_given)
            self._is_told = True

    def tell_following(self, indices: Indices) -> None:
        """The order of the epoch after this one. Raises HfsError."""
        self._check(0, indices)
        if self.learner is not None:
            self.learner.send_order(self.epoch + 1, indices, following=True)

    def _check(self, first: int, indices: Indices) -> None:
        if len(indices) and (indices.min() < 0 or indices.max() >= self.samples):
            at = int(np.argmax((indices < 0) | (indices >= self.samples)))
            raise NotIndices(
                f"the sampler gives out {indices[at]} at position {first + at}, and there are {self.samples} samples"
            )

    def withdraw(self) -> None:
        """What was told is not what will be read."""
        if self.learner is not None and self._is_told:
            self.learner.over_nowait(self.epoch)
        self._is_told = False

    def at(self, position: int) -> None:
        """Progress, to the daemon that was told the order."""
        learner = self.learner
        if learner is not None and self._is_told:
            learner.at_nowait(position)
            self._complain(learner)

    def _complain(self, learner: HintConnection) -> None:
        if learner.trouble is not None and not self._complained:
            self._complained = True
            self.hints.trouble(learner.trouble)

    def over(self) -> None:
        """The epoch has ended, or its iterator has been dropped."""
        self.withdraw()
        self.hints.give(self)
