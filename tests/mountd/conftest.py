"""Async tests of the daemon's parts run under trio in virtual time: waiting costs nothing and takes exactly as said.

A virtual clock jumps while a thread works, so a test whose code uses real threads asks for the `real_clock` fixture.
"""

from __future__ import annotations

import functools
import inspect

import pytest
import trio
import trio.testing


@pytest.fixture
def real_clock() -> None:
    """This test uses threads: no virtual time."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in wanted}
    clock = None if "real_clock" in pyfuncitem.funcargs else trio.testing.MockClock(autojump_threshold=0)
    trio.run(functools.partial(pyfuncitem.obj, **arguments), clock=clock, strict_exception_groups=True)
    return True
