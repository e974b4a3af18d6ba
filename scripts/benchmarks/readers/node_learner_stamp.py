"""What a file of `scripts/bench peers` begins with: its own name."""

STAMP_BYTES = 32


def stamp(name: str) -> bytes:
    return name.encode().ljust(STAMP_BYTES, b"\0")
