"""Delegation: opens and reads of one file that the data plane answers, as those see it who may have to call it back.

Made in `files.delegations`; kept at the node and at the staged file, by whose rooms it is called back before anything
changes that requests are answered by.
"""

from __future__ import annotations

from typing import Protocol


class Delegation(Protocol):
    """Until it is called back, requests for the file are answered, and opens counted, without us."""

    pins: int
    """Of the staged file, for opens to come: 1 if opens are answered."""
    passes: bool
    """The kernel reads what they open from the staged file by itself."""

    @property
    def opens(self) -> int:
        """Handles that are open now, beside our own."""

    def recall(self) -> None:
        """Requests come to us again, and those handles are our own."""
