"""Several readers of one job, where that job sees its data: starts them, hands requests on, and answers for all.

    several.py COUNT SCRIPT [ARGUMENT...]

Each is a program as in barrier.py with these arguments, in which {} stands for its number. Requests:

    {"each": [REQUEST, ...]}     one for each of the first readers, at once; the result has their "answers"
    {"command": [WORD, ...]}     run here; "code", "out" and "err"
    {"overlays": FOLDER}         the numbers of the overlays that are mounted there
    {"resident": [FILE, ...]}    opened one after the other: "bytes" of them that lie in the page cache
"""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from barrier import serve

_CACHESTAT = 451  # the same on every architecture
_libc = ctypes.CDLL(None, use_errno=True)


class Several:
    def __init__(self, count: int, script: str, arguments: list[str]) -> None:
        program = str(Path(__file__).parent / script)
        self.readers = [
            subprocess.Popen(
                [sys.executable, program, *(each.replace("{}", str(number)) for each in arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(count)
        ]
        for number in range(count):
            self.answer(number)

    def answer(self, number: int) -> dict[str, Any]:
        stdout = self.readers[number].stdout
        assert stdout
        line = stdout.readline()
        if not line:
            raise SystemExit(f"reader {number} ended with exit code {self.readers[number].wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def work(self, **request: Any) -> dict[str, Any]:
        if "each" in request:
            return {"answers": self.ask(request["each"])}
        if "command" in request:
            done = subprocess.run(
                request["command"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
            )
            return {"code": done.returncode, "out": done.stdout, "err": done.stderr}
        if "overlays" in request:
            return {"overlays": overlays(request["overlays"])}
        return {"bytes": sum(resident_bytes(path) for path in request["resident"])}

    def ask(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for reader, request in zip(self.readers, requests, strict=False):
            assert reader.stdin
            reader.stdin.write(json.dumps(request) + "\n")
            reader.stdin.flush()
        return [self.answer(number) for number in range(len(requests))]

    def close(self) -> None:
        for reader in self.readers:
            assert reader.stdin
            reader.stdin.close()
        for reader in self.readers:
            reader.wait()


def overlays(folder: str) -> list[int]:
    with open("/proc/self/mountinfo", errors="surrogateescape") as table:
        mounts = [line.split(" ", 5) for line in table]
    return [int(mount[0]) for mount in mounts if mount[4] == folder and " - overlay " in mount[5]]


def resident_bytes(path: str) -> int:
    """Of the file in the page cache, in whole pages. Raises OSError, on a kernel without cachestat(2) too."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        everything, found = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
        if _libc.syscall(ctypes.c_long(_CACHESTAT), descriptor, everything, found, 0) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
        return found[0] * os.sysconf("SC_PAGE_SIZE")
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    several = Several(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
    serve(several.work)
    several.close()
