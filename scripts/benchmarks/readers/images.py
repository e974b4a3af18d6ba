"""Reads an image folder as an ordinary PyTorch training script does; knows nothing of hfs.

    images.py ROOT WORKERS decode|read

Each request {"epoch": N, "seed": S} is one epoch in a random order of its own: list the folder (first time only),
open, decode, a random crop resized to 224 px, mirror, normalise, collate. Epoch 0 only lists; `read` instead of
`decode` only opens and reads the files.
"""

import argparse
import os
import sys
from typing import Any

import numpy as np
import torch
from barrier import serve
from PIL import Image
from torch.utils.data import DataLoader, Dataset

PIXELS = 224
BATCH = 32
# The usual constants of ImageNet.
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)


class ImageFolder(Dataset[Any]):
    """ROOT/class/picture.jpg, listed with scandir as torchvision's ImageFolder does."""

    def __init__(self, root: str, decode: bool) -> None:
        self.decode = decode
        with os.scandir(root) as entries:
            self.classes = sorted(entry.name for entry in entries if entry.is_dir())
        self.samples: list[tuple[str, int]] = []
        for label, name in enumerate(self.classes):
            with os.scandir(os.path.join(root, name)) as entries:
                files = sorted(entry.path for entry in entries if entry.is_file() and entry.name.endswith(".jpg"))
            self.samples.extend((path, label) for path in files)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        path, label = self.samples[index]
        if not self.decode:
            with open(path, "rb") as file:
                return torch.zeros(1), label, len(file.read())
        with open(path, "rb") as file, Image.open(file) as image:
            picture = image.convert("RGB")
            size = file.tell()
        scale, left, top, mirror = torch.rand(4).tolist()
        width, height = picture.width * (0.6 + 0.4 * scale), picture.height * (0.6 + 0.4 * scale)
        left, top = left * (picture.width - width), top * (picture.height - height)
        box = (left, top, left + width, top + height)
        picture = picture.resize((PIXELS, PIXELS), Image.Resampling.BILINEAR, box=box)
        pixels = (np.asarray(picture, dtype=np.float32) / 255 - MEAN) / DEVIATION
        if mirror < 0.5:
            pixels = pixels[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))), label, size


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("workers", type=int)
    parser.add_argument("what", choices=["decode", "read"])
    args = parser.parse_args()
    torch.set_num_threads(1)  # nothing is trained here; the cores belong to the workers
    folders: list[ImageFolder] = []

    def epoch(epoch: int, seed: int) -> dict[str, Any]:
        if not folders:
            folders.append(ImageFolder(args.root, args.what == "decode"))
        if epoch == 0:
            return {}
        order = torch.Generator().manual_seed(1000 * seed + epoch)
        loader = DataLoader(folders[0], BATCH, shuffle=True, generator=order, num_workers=args.workers)
        files = size = 0
        for _, labels, sizes in loader:
            files += len(labels)
            size += int(sizes.sum())
        return {"files": files, "bytes": size}

    serve(epoch)


if __name__ == "__main__":
    sys.exit(main())
