"""Running a command as a shell would run it, with this process in front: signals, terminal, exit code.

The command stays in our process group and on our terminal, so Ctrl-C, Ctrl-Z and Ctrl-\\ reach it from the terminal
itself, once; a signal that somebody sends to us alone is forwarded. Its uid, environment and descriptors are ours.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable, Sequence

from hfs.mounting.view import View

FORWARDED = frozenset(
    {
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGXCPU,
    }
)
"""What schedulers, people and training frameworks send: to end, and to save a checkpoint first. SIGTSTP and SIGCONT are
left alone: job control works on the whole group."""

_LOOKS = frozenset({signal.SIGCHLD, signal.SIGIO, signal.SIGALRM})
"""At which it is looked what there is to do."""
NEWS = FORWARDED | _LOOKS
"""What is to be blocked for `run_command`."""
_MEANWHILE_S = 0.5
"""So long a reader waits at most before somebody notices that its mount's keeper was killed."""
_SI_KERNEL = 0x80
"""si_code of a signal that the terminal made for the whole foreground group (asm-generic/siginfo.h)."""


def run_command(
    command: Sequence[str],
    cwd: str | None = None,
    view: View | None = None,
    starting: Callable[[], object] = lambda: None,
    started: Callable[[], object] = lambda: None,
    meanwhile: Callable[[], None] = lambda: None,
) -> int:
    """Run to the end; its exit code, or minus the signal that ended it. Raises OSError when it cannot be executed,
    MountError when it cannot have that view.

    `cwd`: entered once the view is there. `starting` is called in its process, before it is executed; `started` when
    it was; `meanwhile` is called twice a second, and when another child has ended or SIGIO has come.

    Call it with NEWS blocked (they stay so): none is lost between the mount and the command.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())

    def prepare() -> None:
        if view is not None:
            view.enter()
        if cwd is not None:
            os.chdir(cwd)
        starting()
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked - NEWS)

    # A parent may have left SIGCHLD ignored; then nobody would tell us that the command has ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # close_fds: a launcher or a job script may have left descriptors open for the command; ours close by themselves.
    try:
        process = subprocess.Popen(
            list(command),
            close_fds=False,
            preexec_fn=prepare,  # noqa: PLW1509 - hfs run has one thread
        )
    except subprocess.SubprocessError:  # of preexec_fn
        if view is not None and (fault := view.fault()) is not None:
            raise fault from None
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), cwd) from None
    except OSError:
        if view is not None:
            view.fault()
        raise
    if view is not None:
        view.fault()
    started()
    # Not by sigtimedwait: of whoever was stopped for longer (Ctrl-Z) Python says that a signal came which never did.
    signal.setitimer(signal.ITIMER_REAL, _MEANWHILE_S, _MEANWHILE_S)
    try:
        while True:
            news = signal.sigwaitinfo(NEWS)
            if news.si_signo in _LOOKS:
                if process.poll() is not None:
                    return process.returncode
                meanwhile()
            elif news.si_code != _SI_KERNEL or os.getpgid(process.pid) != os.getpgrp():
                process.send_signal(news.si_signo)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
