"""An overlay that was taken away for an unmount comes again only where the mount has stayed."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from hfs.mountd.supervisor.kept_overlay import KeptOverlay
from hfs.mountd.supervisor.log import Log
from hfs.mountd.supervisor.loop import Loop
from hfs.mountd.supervisor.mounts import KeptMount

TOLD = {"objects": "/c/objects"}


@pytest.mark.parametrize(
    ("is_gone", "is_mounted", "made"), [(False, True, [TOLD]), (False, False, []), (True, True, []), (True, False, [])]
)
def test_a_mount_that_has_gone_is_not_covered_again(
    is_gone: bool, is_mounted: bool, made: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its daemon may write for a while yet, and its number may be another's."""
    begun: list[object] = []
    monkeypatch.setattr(KeptOverlay, "begin", lambda _, told: begun.append(told))
    mount: Any = SimpleNamespace(connection=SimpleNamespace(is_gone=is_gone, is_mounted=is_mounted))
    overlay = KeptOverlay(cast("KeptMount", mount), Loop(), Log(None, None, "text"), noexec=False)
    overlay.told = TOLD
    overlay.again()
    assert begun == made
