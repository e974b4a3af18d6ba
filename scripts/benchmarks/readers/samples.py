"""Reads samples of an HDF5 file in random order as a loader process of a training job does; knows nothing of hfs.

    samples.py FILE INDEX PROCESSES

Each request {"seed": S, "count": N or null} reads this process's share (every PROCESSES-th) of the first N samples of
a random order of all; null: of all. Opens the file within the time. A sample whose first number is not its index ends
the process.
"""

import argparse
import sys
from typing import Any

import h5py
import numpy as np
from barrier import serve


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("index", type=int)
    parser.add_argument("processes", type=int)
    args = parser.parse_args()

    def read(seed: int, count: int | None) -> dict[str, Any]:
        size = 0
        with h5py.File(args.file, "r") as file:
            samples = file["samples"]
            order = np.random.default_rng(seed).permutation(len(samples))[:count][args.index :: args.processes]
            for number in order.tolist():
                sample = samples[number]
                size += sample.nbytes
                if sample[0, 0] != number:
                    raise SystemExit(f"sample {number} of {args.file} holds sample {sample[0, 0]}")
        return {"samples": len(order), "bytes": size}

    serve(read)


if __name__ == "__main__":
    sys.exit(main())
