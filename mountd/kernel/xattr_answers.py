"""Extended attributes that the data plane answers (mountd/native/plane/answers.c, overlay.c): what it is told of them.

Event loop only; never waits, but for answers under way.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from hfs.mountd.native.extension import EXTENSION

_LONGEST_S = 86_400.0
LOOK_AT_MOST_S = 1.0
"""A cache disk that takes longer has perhaps failed: what lies there is said not to be staged."""


class XattrAnswers:
    def __init__(self) -> None:
        self._tells = self._holds = False

    def root_without_acl(self, valid_s: float) -> None:
        """So long the root of the mount has no ACL; 0: it is not known."""
        EXTENSION.plane_root_without_acl(int(min(valid_s, _LONGEST_S) * 1e9))

    @staticmethod
    def ask_for_opens(are: bool) -> None:
        """Whether opens of slots come to Python too, which asks the source as the user who opens."""
        EXTENSION.plane_slots_are_asked_for(are)

    def tell_overlays(self, on: bool) -> None:
        """Whether overlays over the mount are told where staged slots lie, from now on."""
        self._tells = on
        self._tell()

    def hold_overlays(self, on: bool) -> None:
        """Whether all that they ask for comes to Python for a moment."""
        self._holds = on
        self._tell()

    def _tell(self) -> None:
        EXTENSION.plane_overlay(self._tells and not self._holds)

    def stop_telling(self, numbers: Sequence[int]) -> tuple[Sequence[int], bool]:
        """No overlay is told of these objects any more when this returns. Those that were told since the last call,
        more than once perhaps; and whether some of them were lost."""
        return self._untold(numbers, on=True)

    def tell_again(self, numbers: Sequence[int]) -> None:
        """These may be told again. What was told meanwhile is told by the next `stop_telling`."""
        self._untold(numbers, on=False)

    def _untold(self, numbers: Sequence[int], *, on: bool) -> tuple[Sequence[int], bool]:
        told, some_are_lost = EXTENSION.plane_untold(array("Q", numbers).tobytes(), on)
        return array("Q", told), some_are_lost

    def tellable(self, nodes: Sequence[int]) -> Sequence[int]:
        """Those of these that are slots of which an overlay would be told."""
        return array("Q", EXTENSION.plane_tellable(array("Q", nodes).tobytes()))

    def give_up_looks(self) -> None:
        """To be called some times a second: whoever waits for the cache disk does so no longer."""
        EXTENSION.plane_give_up_looks(int(LOOK_AT_MOST_S * 1e9))
