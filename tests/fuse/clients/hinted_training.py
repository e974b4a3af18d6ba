"""A training with a hint, as a user has it: a Dataset of files, a DataLoader over `hinted(sampler)`, `timed` around it.

Run by tests/fuse/test_hints.py as a program of its own: hinted_training.py SETTINGS, a JSON object. Prints one JSON
object: the digests of all samples in the order in which they came, epoch by epoch, and the epochs' times. Where a file
cannot be read, the sample is the name of its errno.
"""

import errno
import hashlib
import json
import logging
import os
import sys
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torch.utils.data.distributed import DistributedSampler

from hfs.exposed import timed
from hfs.hint import hinted


class Files(Dataset[str]):
    """Sample i is the digest of file i."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> str:
        try:
            with open(self.paths[index], "rb") as file:
                return hashlib.sha256(file.read()).hexdigest()
        except OSError as error:
            return errno.errorcode[error.errno or 0]


def main(settings: dict[str, Any]) -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    torch.manual_seed(1)
    dataset = Files([os.path.join(settings["root"], name) for name in settings["names"]])
    rank, world = settings.get("rank", 0), settings.get("world", 1)
    sampler: Any = RandomSampler(dataset)
    if settings.get("seeded"):
        sampler = DistributedSampler(dataset, world, rank, seed=5)
    if settings.get("hinted", True):
        sampler = hinted(sampler, files=dataset.paths, name=settings.get("name", "train"), mount=settings.get("mount"))
    loader = timed(DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=settings.get("workers", 0)))
    epochs = []
    for epoch in range(settings.get("epochs", 1)):
        if settings.get("seeded"):
            sampler.set_epoch(epoch)
        digests = []
        for batch in loader:
            digests += batch
            if settings.get("held") and not epochs and len(digests) == 4:
                # The one who has started us does something meanwhile.
                print("begun", flush=True)
                sys.stdin.readline()
        epochs.append(digests)
    times = [[each.epoch, each.exposed_s, each.compute_s, each.other_s, each.batches] for each in loader.epochs]
    print(json.dumps({"epochs": epochs, "times": times}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
