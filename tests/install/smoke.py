"""What an installation can do, found out from inside of it. Prints JSON; any fault is an exception.

    python -I smoke.py job FOLDER       what a training job imports: hints, samplers, layouts, codecs; no daemon
    python -I smoke.py daemon FOLDER    a real mount: read, hinted, staged, passed through where that is possible
    python -I smoke.py formats FOLDER   what the extras are for

Run by the interpreter of an environment (tests/install/environments.py), so it imports nothing of the tests.
"""

import gc
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

FILES = 24
FILE_BYTES = 20_000
LARGE_BYTES = 6_000_000
HEAVY = ("outcome", "prometheus_client", "pyfuse3", "torch", "trio")
"""Modules that a training job must not be given by an import of ours."""


def content(seed: int, size: int) -> bytes:
    """Bytes that no other seed gives."""
    word = (seed * 2654435761 % (1 << 32)).to_bytes(4, "little")
    return (word * (size // 4 + 1))[:size]


def job(folder: Path) -> dict[str, Any]:
    """Everything in a training job, without a daemon."""
    modules = ["hint", "samplers", "exposed", "loading", "codecs", "shared", "layouts.layout", "layouts.files"]
    for name in modules:
        importlib.import_module(f"hfs.{name}")
    brought = [name for name in HEAVY if name in sys.modules]

    import numpy as np

    from hfs.codecs import decode, encode
    from hfs.hint import hinted
    from hfs.layouts.npy import build_npy
    from hfs.samplers import GroupShuffleSampler

    files = [str(folder / f"{number}") for number in range(FILES)]
    order = list(GroupShuffleSampler(FILES, 4))
    assert list(hinted(GroupShuffleSampler(FILES, 4), files=files, mount=str(folder))) == order
    array = np.arange(600, dtype=np.float32).reshape(10, 60)
    np.save(folder / "array.npy", array)
    layout = build_npy(str(folder / "array.npy"), str(folder))
    assert layout.samples == len(array), layout.samples
    assert np.array_equal(np.asarray(decode(encode(array))), array)
    return {"brought": brought}


def hfs(*arguments: str | Path) -> str:
    """What `hfs` says on stdout."""
    command = [str(Path(sys.executable).parent / "hfs"), *map(str, arguments)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, f"{command} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def daemon(folder: Path) -> dict[str, Any]:
    """A mount from its beginning to its end."""
    source, mount, cache = folder / "source", folder / "mount", folder / "cache"
    source.mkdir()
    mount.mkdir()
    contents = {f"{number}": content(number, FILE_BYTES) for number in range(FILES)}
    contents["large"] = content(1000, LARGE_BYTES)
    for name, data in contents.items():
        (source / name).write_bytes(data)
    hfs("mount", source, mount, "--cache", cache)
    try:
        found = _use(mount, contents)
        refused = None
        try:
            (mount / "new").write_bytes(b"")
        except OSError as error:
            refused = error.errno
        found["refused"] = refused
    finally:
        hfs("umount", mount)
    return found


def _use(mount: Path, contents: dict[str, bytes]) -> dict[str, Any]:
    from hfs.hint import hinted

    names = list(contents)
    wrong = 0
    sampler = hinted(list(reversed(range(len(names)))), files=[str(mount / name) for name in names], mount=str(mount))
    for index in sampler:
        wrong += (mount / names[index]).read_bytes() != contents[names[index]]
    del sampler
    gc.collect()
    hfs("cache", "warm", mount)
    wrong += sum((mount / name).read_bytes() != data for name, data in contents.items())
    status = json.loads(hfs("status", "--json", mount))
    hints = status["hints"]
    with open(f"/proc/{status['pid']}/maps") as lines:
        mapped = {line.rstrip("\n").partition("/")[2] for line in lines}
    return {
        "wrong": wrong,
        "names": len(os.listdir(mount)),
        "learners": len([*hints["learners"], *hints["past"]]),
        "io_mode": status["io_mode"],
        "passed": status["opens"]["passed"],
        "libfuse": sorted(f"/{path}" for path in mapped if os.path.basename(path).startswith("libfuse3")),
        "pyfuse3": sorted(f"/{path}" for path in mapped if "/pyfuse3/" in path),
    }


def formats(folder: Path) -> dict[str, Any]:
    """A layout of each format that needs a library, and samples that are staged encoded."""
    import h5py
    import lmdb
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

    from hfs.layouts.hdf5 import build_hdf5
    from hfs.layouts.lmdb import build_lmdb
    from hfs.layouts.parquet import build_parquet
    from hfs.layouts.tfrecord import build_tfrecord
    from hfs.mountd.cache.objects import codec

    rows = np.arange(800, dtype=np.int64).reshape(8, 100)
    with h5py.File(folder / "rows.h5", "w") as file:
        file["rows"] = rows
    table = pa.table({"row": [row.tobytes() for row in rows]})
    parquet.write_table(table, folder / "rows.parquet", row_group_size=2)
    with lmdb.open(str(folder / "rows.mdb"), subdir=False) as base, base.begin(write=True) as change:
        for number, row in enumerate(rows):
            change.put(b"%03d" % number, row.tobytes())
    with open(folder / "rows.tfrecord", "wb") as out:
        for row in rows:
            out.write(_record(row.tobytes()))
    samples = {
        "hdf5": build_hdf5(str(folder / "rows.h5"), ["rows"], str(folder)).samples,
        "parquet": build_parquet(str(folder / "rows.parquet"), str(folder)).samples,
        "lmdb": build_lmdb(str(folder / "rows.mdb"), str(folder)).samples,
        "tfrecord": build_tfrecord(str(folder / "rows.tfrecord"), str(folder)).samples,
    }
    data = np.arange(200_000, dtype=np.int16).tobytes()
    shrunk = codec.Shrinker().shrink(memoryview(data), 2)
    assert shrunk is not None
    stored = bytearray(shrunk.data[: shrunk.stored_bytes])
    assert codec.expand(stored, len(data)) == data
    plan = ["--dataset", "150GB", "--samples", "1000000", "--storage-rate", "5GB/s", "--train-rate", "1400 samples/s"]
    hfs("plan", *plan, "--plot", folder / "plan.png")
    return {"samples": samples, "encoded": len(stored) < len(data), "plot": (folder / "plan.png").exists()}


def _record(data: bytes) -> bytes:
    """One record of a TFRecord file: length, its masked CRC-32C, data, the same of the data."""
    import google_crc32c

    def masked(part: bytes) -> bytes:
        checksum = google_crc32c.value(part)
        return (((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")

    length = len(data).to_bytes(8, "little")
    return length + masked(length) + data + masked(data)


if __name__ == "__main__":
    print(json.dumps({"job": job, "daemon": daemon, "formats": formats}[sys.argv[1]](Path(sys.argv[2]))))
