"""Layouts of Parquet files: where the columns of each row group lie. A sample is a row group.

Never runs in a training job. With pyarrow, which reads the footer only. For readers that take row groups in random
order (`read_row_group(i)`); whoever reads single rows asks for the sample of their group. The footer, which a reader
needs to open the file, is in no layout: it is read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hfs.layouts.layout import Layout
from hfs.layouts.reading import SourceFile
from hfs.layouts.registry import Format
from hfs.layouts.shards import Shard, layout_of, shards_of
from hfs.mountd.wire.layout import LayoutError


def build_parquet(paths: str | Sequence[str], root: str) -> Layout:
    """The layout in which sample i is row group i of the Parquet files at `paths` below `root`, in their order.

    Raises LayoutError where a file is cut short, encrypted, or damaged; ConfigError for a path outside `root`.
    """
    return layout_of(shards_of(paths, _shard), root, "parquet")


def _shard(file: SourceFile) -> Shard:
    try:
        import pyarrow as pa  # type: ignore[import-untyped] # it has no types
        from pyarrow import parquet
    except ImportError:
        raise LayoutError("pyarrow is missing: pip install pyarrow") from None
    offsets: list[int] = []
    sizes: list[int] = []
    counts: list[int] = []
    try:
        footer = parquet.read_metadata(file.path)
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        for group in groups:
            extents = _joined([_extent(file, group.column(number)) for number in range(group.num_columns)])
            counts.append(len(extents))
            offsets += [offset for offset, _ in extents]
            sizes += [end - offset for offset, end in extents]
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        fault = f"not a Parquet file that can be read, or cut short at offset {file.size:,}"
        raise LayoutError(f"{file.path}: {fault} ({str(error)[:200]})") from None
    each = None if set(counts) <= {1} else np.array(counts, np.int64)
    return Shard(file.path, file.size, file.mtime_ns, np.array(offsets, np.int64), np.array(sizes, np.int64), each)


def _extent(file: SourceFile, column: Any) -> tuple[int, int]:  # noqa: ANN401 - pyarrow has no types
    """(first byte, end) of the pages of a column in a row group, its dictionary first."""
    if column.file_path:
        raise LayoutError(f"{file.path}: columns of it lie in another file ({column.file_path})")
    begin = column.data_page_offset
    if column.has_dictionary_page and 0 < (column.dictionary_page_offset or 0) < begin:  # some writers say 0 of none
        begin = column.dictionary_page_offset
    size = column.total_compressed_size
    if begin < 0 or size < 0 or begin + size > file.size:
        raise LayoutError(
            f"{file.path}: damaged: a column of {size:,} bytes at offset {begin:,} of a file that ends at {file.size:,}"
        )
    return begin, begin + size


def _joined(extents: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those that touch each other as one: the columns of a row group lie side by side as a rule."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(extents):
        if found and found[-1][1] >= begin:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


FORMAT = Format("parquet", lambda _, head: head.startswith(b"PAR1"), build_parquet)
