"""Reads volumes as a loader process of a training job does, to float16 tensors of log(1 + count).

    encoded.py FOLDER

Each request {"kind": K, "names": [...], "shape": [...], "hint": true | false} reads these files of FOLDER, a mount, one
after the other, and tells the daemon so first if asked to; K says what they are: bytes (only read), raw (.npy), gzip,
encoded (.hfsc).
"""

import argparse
import gzip
import os
import sys
from typing import Any

import numpy as np
import torch
from barrier import serve

from hfs.codecs import EncodedDataset, WantedOutput
from hfs.hint import hinted


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    args = parser.parse_args()
    torch.set_num_threads(1)

    def tensor(counts: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.log1p(counts).astype(np.float16))

    def read(kind: str, names: list[str], shape: list[int] | None = None, hint: bool = False) -> dict[str, Any]:
        total = 0.0
        paths = [os.path.join(args.folder, name) for name in names]
        encoded = EncodedDataset(paths, WantedOutput(op="log1p"), device="cpu")
        for number in hinted(range(len(paths)), paths, mount=args.folder) if hint else range(len(paths)):
            path = paths[number]
            if kind == "encoded":
                found = encoded[number]
            else:
                with open(path, "rb", buffering=0) as file:
                    if kind == "raw":
                        found = tensor(np.load(file))
                    else:
                        data = file.readall()
                        if kind == "bytes":
                            continue
                        found = tensor(np.frombuffer(gzip.decompress(data), np.int16).reshape(shape))
            # That it is there, and the same whatever way it came.
            total += float(found.view(-1)[::4097].to(torch.float32).sum())
        return {"total": total}

    serve(read)


if __name__ == "__main__":
    sys.exit(main())
