"""The words that some keys choose from."""

from __future__ import annotations

from typing import Literal

Direct = Literal["auto", "off"]
PeersWanted = Literal["none", "mpi"]
PlacementWanted = Literal["auto", "partition", "replicate"]
VerifyWanted = Literal["first-use", "changed"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
