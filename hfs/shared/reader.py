"""The thread of a node's root that reads: draws batches from the order, places them in the ring, fills and publishes.

Started by `batches` in the root, one for each NodeBatches; its only reader and only writer of data. Reads ahead as far
as the ring has room: while the ranks compute, it reads what comes next. When it is behind, it reads several batches at
once, twice as many each time up to half of the ring, so that the first one is there soon and the reads become large
(LMDBIO's COAL). Makes no MPI call.
"""

from __future__ import annotations

import dataclasses
import pickle
import queue
import threading
import time
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from hfs.mountd.core.errors import ConfigError, HfsError
from hfs.policies.ring import Ring, part
from hfs.shared.samples import SamplePiece, Samples
from hfs.shared.window import ENTRIES, RankLost, State, Window, WindowEntry, WindowKind

Ints = NDArray[np.int64]

_LOOK_S = 0.5
"""How often a wait looks around, as in `window`."""
_ALIGN = 64


class _Stop(BaseException):
    """The reader is to end."""


def indices_of(batch: object) -> Ints:
    """A batch as an array. Raises TypeError for what is no list of integers."""
    array = np.asarray(batch)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise TypeError(f"a batch must be a list of integers, not {array.dtype} of shape {array.shape}")
    return array.astype(np.int64)


def portable(error: BaseException) -> bytes:
    """The exception pickled, or one that says the same in words if it does not come back as what it is."""
    try:
        data = pickle.dumps(error)
        if type(pickle.loads(data)) is type(error):
            return data
    except Exception:  # noqa: BLE001 - whatever its class does wrong, its words are left
        pass
    return pickle.dumps(HfsError(f"{type(error).__name__}: {error}"))


@dataclasses.dataclass
class _Batch:
    """What this node reads of a batch. In the ring: the indices, the ends of the samples, and from head_bytes their
    bytes."""

    number: int
    count: int
    """Of the whole batch, of all nodes."""
    indices: Ints
    ends: Ints
    """0, and where each sample ends."""
    at: int = -1

    @property
    def head_bytes(self) -> int:
        return head_bytes(len(self.indices))

    @property
    def size(self) -> int:
        return self.head_bytes + int(self.ends[-1])


def head_bytes(rows: int) -> int:
    """What lies before the bytes of the samples: their indices and ends; a multiple of what any dtype aligns to."""
    return -(-8 * (2 * rows + 1) // _ALIGN) * _ALIGN


class SampleReader:
    """`members` are the ranks' numbers in the world of `world` that a batch is divided among; None: all get all.

    `sample_bytes`: what every sample must have; None: they differ.
    """

    def __init__(
        self, window: Window, samples: Samples, *, members: list[int] | None, world: int, sample_bytes: int | None
    ) -> None:
        self._window, self._samples = window, samples
        self._members, self._world, self._sample_bytes = members, world, sample_bytes
        self._ring = Ring(len(window.data), ENTRIES, _ALIGN)
        self._freed_by = 0
        """Ranks, from 0, whose post for the oldest entry has been taken."""
        self._sequence = 0
        self._fault: Exception | None = None
        self._orders: queue.SimpleQueue[Iterable[object] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._skipping = threading.Event()
        self.bytes_read = 0
        self._thread = threading.Thread(target=self._run, name="hfs-shared-reader", daemon=True)
        self._thread.start()

    def start(self, order: Iterable[object]) -> None:
        """Read this order next. The one before must have ended (`Kind.END` or `Kind.ERROR` was taken)."""
        self._skipping.clear()
        self._orders.put(order)

    def skip(self) -> None:
        """Read no more of the order: its end is published next."""
        self._skipping.set()

    def stop(self, limit_s: float) -> bool:
        """End the thread; whether it has. It cannot be ended inside a read that hangs."""
        self._stopping.set()
        self._orders.put(None)
        self._window.freed[0].post()
        self._thread.join(limit_s)
        if not self._thread.is_alive():
            self._samples.close()
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while (order := self._orders.get()) is not None:
                try:
                    self._read(order)
                    self._publish_end(WindowKind.END, b"")
                except RankLost:
                    raise
                except Exception as error:  # noqa: BLE001 - whatever it is, it is raised in all ranks
                    self._publish_end(WindowKind.ERROR, portable(error))
        except _Stop:
            pass
        except RankLost as error:
            self._window.lose(str(error))
        except BaseException as error:  # a thread must not end in silence: the ranks would wait for it
            self._window.lose(f"the reading thread of {self._window.names[0]} has failed: {error!r}")
            raise

    def _read(self, order: Iterable[object]) -> None:
        together = 1
        drawn = self._drawn(order)
        following = next(drawn, None)
        while following is not None:
            self._place(following)
            group = [following]
            following = next(drawn, None)
            while (
                following is not None
                and len(group) < together
                and self._ring.used_bytes + following.size <= self._ring.capacity_bytes // 2
                and self._place_nowait(following)
            ):
                group.append(following)
                following = next(drawn, None)
            self._fill(group)
            if self._samples.coalesces:
                together = min(2 * together, ENTRIES)

        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault

    def _drawn(self, order: Iterable[object]) -> Iterator[_Batch]:
        """The batches of the order. An exception ends them and is kept: what was drawn before is read first."""
        try:
            yield from self._checked(order)
        except Exception as error:  # noqa: BLE001 - raised again in all ranks
            self._fault = error

    def _checked(self, order: Iterable[object]) -> Iterator[_Batch]:
        for number, indices in enumerate(map(indices_of, order)):
            if self._skipping.is_set():
                return
            if self._members is None:
                mine = indices
            else:
                ranges = [part(len(indices), rank, self._world) for rank in self._members]
                mine = np.concatenate([indices[first:last] for first, last in ranges])
            try:
                sizes = self._samples.sizes(mine)
            except IndexError as error:
                raise IndexError(f"batch {number}: {error}") from None
            if self._sample_bytes is not None and (wrong := sizes != self._sample_bytes).any():
                at = int(np.argmax(wrong))
                raise ConfigError(
                    f"batch {number}: sample {mine[at]} is {sizes[at]:,} bytes; of the given shape and dtype it would"
                    f" be {self._sample_bytes:,}. Leave shape away for samples of differing sizes"
                )
            batch = _Batch(number, len(indices), mine, np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes))))
            if not self._ring.holds(batch.size):
                raise ConfigError(
                    f"batch {number}: its {len(mine):,} samples for this node take {batch.size:,} bytes, more than the"
                    f" {self._ring.capacity_bytes:,} that NodeBatches has: give it budget_bytes of twice that, or more"
                )
            yield batch

    def _fill(self, group: list[_Batch]) -> None:
        data = self._window.data
        pieces = []
        for batch in group:
            head = np.concatenate((batch.indices, batch.ends)).view(np.uint8)
            data[batch.at : batch.at + len(head)] = head
            pieces.append(SamplePiece(batch.indices, batch.at + batch.head_bytes, int(batch.ends[-1])))
        if pieces := [piece for piece in pieces if piece.size]:
            self._samples.read(data, pieces)
        self.bytes_read += sum(piece.size for piece in pieces)
        for batch in group:
            self._publish(
                WindowEntry(WindowKind.BATCH, batch.at, batch.size, batch.count, len(batch.indices), batch.number)
            )

    def _publish(self, entry: WindowEntry) -> None:
        self._window.publish(self._sequence, entry)
        self._sequence += 1

    def _publish_end(self, kind: WindowKind, data: bytes) -> None:
        if not self._ring.holds(len(data)):
            data = portable(HfsError(str(pickle.loads(data))[:1000]))
        while (at := self._ring.place_nowait(len(data))) is None:
            self._free_oldest()
        self._window.data[at : at + len(data)] = np.frombuffer(data, np.uint8)
        self._publish(WindowEntry(kind, at, len(data)))

    # --- Room ------------------------------------------------------------------------------------------------

    def _place(self, batch: _Batch) -> None:
        while not self._place_nowait(batch):
            self._free_oldest()

    def _place_nowait(self, batch: _Batch) -> bool:
        while True:
            if (at := self._ring.place_nowait(batch.size)) is not None:
                batch.at = at
                return True
            if not self._freed_nowait():
                return False

    def _freed_nowait(self) -> bool:
        """Free the oldest piece if all ranks have."""
        freed = self._window.freed
        while self._freed_by < len(freed):
            # A rank that has closed needs nothing any more.
            if not freed[self._freed_by].take_nowait() and not self._has_closed(self._freed_by):
                return False
            self._freed_by += 1
        self._freed_by = 0
        self._ring.free()
        return True

    def _has_closed(self, rank: int) -> bool:
        return self._window.state(rank) in {State.CLOSED, State.HOLDING}

    def _free_oldest(self) -> None:
        """Wait until all ranks need the oldest piece no more. Raises RankLost for one that never will, and _Stop."""
        window = self._window
        until_s = time.monotonic() + window.timeout_s
        while not self._freed_nowait():
            if self._stopping.is_set():
                raise _Stop
            rank = self._freed_by
            if window.freed[rank].take(_LOOK_S):
                window.freed[rank].post()  # for _freed_nowait to take
                continue
            for other in range(1, window.ranks):
                if fault := window.fault_of(other):
                    raise RankLost(fault)
            if time.monotonic() > until_s:
                raise RankLost(
                    f"{window.names[rank]} has not taken its next batch, or released the one it has, for"
                    f" {window.timeout_s:g} s (timeout_s), and there is no room for more"
                )
