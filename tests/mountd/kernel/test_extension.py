"""Where CI has built the extension it is in force here: tests of it are not passed over because something has imported
pyfuse3 first, anywhere in the tests or in what they import."""

import os

import pytest

from hfs.mountd.kernel import fastpath


@pytest.mark.skipif("CI" not in os.environ, reason="whoever has no compiler goes without")
def test_it_is_loaded() -> None:
    assert fastpath.is_loaded(), fastpath.extension_missing()
