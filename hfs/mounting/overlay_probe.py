"""Whether this user can have overlays here: a small one is made, in namespaces of a child's own and in memory, and a
file is read by way of it. What kernels and containers allow is not to be told from their names."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os

from hfs.mountd.supervisor import overlay
from hfs.mountd.supervisor.errand import Errand
from hfs.mountd.supervisor.overlay import Layers
from hfs.mounting.view import own_namespaces

_TRY_S = 10.0
_PLACE = "/tmp"
_DATA = b"what is staged"


def why_none() -> str:
    """Empty: it can."""
    try:
        errand = Errand(lambda _: _try(), [])
    except OSError as error:
        return error.strerror or str(error)
    code = errand.wait(_TRY_S)
    errand.close()
    if code == 0:
        return ""
    why = "no answer" if code is None else os.strerror(code)
    return f"this kernel or container has none with a layer of data alone for user {os.geteuid()} ({why})"


def _try() -> None:
    """In a child. Raises OSError."""
    own_namespaces()
    if ctypes.CDLL(None, use_errno=True).mount(b"none", _PLACE.encode(), b"tmpfs", ctypes.c_ulong(0), None):
        raise OSError(ctypes.get_errno(), "")
    names, objects, top = (f"{_PLACE}/{name}" for name in ("names", "objects", "top"))
    for made in (names, objects, top):
        os.mkdir(made)
    with open(f"{objects}/1", "wb") as file:
        file.write(_DATA)
    with open(f"{names}/file", "wb") as file:
        file.truncate(len(_DATA))
    kind, is_told = overlay.attributes(), False
    with contextlib.suppress(OSError):  # a tmpfs that keeps no attributes
        os.setxattr(f"{names}/file", f"{kind}.overlay.metacopy", b"")
        os.setxattr(f"{names}/file", f"{kind}.overlay.redirect", b"/1")
        is_told = True
    overlay.put(Layers(objects, "hfs#probe", top, ""), names)
    with open(f"{names}/file", "rb") as file:
        if is_told and file.read() != _DATA:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
