"""How builders read files: a window gives what is there, however it is asked; what changes meanwhile is noticed.
And how files are written: whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfs.layouts import reading
from hfs.layouts.layout import LayoutError
from hfs.layouts.reading import FileWindow, opened
from hfs.training.atomic_write import whole_file
from tests.support.pattern import pattern


@given(st.lists(st.tuples(st.integers(0, 900), st.integers(1, 300)), max_size=60), st.integers(50, 700))
def test_a_window_gives_what_is_there(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]], far: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "window"
    data = pattern(3, 0, 20_000)
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "BLOCK_BYTES", 1000)
        patch.setattr(reading, "SCATTERED_BYTES", far)
        patch.setattr(reading, "_HEADERS_BYTES", 64)
        with opened(str(path)) as file, FileWindow(file) as window:
            at = 0
            for gap, size in steps:
                at += gap
                if at + size > len(data):
                    with pytest.raises(LayoutError, match="window: cut short at 20,00"):
                        window.read(at, size)
                    break
                assert window.read(at, size) == data[at : at + size]
                at += size


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"12")
    with pytest.raises(LayoutError, match="x: changed while it was read"), opened(str(path)):
        path.write_bytes(b"123")


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(fd: int, size: int, offset: int) -> bytes:
        raise OSError(5, "Input/output error")

    (tmp_path / "x").write_bytes(b"12")
    monkeypatch.setattr(reading.os, "pread", failing)
    with opened(str(tmp_path / "x")) as file:
        with pytest.raises(LayoutError, match=r"x: cannot be read at offset 1 \(Input/output error\)"):
            file.read(1, 1)
        with pytest.raises(LayoutError, match="cannot be read at offset 0"):
            list(file.blocks(2))


def test_it_appears_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"before")
    with whole_file(str(path)) as file:
        file.write(b"after")
        assert path.read_bytes() == b"before"
    assert path.read_bytes() == b"after"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError("no room"), KeyboardInterrupt()])
def test_what_is_given_up_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"before")

    def give_up() -> None:
        with whole_file(str(path)) as file:
            file.write(b"half")
            raise error

    with pytest.raises(type(error)):
        give_up()
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), whole_file(str(tmp_path / "none" / "f")):
        raise AssertionError
