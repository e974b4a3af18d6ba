"""A file appears whole or not at all, and nothing is left beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hfs.training.atomic_write import whole_file


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
