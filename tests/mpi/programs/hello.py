"""Says who is there and what MPI there is; with `wait`, waits for its end to come from outside."""

import sys
import time

from mpi4py import MPI

world = MPI.COMM_WORLD
window = MPI.Win.Allocate_shared(64 if world.rank == 0 else 0, 1, comm=world)
memory, _ = window.Shared_query(0)
if world.rank == 0:
    memory[:5] = b"hello"
world.Barrier()
print(world.rank, world.size, bytes(memory[:5]).decode(), MPI.Get_library_version(), flush=True)
if sys.argv[1:] == ["wait"]:
    time.sleep(3600)
if sys.argv[1:] == ["lose", "2"]:
    if world.rank == 2:
        time.sleep(3600)
    # Only with --with-ft ulfm does anybody come here.
    world.Set_errhandler(MPI.ERRORS_RETURN)
    try:
        world.recv(source=2)
    except MPI.Exception as error:
        print(error.Get_error_class() == MPI.ERR_PROC_FAILED, flush=True)
    # MPI's end would wait for all.
    sys.stdout.flush()
    import os

    os._exit(0)
window.Free()
