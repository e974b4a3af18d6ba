"""From the key of a record to the number of its sample, in layouts that were built with their keys.

A layout keeps the 64-bit XXH3 of each key, 8 bytes a sample, never the keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from hfs.layouts.layout import Layout
from hfs.mountd.wire.layout import LayoutError


def hashed(keys: Iterable[bytes]) -> npt.NDArray[np.uint64]:
    """The XXH3-64 of each key."""
    return np.fromiter(map(xxh3_64_intdigest, keys), np.uint64)


def positions(layout: Layout, keys: Sequence[bytes | str]) -> npt.NDArray[np.int64]:
    """The sample of each of `keys`, the first of those with that key. Strings are meant as UTF-8.

    Raises LayoutError where the layout was built without keys, and KeyError of the first key that it does not have (of
    one that it does not have it knows that but for one in 2^64 / samples).
    """
    if layout.keys is None:
        raise LayoutError("the layout has no keys: build it again with keys=True (hfs layout build --keys)")
    order = np.argsort(layout.keys, kind="stable")
    wanted = hashed(key.encode() if isinstance(key, str) else key for key in keys)
    place = np.searchsorted(layout.keys, wanted, sorter=order)
    found = order[np.minimum(place, len(order) - 1)]
    missing = layout.keys[found] != wanted
    if missing.any():
        raise KeyError(keys[int(np.argmax(missing))])
    return found
