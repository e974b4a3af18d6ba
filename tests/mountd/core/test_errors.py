"""Groups of errors: what tasks side by side have raised reaches who waits for them as one error, and as its errno."""

from __future__ import annotations

import errno

import pytest
import trio

from hfs.mountd.core.errors import Interrupted, SourceError, StagingError, VersionChanged, errno_of, sole, ungrouped
from hfs.policies.geometry import Extent
from tests.support.fake_source import FakeSource
from tests.support.read_parts import CHUNK, daemon

DENIED, STALE, DEFECT = SourceError(errno.EACCES, "read"), VersionChanged("f"), KeyError("x")


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (DENIED, errno.EACCES),
        (ExceptionGroup("", [DENIED]), errno.EACCES),
        (ExceptionGroup("", [ExceptionGroup("", [STALE]), DENIED]), errno.ESTALE),
        (ExceptionGroup("", [ExceptionGroup("", [StagingError("full")])]), errno.EIO),
        (BaseExceptionGroup("", [Interrupted("killed")]), errno.EINTR),
        (DEFECT, None),
        (ExceptionGroup("", [DENIED, DEFECT]), None),
    ],
)
def test_a_group_has_the_errno_of_what_it_wraps(error: BaseException, number: int | None) -> None:
    assert errno_of(error) == number


def test_what_a_group_means() -> None:
    """A defect must not hide behind an error that was foreseen, and nothing may hide that the program is to end."""
    end, other = KeyboardInterrupt(), ValueError("y")
    assert sole(DENIED) is DENIED
    assert sole(ExceptionGroup("", [DENIED, ExceptionGroup("", [STALE])])) is DENIED
    assert sole(ExceptionGroup("", [DENIED, DEFECT])) is DEFECT
    assert sole(BaseExceptionGroup("", [DENIED, end])) is end
    for group in ExceptionGroup("", [DEFECT, other]), BaseExceptionGroup("", [end, DEFECT]):
        assert sole(group) is group


async def test_who_is_given_up_while_a_task_fails_hears_only_that() -> None:
    """Else the group would hold the error alone once the scope has taken what is its own, and no handler knows it."""
    with trio.CancelScope() as scope:

        async def fail() -> None:
            scope.cancel()
            raise DENIED

        with ungrouped():
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(trio.sleep_forever)
                nursery.start_soon(fail)
    assert scope.cancelled_caught


async def test_the_error_of_a_read_across_chunks_is_the_sources() -> None:
    """On every interpreter, and whichever of the pieces have failed."""
    source = FakeSource()
    source.file(b"f", 11, 3 * CHUNK)
    async with daemon(source) as parts:
        number = await parts.open(b"f")
        source.error = errno.EACCES
        for extent in Extent(CHUNK - 1, CHUNK + 1), Extent(0, 3 * CHUNK):
            with pytest.raises(SourceError) as caught:
                await parts.read(number, extent.start, extent.size)
            assert errno_of(caught.value) == errno.EACCES
