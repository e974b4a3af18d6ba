"""File contents that are computed, not stored: the byte at an offset is a function of (seed, offset).

Every test that needs file contents takes them from here, with its own seed for each file. Words of 8 bytes are a
one-to-one mixing of (seed, offset // 8), so any 8 bytes that show up in the wrong place can be turned back into the
file and the offset where they belong: `explain` does it for the message of a failed test.

Nothing here keeps state or touches a file, except `write_pattern`.
"""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

WORD_BYTES = 8
# A word holds the seed above and the number of the word below: files up to 8 TiB, 2**24 seeds.
INDEX_BITS = 40
MAX_SEED = (1 << (64 - INDEX_BITS)) - 1

# The finalizer of SplitMix64 (Steele, Lea, Flood 2014): two odd multipliers and xor-shifts, hence one-to-one.
_MULTIPLY_1 = 0xBF58476D1CE4E5B9
_MULTIPLY_2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_INVERSE_1 = pow(_MULTIPLY_1, -1, 1 << 64)
_INVERSE_2 = pow(_MULTIPLY_2, -1, 1 << 64)


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    # In place: at 8 MiB a call the temporaries are what costs.
    words ^= words >> np.uint64(30)
    words *= np.uint64(_MULTIPLY_1)
    words ^= words >> np.uint64(27)
    words *= np.uint64(_MULTIPLY_2)
    words ^= words >> np.uint64(31)
    return words


def _unmix(word: int) -> int:
    word = word ^ (word >> 31) ^ (word >> 62)
    word = word * _INVERSE_2 & _MASK
    word = word ^ (word >> 27) ^ (word >> 54)
    word = word * _INVERSE_1 & _MASK
    return word ^ (word >> 30) ^ (word >> 60)


def pattern(seed: int, offset: int, size: int) -> bytes:
    """The `size` bytes from `offset` of the file with this seed (1..MAX_SEED)."""
    if not 0 < seed <= MAX_SEED:
        raise ValueError(f"seed {seed} is not in 1..{MAX_SEED}")
    if size <= 0:
        return b""
    first, last = offset // WORD_BYTES, (offset + size - 1) // WORD_BYTES
    base = np.uint64(seed << INDEX_BITS)
    words = _mix(np.arange(first, last + 1, dtype=np.uint64) + base)
    skip = offset - first * WORD_BYTES
    return words.astype("<u8", copy=False).tobytes()[skip : skip + size]


def origin(data: bytes) -> tuple[int, int] | None:
    """(seed, offset) of the file that `data` comes from, if its first 23 bytes are a run of some file's contents."""
    for skip in range(WORD_BYTES):
        if len(data) < skip + 2 * WORD_BYTES:
            return None
        here, after = (
            _unmix(int.from_bytes(data[skip + step : skip + step + WORD_BYTES], "little")) for step in (0, WORD_BYTES)
        )
        seed, index = here >> INDEX_BITS, here & ((1 << INDEX_BITS) - 1)
        # Two words in a row decode to neighbours only if they really are: by chance once in 2**64.
        if after == here + 1 and seed > 0 and index * WORD_BYTES >= skip:
            return seed, index * WORD_BYTES - skip
    return None


def explain(seed: int, offset: int, data: bytes) -> str | None:
    """None if `data` is what file `seed` holds at `offset`; otherwise what is wrong and where the bytes come from."""
    expected = pattern(seed, offset, len(data))
    if expected == data:
        return None
    differ = np.nonzero(np.frombuffer(expected, np.uint8) != np.frombuffer(data, np.uint8))[0]
    first, last = int(differ[0]), int(differ[-1])
    found = data[first : first + 64]
    if not any(found):
        source = "zeros"
    elif (known := origin(found)) is not None:
        source = f"the bytes of file {known[0]} at {known[1]}"
    else:
        source = f"unknown bytes {found[:16].hex()}"
    return (
        f"file {seed}: {len(differ)} of {len(data)} bytes from {offset} are wrong, the first at {offset + first}, "
        f"the last at {offset + last}; there stand {source}"
    )


def check(seed: int, offset: int, data: bytes) -> None:
    """Fail the test with `explain`'s words unless `data` is what file `seed` holds at `offset`."""
    if (fault := explain(seed, offset, bytes(data))) is not None:
        raise AssertionError(fault)


def write_pattern(path: str | bytes | os.PathLike[str], seed: int, size: int) -> Path:
    """Make a file of `size` bytes of this seed. Returns its path."""
    step = 8 << 20
    with open(path, "wb") as file:
        file.writelines(pattern(seed, offset, min(step, size - offset)) for offset in range(0, size, step))
    return Path(os.fsdecode(path))
