"""What a codec is: a name, a version, and how an array becomes parts and parts an array.

A new codec is one file of this package with a `CODEC`, and its name in `_MODULES` below. Its kernels lie
in `policies.codecs`; here is what stands around them: layouts of channels, preprocessing, threads and devices.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from hfs.mountd.core.errors import HfsError

Array: TypeAlias = npt.NDArray[Any]
Buffer: TypeAlias = Any
"""Bytes, a memoryview, a mapped file: what has the buffer protocol."""
Torch: TypeAlias = Any
"""The module: no file here imports it, so that NumPy is enough for who wants NumPy."""
Device: TypeAlias = Any
"""A torch.device, or what names one."""
Tensor: TypeAlias = Any
Decoded: TypeAlias = Any
"""An Array, or a Tensor where a device was asked for."""


class CodecError(HfsError):
    """An array that cannot be encoded, or an encoded sample that cannot be decoded as asked."""


@dataclasses.dataclass(frozen=True)
class WantedOutput:
    """How an array is to come back: (op(value) - shift) * scale, computed in float32.

    dtype       "float16", "float32"; None: the codec's own (float16 where anything is computed or was lossy, else that
                of the array that was encoded)
    op          "log1p", or None
    scale       one number, or one for each channel
    shift       the same
    channels    "first" or "last" axis; None: where they were
    threads     how many decode at once; a loader with a process for each core wants 1
    max_bytes   what the arrays of a sample may take together; None: 256 MiB, or 64 times their parts if that is more
    """

    dtype: str | None = None
    op: Literal["log1p"] | None = None
    scale: float | Sequence[float] = 1.0
    shift: float | Sequence[float] = 0.0
    channels: Literal["first", "last"] | None = None
    threads: int = 1
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.dtype not in {None, "float16", "float32"}:
            raise CodecError(f"dtype: {self.dtype!r} is not possible; there are float16 and float32")
        if self.op not in {None, "log1p"}:
            raise CodecError(f"op: {self.op!r} is not known; there is log1p")
        if self.channels not in {None, "first", "last"}:
            raise CodecError(f"channels: {self.channels!r} is neither 'first' nor 'last'")
        if self.threads < 1:
            raise CodecError(f"threads: {self.threads} cannot decode anything; give 1 or more")

    @property
    def as_it_was(self) -> bool:
        """Is nothing to be computed?"""
        return self.op is None and not self.scaled

    @property
    def scaled(self) -> bool:
        return bool(np.any(np.asarray(self.scale) != 1) or np.any(np.asarray(self.shift) != 0))

    def by_channel(self, channels: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Scale and shift of each channel. Raises CodecError for another number of them."""
        found = []
        for name, values in (("scale", self.scale), ("shift", self.shift)):
            given = np.asarray(values, np.float32)
            if given.ndim > 1 or (given.ndim == 1 and len(given) != channels):
                raise CodecError(f"{name}: one number, or one for each of {channels} channels, and not {given.shape}")
            found.append(np.ascontiguousarray(np.broadcast_to(given, channels)))
        return found[0], found[1]


@dataclasses.dataclass(frozen=True)
class SampleEntry:
    """One encoded array of a sample; what the container keeps."""

    name: str
    codec: str
    version: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    parameters: Mapping[str, Any]
    parts: Mapping[str, Array]

    @property
    def raw_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def encoded_bytes(self) -> int:
        return sum(part.nbytes for part in self.parts.values())


class Codec:
    """The base of all codecs."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Of what it writes. It reads this and all before."""
    lossless: ClassVar[bool]

    def encode(self, array: Array, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Array]]:
        """Parameters (of JSON) and parts. Raises Unencodable or CodecError."""
        raise NotImplementedError

    def decode(self, entry: SampleEntry, wanted: WantedOutput) -> Array:
        """Raises Unencodable or CodecError."""
        raise NotImplementedError

    def decode_torch(self, entry: SampleEntry, wanted: WantedOutput, torch: Torch, device: Device) -> Tensor:
        """A tensor on the device; `torch` is the module. Here: decoded on the host, then copied."""
        return to_device(self.decode(entry, wanted), torch, device)


def in_threads(work: Callable[[int, int], None], count: int, step: int, threads: int) -> None:
    """work(first, last) for all of range(count), cut at multiples of `step`, by so many threads."""
    if threads <= 1 or count <= step:
        work(0, count)
        return
    # Several pieces a thread: one that is held up by others on its core does not hold up the rest.
    size = max(1, count // (4 * threads * step)) * step
    # A pool for each call: one that is kept would have no threads in the forked workers of a loader.
    with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
        for _ in pool.map(lambda first: work(first, min(first + size, count)), range(0, count, size)):
            pass


def to_device(array: Array, torch: Torch, device: Device) -> Tensor:
    """The array as a tensor there. Unsigned 16-bit integers, which few operations of torch know, as int32."""
    if array.dtype == np.uint16:
        return torch.bitwise_and(to_device(array.view(np.int16), torch, device).to(torch.int32), 0xFFFF)
    # torch warns of arrays that it could write to and must not.
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device)


_MODULES = ("cosmoflow", "deepcam", "plain")


@cache
def codecs() -> dict[str, Codec]:
    """All codecs by name."""
    found = [importlib.import_module(f"hfs.codecs.{name}").CODEC for name in _MODULES]
    return {one.name: one for one in found}


def find_codec(name: str, version: int = 0) -> Codec:
    """The codec of this name, which can read this version. Raises CodecError."""
    known = codecs()
    if name not in known:
        raise CodecError(f"codec {name!r} is not known; this version of hfs has {', '.join(known)}")
    if version > known[name].version:
        raise CodecError(
            f"written by version {version} of the codec {name}, and this version of hfs reads up to "
            f"{known[name].version}: install a newer hfs"
        )
    return known[name]


def choose_codec(name: str, array: Array) -> Codec:
    """The codec of this name; "auto": cosmoflow for integers, deepcam for floats. Raises CodecError."""
    if name != "auto":
        return find_codec(name)
    if array.dtype.kind in "iu":
        return find_codec("cosmoflow")
    if array.dtype.kind == "f":
        return find_codec("deepcam")
    raise CodecError(f"there is no codec for values of {array.dtype}: integers or floats can be encoded")
