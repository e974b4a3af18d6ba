"""Where the bytes of samples come from: the extents of a layout, or a function of the user's.

Runs in the reading thread of a node's root. From a layout, what was asked for in several batches is read in the order
of the files (LMDBIO's COAL), in one `preadv` for neighbours, straight into the memory that the ranks share: nothing is
copied in between. Calls no MPI, and knows nothing of rings.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hfs.layouts.layout import Layout
from hfs.mountd.core.errors import ConfigError
from hfs.mountd.wire.layout import LayoutError
from hfs.policies.ring import part

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
ReadFunction: TypeAlias = Callable[[Ints, NDArray[Any]], object]
"""read(indices, out) fills `out`: an array of shape (n, *shape), or the n samples' bytes in a row."""
SampleSizes: TypeAlias = ArrayLike | Callable[[Ints], ArrayLike]
"""Bytes of every sample, or a function of the indices."""

_GAP_BYTES = 16 << 10
"""Bytes between two extents that are read along and dropped: from the page cache 2-3 us, as long as another call."""
_RUN_BYTES = 8 << 20
"""What one call reads at most: a chunk of the mount."""
_RUN_EXTENTS = 500
"""Each with a gap before it: preadv takes 1024 pieces (IOV_MAX)."""
_SLOW_S = 0.0002
"""A call that takes longer has waited for more than memory. After two of them the rest is read by several threads; of
what lies in the page cache (10 us a call) several threads would only fight for the interpreter, at half the speed."""
_OPEN_FILES = 256
"""A layout of no more files keeps each open once it was read; of more, each is opened and closed again."""


@dataclasses.dataclass(frozen=True)
class SamplePiece:
    """What is to be read: the samples `indices`, one behind the other, into `size` bytes from `at` of the memory."""

    indices: Ints
    at: int
    size: int


class Samples(Protocol):
    """A source of samples. `close` when it is needed no more."""

    coalesces: bool
    """Whether reading several pieces at once is better than one after the other."""

    def sizes(self, indices: Ints) -> Ints:
        """Bytes of each sample. Raises IndexError for one that there is not."""

    def read(self, memory: Bytes, pieces: Sequence[SamplePiece]) -> None:
        """Fill all pieces. Raises whatever the source raises; then what is in them is not to be used."""

    @property
    def reads(self) -> int:
        """Calls that have read, of the system or of the user's function."""

    def close(self) -> None:
        """Let go of files and threads."""


class FunctionSamples:
    """Samples that a function reads; `sizes` is for those that differ in size."""

    coalesces = False

    def __init__(
        self,
        read: ReadFunction,
        shape: tuple[int, ...] | None,
        dtype: np.dtype[Any],
        sizes: SampleSizes | None,
    ) -> None:
        self._read, self._shape, self._dtype = read, shape, dtype
        self.reads = 0
        self._sizes = sizes if callable(sizes) or sizes is None else np.asarray(sizes, np.int64)

    def sizes(self, indices: Ints) -> Ints:
        if self._shape is not None:
            return np.full(len(indices), int(np.prod(self._shape)) * self._dtype.itemsize, np.int64)
        if callable(self._sizes):
            sizes = np.asarray(self._sizes(indices), np.int64)
        else:
            assert self._sizes is not None
            _check_range(indices, len(self._sizes))
            sizes = self._sizes[indices]
        if sizes.shape != indices.shape or (len(sizes) and sizes.min() < 0):
            raise ValueError(f"sizes gives {sizes.shape} for indices {indices.shape}, or a negative size")
        return sizes

    def read(self, memory: Bytes, pieces: Sequence[SamplePiece]) -> None:
        for piece in pieces:
            out: NDArray[Any] = memory[piece.at : piece.at + piece.size]
            if self._shape is not None:
                out = out.view(self._dtype).reshape(len(piece.indices), *self._shape)
            self._read(piece.indices, out)
            self.reads += 1

    def close(self) -> None:
        pass


class LayoutSamples:
    """Samples that a layout finds in files below `root`, with large explicit reads, by several threads at a time.

    Raises LayoutError where a file is not the version that the layout was made of, and OSError.
    """

    coalesces = True

    def __init__(self, layout: Layout, root: str, threads: int) -> None:
        self._layout, self._root = layout, os.fsencode(root)
        self._names = layout.files
        self._file_sizes, self._file_mtimes_ns = layout.file_sizes, layout.file_mtimes_ns
        self._pool = ThreadPoolExecutor(threads, "hfs-shared") if threads > 1 else None
        self._threads = threads
        self._opening = threading.Lock()
        self._kept: dict[int, int] = {}
        self._gap = memoryview(bytearray(_GAP_BYTES))
        self._counts = [0] * threads

    @property
    def reads(self) -> int:
        return sum(self._counts)

    def sizes(self, indices: Ints) -> Ints:
        counts, _, _, sizes = self._extents(indices)
        ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
        last = np.cumsum(counts)
        return np.asarray(ends[last] - ends[last - counts], np.int64)

    def read(self, memory: Bytes, pieces: Sequence[SamplePiece]) -> None:
        runs = list(self._runs(memory.data, pieces))
        slow = done = 0
        while done < len(runs) and (self._pool is None or slow < 2):
            began_s = time.monotonic()
            self._read_runs(0, runs[done : done + 1])
            slow += time.monotonic() - began_s > _SLOW_S
            done += 1
        if self._pool is None or done == len(runs):
            return
        left = runs[done:]
        shares = [part(len(left), number, self._threads) for number in range(self._threads)]
        reading = [self._pool.submit(self._read_runs, n, left[a:b]) for n, (a, b) in enumerate(shares) if a < b]
        # All are waited for, also after an error: nobody may go on writing into memory that is used for something else.
        for fault in [share.exception() for share in reading]:
            if fault is not None:
                raise fault

    def close(self) -> None:
        if self._pool:
            self._pool.shutdown(wait=True, cancel_futures=True)
        while self._kept:
            os.close(self._kept.popitem()[1])

    def _extents(self, indices: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """As the layout says it, but for the sizes of files that it does not know: those of now."""
        counts, files, offsets, sizes = self._layout.extents_of_each(indices)
        for at in np.flatnonzero(sizes < 0):
            sizes[at] = os.stat(self._path(int(files[at]))).st_size
        return counts, files, offsets, sizes

    def _runs(self, memory: memoryview, pieces: Sequence[SamplePiece]) -> Iterator[tuple[int, int, list[memoryview]]]:
        """(file, offset, where the bytes from there go), one for each call, in the order of the files."""
        found = [self._extents(piece.indices)[1:] for piece in pieces]
        files, offsets, sizes = (np.concatenate(column) for column in zip(*found, strict=True))
        into = np.concatenate(
            [piece.at + np.cumsum(size) - size for piece, (_, _, size) in zip(pieces, found, strict=True)]
        )
        order = np.lexsort((offsets, files))
        order = order[sizes[order] > 0]
        run: list[memoryview] = []
        run_file = run_start = run_end = -1
        for file, offset, size, at in zip(
            files[order].tolist(), offsets[order].tolist(), sizes[order].tolist(), into[order].tolist(), strict=True
        ):
            gap = offset - run_end
            if run and (
                file != run_file
                or not 0 <= gap <= _GAP_BYTES
                or offset + size - run_start > _RUN_BYTES
                or len(run) >= 2 * _RUN_EXTENTS
            ):
                yield run_file, run_start, run
                run = []
            if not run:
                run_file, run_start = file, offset
            elif gap:
                run.append(self._gap[:gap])
            run.append(memory[at : at + size])
            run_end = offset + size
        if run:
            yield run_file, run_start, run

    def _read_runs(self, thread: int, runs: Sequence[tuple[int, int, list[memoryview]]]) -> None:
        opened = descriptor = -1
        try:
            for file, offset, buffers in runs:
                if file != opened:
                    self._let_go(opened, descriptor)
                    opened = -1
                    descriptor = self._open(file)
                    opened = file
                while buffers:
                    got = os.preadv(descriptor, buffers, offset)
                    self._counts[thread] += 1
                    if not got:
                        raise LayoutError(
                            f"{self._named(file)}: ends at byte {offset}; the layout says that it goes on"
                        )
                    offset += got
                    buffers = _after(buffers, got)
        finally:
            self._let_go(opened, descriptor)

    def _open(self, file: int) -> int:
        """A descriptor. Raises LayoutError for a version that is not the layout's."""
        if len(self._names) > _OPEN_FILES:
            return self._opened(file)
        with self._opening:
            if file not in self._kept:
                self._kept[file] = self._opened(file)
            return self._kept[file]

    def _opened(self, file: int) -> int:
        descriptor = os.open(self._path(file), os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            for said, is_now in ((self._file_sizes, found.st_size), (self._file_mtimes_ns, found.st_mtime_ns)):
                if len(said) and 0 <= said[file] != is_now:
                    raise LayoutError(f"{self._named(file)}: changed since the layout was made; build it again")
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _let_go(self, file: int, descriptor: int) -> None:
        if file >= 0 and len(self._names) > _OPEN_FILES:
            os.close(descriptor)

    def _path(self, file: int) -> bytes:
        return os.path.join(self._root, self._names[file])

    def _named(self, file: int) -> str:
        return os.fsdecode(self._path(file))


def samples_of(
    source: Layout | str | os.PathLike[str] | ReadFunction,
    root: str,
    shape: tuple[int, ...] | None,
    dtype: np.dtype[Any],
    sizes: SampleSizes | None,
    threads: int,
) -> LayoutSamples | FunctionSamples:
    """What `NodeBatches` was given as its source, opened. Raises ConfigError, LayoutError."""
    if isinstance(source, Layout | str | os.PathLike):
        if sizes is not None:
            raise ConfigError("sizes is for a function that reads: a layout has them")
        layout = source if isinstance(source, Layout) else Layout.load(os.fspath(source))
        return LayoutSamples(layout, root, threads)
    if not callable(source):
        raise ConfigError(
            f"source is {source!r}: it must be a Layout, the path of one, or a function read(indices, out)"
        )
    if (shape is None) == (sizes is None):
        raise ConfigError("a function that reads needs either shape and dtype, or sizes")
    return FunctionSamples(source, shape, dtype, sizes)


def _after(buffers: list[memoryview], got: int) -> list[memoryview]:
    """What is left of the buffers when their first `got` bytes are filled."""
    for number, buffer in enumerate(buffers):
        if got < len(buffer):
            return [buffer[got:], *buffers[number + 1 :]]
        got -= len(buffer)
    return []


def _check_range(indices: Ints, samples: int) -> None:
    if len(indices) and (indices.min() < 0 or indices.max() >= samples):
        wrong = int(indices[(indices < 0) | (indices >= samples)][0])
        raise IndexError(f"sample {wrong}: there are {samples}, from 0")
