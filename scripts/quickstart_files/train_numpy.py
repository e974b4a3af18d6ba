"""An ordinary training script, for where there is no PyTorch: as train.py, with a small network written in NumPy.

    python train_numpy.py DATA [--epochs 2] [--workers 2] [--batch 32]

It knows nothing of hfs either. The same seed gives the same order of samples, the same crops and, on one machine, the
same losses.
"""

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

PIXELS, CELL = 224, 14
"""Of a crop, and of what is averaged into one input."""
HIDDEN, RATE, MOMENTUM = 64, 0.01, 0.9
Sample = tuple[str, int, int]
"""Path, label, seed of its crop."""


def samples_of(root: str) -> list[tuple[str, int]]:
    """(path, label) of DATA/class/picture.jpg."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    return [
        (os.path.join(root, name, file), label)
        for label, name in enumerate(classes)
        for file in sorted(os.listdir(os.path.join(root, name)))
    ]


def load(batch: Sequence[Sample]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Of each: decoded, a random crop resized to 224 px, mirrored every other time; the means of its cells."""
    inputs = []
    for path, _, seed in batch:
        with open(path, "rb") as file, Image.open(file) as image:
            picture = image.convert("RGB")
        scale, left, top, mirror = np.random.default_rng(seed).random(4).tolist()
        width, height = picture.width * (0.6 + 0.4 * scale), picture.height * (0.6 + 0.4 * scale)
        left, top = left * (picture.width - width), top * (picture.height - height)
        box = (left, top, left + width, top + height)
        pixels = np.asarray(picture.resize((PIXELS, PIXELS), Image.Resampling.BILINEAR, box=box), np.float32)
        if mirror < 0.5:
            pixels = pixels[:, ::-1]
        cells = pixels.reshape(PIXELS // CELL, CELL, PIXELS // CELL, CELL, 3).mean((1, 3))
        inputs.append(cells.ravel() / 127.5 - 1)
    return np.stack(inputs), np.array([label for _, label, _ in batch])


class Network:
    """One hidden layer, trained by gradient descent with momentum."""

    def __init__(self, inputs: int, classes: int, random: np.random.Generator) -> None:
        sizes = ((inputs, HIDDEN), (HIDDEN, classes))
        self.weights = [random.normal(0, (2 / size[0]) ** 0.5, size).astype(np.float32) for size in sizes]
        self.steps = [np.zeros_like(weights) for weights in self.weights]

    def train(self, inputs: NDArray[np.float32], labels: NDArray[np.int64]) -> tuple[float, int]:
        """One step. Its loss, and how many were right."""
        first, second = self.weights
        hidden = np.maximum(inputs @ first, 0)
        scores = hidden @ second
        scores -= scores.max(1, keepdims=True)
        chances = np.exp(scores)
        chances /= chances.sum(1, keepdims=True)
        rows = np.arange(len(labels))
        loss = -np.log(chances[rows, labels] + 1e-9).mean()
        right = int((scores.argmax(1) == labels).sum())
        chances[rows, labels] -= 1
        chances /= len(labels)
        gradients = (inputs.T @ ((chances @ second.T) * (hidden > 0)), hidden.T @ chances)
        for weights, step, gradient in zip(self.weights, self.steps, gradients, strict=True):
            step *= MOMENTUM
            step -= RATE * gradient
            weights += step
        return float(loss), right


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    random = np.random.default_rng(1)

    data = samples_of(args.data)
    network = Network((PIXELS // CELL) ** 2 * 3, 1 + data[-1][1], random)

    def batches() -> Iterator[list[Sample]]:
        order = random.permutation(len(data)).tolist()
        seeds = random.integers(2**32, size=len(data)).tolist()
        shuffled = [(*data[index], seed) for index, seed in zip(order, seeds, strict=True)]
        return (shuffled[start : start + args.batch] for start in range(0, len(data), args.batch))

    with multiprocessing.Pool(max(1, args.workers)) as pool:
        for epoch in range(1, args.epochs + 1):
            begin, loss_sum, right = time.perf_counter(), 0.0, 0
            for inputs, labels in pool.imap(load, batches()) if args.workers else map(load, batches()):
                loss, right_here = network.train(inputs, labels)
                loss_sum += loss * len(labels)
                right += right_here
            seconds = time.perf_counter() - begin
            print(
                f"epoch {epoch}: {seconds:.2f} s, loss {loss_sum / len(data):.4f}, accuracy {right / len(data):.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
