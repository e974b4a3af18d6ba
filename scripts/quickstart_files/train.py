"""An ordinary training script: a small CNN on an image folder (one sub-folder a class). It knows nothing of hfs.

    python train.py DATA [--epochs 2] [--workers 2] [--batch 32]

Prints one line per epoch: its time, the mean loss and the accuracy while training. The same seed gives the same order
of samples, the same crops and, on one machine, the same losses.
"""

import argparse
import os
import time

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

PIXELS = 224


class ImageFolder(Dataset[tuple[torch.Tensor, int]]):
    """DATA/class/picture.jpg: decoded, a random crop resized to 224 px, mirrored every other time."""

    def __init__(self, root: str) -> None:
        self.classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        self.samples = [
            (os.path.join(root, name, file), label)
            for label, name in enumerate(self.classes)
            for file in sorted(os.listdir(os.path.join(root, name)))
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[index]
        with open(path, "rb") as file, Image.open(file) as image:
            picture = image.convert("RGB")
        scale, left, top, mirror = torch.rand(4).tolist()
        width, height = picture.width * (0.6 + 0.4 * scale), picture.height * (0.6 + 0.4 * scale)
        left, top = left * (picture.width - width), top * (picture.height - height)
        picture = picture.resize(
            (PIXELS, PIXELS), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height)
        )
        pixels = np.asarray(picture, dtype=np.float32) / 127.5 - 1
        if mirror < 0.5:
            pixels = pixels[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))), label


def small_cnn(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 7, stride=4, padding=3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    torch.manual_seed(1)

    data = ImageFolder(args.data)
    loader = DataLoader(data, args.batch, shuffle=True, num_workers=args.workers, persistent_workers=args.workers > 0)
    model = small_cnn(len(data.classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(1, args.epochs + 1):
        begin, loss_sum, right = time.perf_counter(), 0.0, 0
        for pictures, labels in loader:
            scores = model(pictures)
            loss = nn.functional.cross_entropy(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.item() * len(labels)
            right += int((scores.argmax(1) == labels).sum())
        seconds = time.perf_counter() - begin
        print(
            f"epoch {epoch}: {seconds:.2f} s, loss {loss_sum / len(data):.4f}, accuracy {right / len(data):.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
