"""Extended attributes that the data plane answers, asked as the kernel asks."""

import errno
from collections.abc import Iterator

import pytest

from hfs.mountd.kernel import XattrAnswers
from tests.support.plane_kernel import Kernel, serving

ACL = b"system.posix_acl_access"


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    with serving() as (_, kernel):
        yield kernel
        XattrAnswers().root_without_acl(0)


def test_the_root_has_no_acl_where_that_was_said(kernel: Kernel) -> None:
    answers = XattrAnswers()
    assert kernel.xattr(1, ACL) is None
    answers.root_without_acl(100)
    assert kernel.xattr(1, ACL) == errno.ENODATA
    assert kernel.xattr(2, ACL) is None, "of another node nothing was said"
    assert kernel.xattr(1, b"system.posix_acl_default") is None
    assert kernel.xattr(1, b"user.x") is None
    answers.root_without_acl(0)
    assert kernel.xattr(1, ACL) is None


def test_a_name_without_an_end_is_left_to_python(kernel: Kernel) -> None:
    XattrAnswers().root_without_acl(100)
    assert kernel.ask(22, 1, b"\x64" + b"\0" * 7 + ACL) is None
