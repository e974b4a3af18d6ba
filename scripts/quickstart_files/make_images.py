"""Makes real JPEG files of the size of ImageNet's: DATA/class-N/NNNNN.jpg, about 110 KB each.

Pictures are smooth random textures with a little grain: the grain sets the size, the texture's colour and grid tell the
class, so that a model has something to learn. Deterministic: the same number gives the same file.
"""

import io
import multiprocessing
import os
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = 8
WIDTH, HEIGHT = 500, 375
# Together these give about 110 KB; the mean file of ImageNet's training set has as much at this mean size.
QUALITY = 95
GRAIN = 11.0


def picture(number: int) -> bytes:
    """The JPEG file with this number; its class is number % CLASSES."""
    random = np.random.default_rng(number)
    label = number % CLASSES
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.float32)
    # Octaves of smooth noise. A class has its own coarsest grid and its own tint.
    for octave in range(4):
        cells = (3 + label) * 2**octave
        grid = random.integers(0, 256, (cells, cells, 3), dtype=np.uint8)
        smooth = Image.fromarray(grid).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        pixels += (np.asarray(smooth, np.float32) - 128) / 2**octave
    tint = 40 * np.cos(2 * np.pi * (label / CLASSES + np.arange(3) / 3))
    pixels += 128 + tint + random.normal(0, GRAIN, (HEIGHT, WIDTH, 1))
    file = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def _write(job: tuple[str, int]) -> int:
    path, number = job
    data = picture(number)
    Path(path).write_bytes(data)
    return len(data)


def make(root: Path, count: int) -> int:
    """Make `count` files below `root`, using all cores. Returns their bytes together."""
    for label in range(CLASSES):
        (root / f"class-{label}").mkdir(parents=True, exist_ok=True)
    jobs = [(str(root / f"class-{number % CLASSES}" / f"{number:05d}.jpg"), number) for number in range(count)]
    with multiprocessing.Pool(os.cpu_count()) as pool:
        return sum(pool.imap_unordered(_write, jobs, chunksize=16))
