"""The .npz files of NumPy as a format of layouts; what is done with them is in `npy.py`."""

from __future__ import annotations

from hfs.layouts.format import DATASET, Format
from hfs.layouts.npy import build_npz

FORMAT = Format(
    "npz",
    "a row of each array named by --dataset",
    lambda path, head: head.startswith(b"PK") and path.endswith(".npz"),
    build_npz,
    [DATASET],
)
