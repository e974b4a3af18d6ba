"""What a cache of a root holds now: a daemon knows better than the ledger, where it writes seconds later."""

from __future__ import annotations

import os

from hfs.client.client import Client
from mountd.base.errors import HfsError
from mountd.ledger import Listed

_LIMIT_S = 2.0


def held_bytes(entry: Listed) -> int:
    """Bytes staged; as the ledger has it, where no daemon of ours can be asked."""
    if entry.running and entry.serving is not None and entry.serving.control:
        try:
            return int(Client(os.fsdecode(entry.serving.control)).status(_LIMIT_S)["staged"]["room_bytes"])
        except (HfsError, KeyError):
            pass
    return entry.grant.used_bytes
