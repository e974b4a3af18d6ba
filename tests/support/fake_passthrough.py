"""Passthrough in memory: hands out backing ids for durable files, as `mountd.files.passthrough.Passthrough` does.

`refuse` makes the kernel take no more; `checkpoints` is how often a registration lets others run.
"""

from __future__ import annotations

import trio

from hfs.mountd.cache.objects.file import StagedFile


class FakePassthrough:
    """Backing ids by file, with the number of users in `StagedFile.passed`."""

    def __init__(self) -> None:
        self.on = False
        self.refuse = False
        self.checkpoints = 1
        self.backings: dict[StagedFile, int] = {}
        self.made = 0
        self.lost: list[int] = []

    def __len__(self) -> int:
        return len(self.backings)

    def may(self, file: StagedFile) -> bool:
        return self.on and file.durable

    def object_of(self, file: StagedFile) -> int:
        return 1

    def attach(self, file: StagedFile, backing_id: int, inode: int) -> None:
        self.backings.setdefault(file, backing_id)
        self.made = max(self.made, backing_id)
        file.passed += 1

    def lose(self, backing_id: int) -> None:
        self.lost.append(backing_id)

    def acquire_nowait(self, file: StagedFile) -> int | None:
        if file in self.backings:
            return self._one_more(file)
        return None if not self.may(file) or self.checkpoints or self.refuse else self._one_more(file)

    async def acquire(self, file: StagedFile) -> int | None:
        if file not in self.backings and not self.may(file):
            return None
        file.passed += 1
        for _ in range(0 if file in self.backings else self.checkpoints):
            await trio.lowlevel.checkpoint()
        file.passed -= 1
        if file not in self.backings and (self.refuse or not file.durable):
            return None
        return self._one_more(file)

    def release(self, file: StagedFile) -> None:
        file.passed -= 1
        if not file.passed:
            self.backings.pop(file, None)

    def _one_more(self, file: StagedFile) -> int:
        if file not in self.backings:
            self.made += 1
            self.backings[file] = self.made
        file.passed += 1
        return self.backings[file]
