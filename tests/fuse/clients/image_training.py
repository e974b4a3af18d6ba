"""An ordinary PyTorch input pipeline, as a user has it: a Dataset over an image tree, a shuffling DataLoader.

Run by tests/fuse/test_clients.py as a program of its own: image_training.py ROOT WORKERS EPOCHS. It knows nothing of
hfs. Prints one line per sample and epoch: its name and a hash of the decoded picture.
"""

import hashlib
import os
import sys

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset


class ImageTree(Dataset[tuple[str, torch.Tensor]]):
    def __init__(self, root: str) -> None:
        self.root = root
        self.names = sorted(
            os.path.relpath(os.path.join(folder, name), root) for folder, _, names in os.walk(root) for name in names
        )

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[str, torch.Tensor]:
        name = self.names[index]
        with Image.open(os.path.join(self.root, name)) as image:
            return name, torch.from_numpy(np.asarray(image.convert("RGB")).copy())


def main() -> None:
    root, workers, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.manual_seed(1)
    loader = DataLoader(ImageTree(root), batch_size=8, shuffle=True, num_workers=workers, drop_last=False)
    for _ in range(epochs):
        for names, pictures in loader:
            for name, picture in zip(names, pictures, strict=True):
                print(name, hashlib.sha256(picture.numpy().tobytes()).hexdigest())


if __name__ == "__main__":
    main()
