"""The error of all codecs: what cannot be encoded, or is not what an encoder has made."""

from __future__ import annotations


class Unencodable(ValueError):
    """Arrays that a kernel cannot encode or decode without loss that nobody asked for. Says what and the remedy."""
