"""What may still be put into the page cache."""

from pathlib import Path

from mountd.memory import Memory, available_bytes

MEMINFO = "MemTotal:       24000000 kB\nMemFree:          100000 kB\nMemAvailable:    9000000 kB\n"


def group_of(folder: Path, limit: str, current: int, inactive: int) -> str:
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\nactive_file 7\n")
    return str(folder)


def test_the_node_or_the_group_whichever_has_less(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    meminfo = str(tmp_path / "meminfo")
    assert available_bytes(meminfo, None) == 9_000_000 * 1024
    assert available_bytes(meminfo, group_of(tmp_path, "max", 1, 1)) == 9_000_000 * 1024
    assert available_bytes(meminfo, group_of(tmp_path, "1000000", 900_000, 50_000)) == 150_000
    assert available_bytes(meminfo, str(tmp_path / "gone")) == 9_000_000 * 1024


def test_looked_at_once_a_second() -> None:
    now = [0.0]
    memory = Memory(lambda: now[0])
    assert memory.has_room(4096)
    assert not memory.has_room(1 << 60)
    memory._available_bytes = 100
    assert memory.has_room(50)
    assert not memory.has_room(51)
    now[0] = 1.0
    assert memory.has_room(4096)
