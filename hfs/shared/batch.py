"""`Batch`: what one rank sees of one batch: read-only NumPy arrays that lie in the memory the node's ranks share.

Made by `batches`, used in training loops. Copies nothing but the offsets of samples of differing sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hfs.shared.reader import head_bytes
from hfs.shared.window import WindowEntry


class Batch:
    """This rank's part of one batch (or all of it). Its arrays are read-only and lie in the shared window.

    Valid until the next batch is asked for, or `release`, or the end of a `with`; copy what is needed longer. The
    arrays themselves cannot know that: what they show after that is another batch.
    """

    def __init__(
        self,
        entry: WindowEntry,
        *,
        range_: tuple[int, int],
        rows: tuple[int, int],
        held: NDArray[np.uint8],
        shape: tuple[int, ...] | None,
        dtype: np.dtype[Any],
        on_release: Callable[[], None],
    ) -> None:
        """`held`: all bytes of the entry; `rows`: which of its rows are this rank's; `range_`: of the whole batch."""
        self.number = entry.number
        """In its order, from 0."""
        self.count = entry.count
        """Samples of the whole batch, of all ranks and nodes."""
        self.first, self.last = range_
        """Which of those these are: half-open."""
        self._on_release: Callable[[], None] | None = on_release
        first, last = rows
        head = held[: 8 * (2 * entry.rows + 1)].view(np.int64)
        ends = head[entry.rows :]
        start = head_bytes(entry.rows)
        self._indices: NDArray[np.int64] = head[first:last]
        self._offsets: NDArray[np.int64] = ends[first : last + 1] - ends[first]
        self._data: NDArray[Any] = held[start + int(ends[first]) : start + int(ends[last])]
        self._ragged = shape is None
        if shape is not None:
            self._data = self._data.view(dtype).reshape(last - first, *shape)

    @property
    def indices(self) -> NDArray[np.int64]:
        """The samples' indices: shape (n,)."""
        self._check()
        return self._indices

    @property
    def data(self) -> NDArray[Any]:
        """The samples: shape (n, *shape) of the dtype given, or for differing sizes their bytes in a row (uint8)."""
        self._check()
        return self._data

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where sample i is in bytes of `data`: from offsets[i] to offsets[i + 1]; shape (n + 1,). A copy."""
        return self._offsets

    def __len__(self) -> int:
        """How many samples there are; may be 0 where a batch has fewer samples than there are ranks."""
        return self.last - self.first

    def __getitem__(self, i: int) -> NDArray[Any]:
        """Sample i of these: an array of the shape given, or its bytes."""
        self._check()
        if not -len(self) <= i < len(self):
            raise IndexError(f"sample {i} of {len(self)}")
        i %= len(self)
        if self._ragged:
            return self._data[int(self._offsets[i]) : int(self._offsets[i + 1])]
        # Not [i]: of samples that are single numbers that would be a copy.
        return self._data[i : i + 1].reshape(self._data.shape[1:])

    def release(self) -> None:
        """This rank needs it no more: when all ranks have said so, its memory is used for another."""
        if (on_release := self._on_release) is not None:
            self._on_release = None
            del self._indices, self._data
            on_release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def _check(self) -> None:
        if self._on_release is None:
            raise ValueError(f"batch {self.number} has been released: its memory is used for another")
