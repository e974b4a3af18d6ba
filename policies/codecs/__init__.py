"""The kernels of the codecs: arrays in, arrays out.

Containers, files, threads and devices are the business of `hfs.codecs`; here is only arithmetic, in NumPy. Each kernel
can decode a part of its arrays into a part of the output (groups of counts, lines), so that a caller with threads cuts
the work; NumPy lets go of the interpreter's lock inside.
"""

from __future__ import annotations


class Unencodable(ValueError):
    """Arrays that a kernel cannot encode or decode without loss that nobody asked for. Says what and the remedy."""
