"""The memory in which a journal notes, without a keeper."""

import dataclasses

from hfs.mountd.namespace.journal.journal import Inherited, Journal
from hfs.mountd.namespace.journal.log import HEADER_BYTES, JournalLog


def resized(data: bytearray, size: int) -> None:
    data[:] = data[:size] if size <= len(data) else data + bytes(size - len(data))


class Noted:
    """Memory that tells of all that is done to it: (which, place, bytes) or (which, new size, None)."""

    def __init__(self, which: int, story: list[tuple[int, int, bytes | None]], contents: bytes = b"") -> None:
        self.which, self.story = which, story
        self.data = bytearray(contents or bytes(HEADER_BYTES))
        self.refuses = False

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, at: slice) -> bytes:
        return bytes(self.data[at])

    def __setitem__(self, at: slice, data: bytes) -> None:
        assert at.stop <= len(self.data), "a store behind the end would be a SIGBUS"
        self.story.append((self.which, at.start, bytes(data)))
        self.data[at] = data

    def resize(self, size: int) -> None:
        if self.refuses and size > len(self.data):
            raise OSError(28, "no space")
        self.story.append((self.which, size, None))
        resized(self.data, size)


@dataclasses.dataclass
class Memory:
    """Two halves that outlive the journals made of them."""

    halves: tuple[Noted, Noted] = dataclasses.field(default_factory=lambda: (Noted(0, []), Noted(1, [])))
    least_records: int = 4

    def journal(self, generation: int = 0, *, max_directories: int = 100, max_files: int = 100) -> Journal:
        entries = JournalLog(self.halves, self.least_records)
        return Journal(entries, generation, max_directories=max_directories, max_files=max_files)

    def inherited(self) -> Inherited:
        return self.journal().take_inherited()


def memory_copy(memory: Memory) -> Memory:
    one, other = memory.halves
    return Memory((Noted(0, [], bytes(one.data)), Noted(1, [], bytes(other.data))), memory.least_records)
