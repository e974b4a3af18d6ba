"""Whether a layout still belongs to its files."""

from __future__ import annotations

import os

import numpy as np

from hfs.layouts.layout import Layout
from hfs.layouts.reading import opened
from hfs.layouts.registry import formats
from hfs.mountd.wire.layout import LayoutError


def faults(layout: Layout, root: str, samples: int) -> tuple[list[str], int]:
    """(what is wrong, how many samples were looked at) of a layout of files below `root`.

    Each file's version is compared; where that is right, and the format can tell, the bytes around the first extent of
    about `samples` samples, the same ones each time.
    """
    wrong = layout.changed(root)
    known = formats().get(layout.made_from.partition(":")[0])
    if wrong or known is None or known.spot_check is None or not layout.extent_count:
        return wrong, 0
    chosen = np.unique(np.linspace(0, layout.samples - 1, min(samples, layout.samples)).astype(np.int64)).tolist()
    by_file: dict[int, list[tuple[int, int, int]]] = {}
    for number in chosen:
        for file, offset, size in list(layout.extents_of(number))[:1]:
            by_file.setdefault(file, []).append((number, offset, size))
    files = layout.files
    for file, places in by_file.items():
        path = os.path.join(root, os.fsdecode(files[file]))
        try:
            with opened(path) as source:
                for number, offset, size in places:
                    if fault := known.spot_check(source, offset, size):
                        wrong.append(f"{path}: sample {number:,}, {size:,} bytes at offset {offset:,}: {fault}")
        except LayoutError as error:
            wrong.append(str(error))
    return wrong, len(chosen)
