"""A stand-in for `apptainer run --fusemount "host:PROGRAM PLACE" IMAGE COMMAND`, in a user namespace as without setuid.

fusemount.py PLACE 'COMMAND' PROGRAM...: in a user and mount namespace of its own /dev/fuse is opened and mounted at
PLACE with the options that Apptainer 1.4 gives (internal/pkg/runtime/engine/apptainer/container_linux.go: no `ro`, no
`default_permissions`, the type `fuse`); outside of it PROGRAM is started with /dev/fd/3 as its last argument; COMMAND
(of sh) is the container. When that has ended, the mount goes with the namespace. Not simulated: images, root file
systems, pid namespaces.
"""

import ctypes
import os
import socket
import sys

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_NOSUID, MS_NODEV = 2, 4

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def main() -> None:
    place, command, *program = sys.argv[1:]
    uid, gid = os.getuid(), os.getgid()
    ours, theirs = socket.socketpair()
    container = os.fork()
    if container == 0:
        ours.close()
        checked(libc.unshare(CLONE_NEWNS | CLONE_NEWUSER))
        write("/proc/self/setgroups", "deny")
        write("/proc/self/uid_map", f"{uid} {uid} 1")
        write("/proc/self/gid_map", f"{gid} {gid} 1")
        fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={fd},rootmode=40000,user_id={uid},group_id={gid}".encode()
        checked(libc.mount(b"fuse", place.encode(), b"fuse", ctypes.c_ulong(MS_NOSUID | MS_NODEV), options))
        socket.send_fds(theirs, [b"c"], [fd])
        os.close(fd)
        theirs.close()
        os.execvp("sh", ["sh", "-c", command])
    theirs.close()
    _, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
    ours.close()
    served = os.fork()
    if served == 0:
        os.dup2(fd, 3) if fd != 3 else os.set_inheritable(3, True)
        os.execvp(program[0], [*program, "/dev/fd/3"])
    os.close(fd)
    _, code = os.waitpid(container, 0)
    _, code_of_program = os.waitpid(served, 0)
    print(f"container {os.waitstatus_to_exitcode(code)}, program {os.waitstatus_to_exitcode(code_of_program)}")


if __name__ == "__main__":
    main()
