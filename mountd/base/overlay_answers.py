"""Whoever tells overlays where objects lie without asking the cache, as the cache knows it (`kernel.xattr_answers`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class OverlayAnswers(Protocol):
    """Never waits, but for answers under way."""

    def stop_telling(self, numbers: Sequence[int], /) -> tuple[Sequence[int], bool]:
        """Nobody is told of these objects any more when this returns. Those that were told since the last call, more
        than once perhaps; and whether some of them were lost."""

    def tell_again(self, numbers: Sequence[int], /) -> None:
        """These may be told again."""
