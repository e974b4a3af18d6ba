"""Starts the processes of a test's MPI job: `start.py job COMMAND...` before mpirun, `start.py rank FOLDER COMMAND...`
before the program of each rank. Both end in exec, so the process ids stay.

A job gets a network of its own that has nothing but loopback, where that is allowed (root): mpirun's own listener for
other nodes cannot be bound to loopback by any of its options. A rank writes its process id, and what it prints, to
files of its own in FOLDER, so that it does not matter how an MPI forwards output, or that it died.

Imports nothing of the project: it is run before everything, by path.
"""

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import sys

CLONE_NEWNET = 0x40000000  # sched.h
SIOCSIFFLAGS = 0x8914  # netdevice(7)
IFF_UP_RUNNING = 0x41

RANK_KEYS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
"""Where OpenMPI, MPICH and others say which rank a process is."""
RANK_KEY = "MPI_TEST_RANK"
"""Where programs of tests that do not load MPI themselves find it."""


def leave_the_network() -> None:
    """Go into a network namespace of its own with loopback up. OSError where that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP_RUNNING))


def main(role: str, *arguments: str) -> None:
    if role == "job":
        with contextlib.suppress(OSError):
            leave_the_network()
        os.execvp(arguments[0], arguments)
    folder, *command = arguments
    rank = next(os.environ[key] for key in RANK_KEYS if key in os.environ)
    for number, suffix in ((1, "out"), (2, "err")):
        file = os.open(f"{folder}/{rank}.{suffix}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(file, number)
        os.close(file)
    # Renamed into place: who sees it sees all of it.
    with open(f"{folder}/{rank}.pid.part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{folder}/{rank}.pid.part", f"{folder}/{rank}.pid")
    os.environ[RANK_KEY] = rank
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
