"""Where metrics are answered: an address and a port, as people write them and as a socket takes them.

Addresses are numbers: to look a name up may take a minute, on a machine whose network is just what is amiss.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_PARTS = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<four>[0-9.]+)|(?P<name>localhost)):(?P<port>[0-9]{1,5})")
_LOOPBACK = "127.0.0.1"
_MAX_PORT = 65_535


class Address(NamedTuple):
    """Where to listen."""

    host: str
    """A number of IPv4 or IPv6, in its shortest form."""
    port: int
    """0: any that is free."""

    @property
    def is_loopback(self) -> bool:
        """Only processes of this machine can connect."""
        import ipaddress

        return ipaddress.ip_address(self.host).is_loopback

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(value: object) -> str | None:
    """9567, "9567" (of 127.0.0.1), "10.1.2.3:9567", "[::1]:9567", "localhost:9567", as `Address` shows it; None for
    "off". Raises ValueError, also for ":9567", which other programs take for all addresses; TypeError."""
    if value is False or (isinstance(value, str) and value.strip().lower() in {"off", "no", "false"}):
        return None
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(value)
    text = str(value).strip()
    return str(address_of(f"{_LOOPBACK}:{text}" if re.fullmatch("[0-9]{1,5}", text) else text))


def address_of(text: str) -> Address:
    """From what `Address` shows. Raises ValueError."""
    import ipaddress

    found = _PARTS.fullmatch(text)
    if found is None or int(found["port"]) > _MAX_PORT:
        raise ValueError(text)
    host = _LOOPBACK if found["name"] else found["six"] or found["four"]
    return Address(str(ipaddress.ip_address(host)), int(found["port"]))
