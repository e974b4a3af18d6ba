"""Reads mini-batches of whole files in random order through a PyTorch DataLoader; computing is emulated by sleeping.

    batches.py ROOT LIST WORKERS BATCH [--hint] [--drop] [--threads N]

LIST has the paths of the files below ROOT, one a line: nothing is listed here. Each request {"epoch": N, "seed": S,
"compute_s": T} is one epoch in an order of its own, from the making of the loader to the end of computing on the last
batch, T seconds a batch. Files are read whole and not decoded: the cores are for whoever fetches. The result has
"files", "bytes", "first_s" (until the first batch is there, which the start of the workers is part of) and "exposed_s"
(waiting for batches in all). With --hint the sampler is wrapped as the README tells people to; without,
nothing here knows of hfs. With --drop the pages of a file are dropped when it has been read: each is read once an
epoch, so none is in the page cache when the next begins, and nobody has to open it for that. With --threads each worker
fetches its batch with N threads.
"""

import argparse
import os
import sys
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from barrier import serve
from shuffle import Shuffled
from torch.utils.data import DataLoader, Dataset


class Files(Dataset[int]):
    """Sample i is file i; what a worker gives back is its size, so that no bytes go between processes."""

    def __init__(self, paths: list[str], drop: bool) -> None:
        self.paths, self.drop = paths, drop

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        with open(self.paths[index], "rb", buffering=0) as file:
            size = len(file.read())
            if self.drop:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return size


class Job:
    def __init__(self, args: argparse.Namespace) -> None:
        self.root, self.workers, self.batch, self.hint = args.root, args.workers, args.batch, args.hint
        names = args.list.read_text().splitlines()
        self.files = Files([f"{args.root}/{name}" for name in names], args.drop)
        self.dataset: Any = self.files
        if args.threads > 1:
            from hfs.loading import ThreadedFetch

            self.dataset = ThreadedFetch(self.files, args.threads)
        self.sampler: Any = None
        if args.hint:
            from hfs.hint import hinted  # not timed, as other imports; without a hint a job has nothing of hfs

            self.hinted = hinted

    def _sampler(self, seed: int) -> Iterable[int]:
        plain = Shuffled(len(self.files), seed)
        if not self.hint:
            return plain
        return self.hinted(plain, files=self.files.paths, mount=self.root, ahead=True)

    def epoch(self, epoch: int, seed: int, compute_s: float) -> dict[str, Any]:
        begin = time.monotonic()
        self.sampler = self.sampler or self._sampler(seed)
        self.sampler.set_epoch(epoch)
        loader = DataLoader(self.dataset, self.batch, sampler=self.sampler, num_workers=self.workers)
        files = size = 0
        first_s = exposed_s = 0.0
        asked = time.monotonic()
        for sizes in loader:
            came = time.monotonic()
            first_s = first_s or came - begin
            exposed_s += came - asked
            files += len(sizes)
            size += int(sizes.sum())
            time.sleep(compute_s)
            asked = time.monotonic()
        return {"files": files, "bytes": size, "first_s": first_s, "exposed_s": exposed_s}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("list", type=Path)
    parser.add_argument("workers", type=int)
    parser.add_argument("batch", type=int)
    parser.add_argument("--hint", action="store_true")
    parser.add_argument("--drop", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", "This DataLoader will create")  # of more workers than cores
    torch.set_num_threads(1)  # nothing is trained here; the cores belong to the workers and the daemon
    job = Job(args)

    serve(job.epoch)


if __name__ == "__main__":
    sys.exit(main())
