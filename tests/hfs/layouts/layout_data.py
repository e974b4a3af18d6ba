"""What tests of layouts share: the bytes that a layout says a sample is, read with pread. Not a test module."""

import os
from pathlib import Path

import numpy as np

from hfs.layouts.layout import Layout


def sample_pieces(layout: Layout, root: Path) -> list[list[bytes]]:
    """The bytes of each extent of each sample."""
    if not layout.extent_count:
        return [[Path(root, os.fsdecode(name)).read_bytes()] for name in layout.files]
    fds = [os.open(os.path.join(os.fsencode(root), name), os.O_RDONLY) for name in layout.files]
    try:
        starts = layout.starts if len(layout.starts) else np.arange(layout.samples + 1)
        pieces = [
            os.pread(fds[file], size, offset)
            for file, offset, size in zip(
                layout.extents.tolist(), layout.offsets.tolist(), layout.sizes.tolist(), strict=True
            )
        ]
        assert [len(piece) for piece in pieces] == layout.sizes.tolist()
        return [pieces[starts[i] : starts[i + 1]] for i in range(layout.samples)]
    finally:
        for fd in fds:
            os.close(fd)


def sample_bytes(layout: Layout, root: Path) -> list[bytes]:
    """The bytes of each sample, its extents one after the other."""
    return [b"".join(pieces) for pieces in sample_pieces(layout, root)]
