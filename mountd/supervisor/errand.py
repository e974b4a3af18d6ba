"""What may wait for a mount, or needs another namespace, is done by a child process: forked, heard, and left behind
where it does not end.

Of what we have open it keeps what it is told to: else a child that hangs would hold the mount's connection, and whoever
waits for our end would wait for that child's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import struct
from collections.abc import Callable, Sequence

_WORD = struct.Struct("=ci")
_TOLD, _ENDED = b"t", b"e"


class Errand:
    """One child. `wait` until it has ended, then `close`."""

    def __init__(self, work: Callable[[Errand], None], kept: Sequence[int]) -> None:
        """`work` is done there, and may raise OSError; `kept`: descriptors that it needs. Raises OSError."""
        self.told: list[int] = []
        """What it has told."""
        self._code: int | None = None
        self._output, output = os.pipe2(os.O_CLOEXEC)
        try:
            os.set_blocking(self._output, False)
            self._pid = os.fork()
        except BaseException:
            os.close(self._output)
            os.close(output)
            raise
        if not self._pid:
            self._output = output
            self._work(work, [*kept, output])
        os.close(output)
        self._pidfd = -1
        try:
            self._pidfd = os.pidfd_open(self._pid)
        except OSError:  # it ends by itself
            self.close()
            raise

    def wait(self, limit_s: float) -> int | None:
        """Until it has ended: 0, or the errno of what it has met; None: it has not."""
        if self._code is None:
            waiter = select.poll()
            waiter.register(self._pidfd, select.POLLIN)
            if not waiter.poll(limit_s * 1000):
                return None
            with contextlib.suppress(ChildProcessError):  # who waits for all children was faster
                os.waitpid(self._pid, 0)
            self._code = self._heard()
        return self._code

    def tell(self, value: int) -> None:
        """In the child: what is to be known whatever becomes of it."""
        os.write(self._output, _WORD.pack(_TOLD, value))

    def close(self) -> None:
        """Let go of it; it is killed if it has not ended. A mount may hold it up for ever all the same."""
        if self._code is None:
            if self._pidfd >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, os.WNOHANG)
        for descriptor in (self._output, self._pidfd):
            if descriptor >= 0:
                os.close(descriptor)
        self._output = self._pidfd = -1

    def _heard(self) -> int:
        data, code = b"", errno.EIO  # killed
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._output, select.PIPE_BUF)
        for word, value in _WORD.iter_unpack(data):
            if word == _TOLD:
                self.told.append(value)
            else:
                code = value
        return code

    def _work(self, work: Callable[[Errand], None], kept: Sequence[int]) -> None:
        """In the child, which ends here whatever happens."""
        code = errno.EIO
        try:
            _let_go_of_all_but(kept)
            work(self)
            code = 0
        except OSError as error:
            code = error.errno or errno.EIO
        finally:
            try:
                os.write(self._output, _WORD.pack(_ENDED, code))
            finally:
                os._exit(0)


def _let_go_of_all_but(kept: Sequence[int]) -> None:
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor < 3:
            os.dup2(nothing, descriptor)
        elif descriptor not in kept and descriptor != nothing:
            with contextlib.suppress(OSError):  # of the listing itself
                os.close(descriptor)
