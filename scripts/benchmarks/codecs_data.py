"""Samples as CosmoFlow and DeepCAM have them, for the benchmark of the codecs: the real sets are terabytes.

Deterministic: the same arguments give the same bytes (of one version of NumPy). What the volumes must look like is in
the paper (Ibrahim & Oliker, section V.B): a few hundred distinct counts in a sample, their frequencies a power law,
some 37 000 distinct groups of the four redshifts.
"""

import gzip
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from hfs.codecs import encode

SIDE = 128
FIELDS_SHAPE = (16, 768, 1152)
"""Channels, y, x."""

GROWTH = (0.5, 0.7, 0.85, 1.0)
"""Of structure at the four redshifts, the last being today."""

COUPLING = 0.5
"""Share of the particles of a voxel that are still there at the next redshift, where its density stays the same."""

GZIP_LEVEL = 6


@dataclass(frozen=True)
class Universe:
    """What a network is to find out: strength of the clustering, and slope of the spectrum."""

    spread: float = 1.95
    slope: float = -2.0


def volume(seed: int, side: int = SIDE, universe: Universe | None = None) -> np.ndarray:
    """(side, side, side, 4) int16: counts of particles, one a voxel on average, in a log-normal density field."""
    model = universe or Universe()
    rng = np.random.default_rng([seed, side])
    field = _noise(rng, (side, side, side), model.slope)
    counts = np.empty((side, side, side, 4), np.int16)
    before = density_before = None
    for redshift, growth in enumerate(GROWTH):
        spread = model.spread * growth
        density = np.exp(spread * field - spread**2 / 2)
        if before is None or density_before is None:
            now = rng.poisson(density)
        else:
            stay = np.minimum(1, density / density_before) * COUPLING
            now = rng.binomial(before, stay) + rng.poisson(density - stay * density_before)
        counts[..., redshift] = np.minimum(now, np.iinfo(np.int16).max)
        before, density_before = now, density
    return counts


def fields(seed: int, shape: tuple[int, int, int] = FIELDS_SHAPE) -> tuple[np.ndarray, np.ndarray]:
    """(channels, y, x) float32, and a map (y, x) uint8: 0 calm, 1 vortex, 2 front.

    Smooth large waves; fronts, at which a channel jumps within some points; vortices, in which wind and pressure change
    at once; weather at the scale of points, a thousandth as strong. Each channel has unit and size of one of the real
    set; those of water are never negative, and nearly zero in most places.
    """
    channels, height, width = shape
    rng = np.random.default_rng([seed, *shape])
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    front, storm, label = _weather(rng, y, x)
    found = np.empty(shape, np.float32)
    for channel in range(channels):
        middle, size = UNITS[channel % len(UNITS)]
        wave = _noise(rng, (height, width), -4.0) + rng.normal() * front + rng.normal() * 3 * storm
        wave += 1e-3 * _noise(rng, (height, width), -2.0)
        if channel % len(UNITS) in POSITIVE:
            wave = np.exp(np.minimum(1.5 * wave, 6))
        found[channel] = middle + size * wave
    return found, label


UNITS = (
    *((0, 8.0), (0, 10.0), (0, 10.0), (0, 7.0), (0, 7.0), (0, 0.005), (98000, 900.0), (101000, 800.0)),
    *((215, 6.0), (255, 9.0), (0, 2e-8), (290, 10.0), (288, 10.0), (480, 60.0), (11800, 300.0), (64, 2.0)),
)
"""Middle and size of each channel: water, winds, humidity, pressures, temperatures, precipitation, heights."""
POSITIVE = {0, 5, 10}


def _weather(rng: np.random.Generator, y: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    height, width = x.shape
    label = np.zeros(x.shape, np.uint8)
    front = np.zeros(x.shape, np.float32)
    for _ in range(3):
        middle, bend, phase = rng.uniform(0.2, 0.8) * width, rng.uniform(0.02, 0.1) * width, rng.uniform(0, 6)
        away = x - middle - bend * np.sin(y / height * 5 + phase)
        front += rng.choice([-1, 1]) * np.tanh(away / 3)
        label[np.abs(away) < 6] = 2
    storm = np.zeros(x.shape, np.float32)
    for _ in range(6):
        row, column, size = (
            rng.uniform(0.1, 0.9) * height,
            rng.uniform(0.1, 0.9) * width,
            rng.uniform(0.01, 0.03) * width,
        )
        away = np.hypot(y - row, x - column) / size
        storm += away * np.exp(1 - away)
        label[away < 1.5] = 1
    return front, storm, label


def _noise(rng: np.random.Generator, shape: tuple[int, ...], slope: float) -> np.ndarray:
    """A periodic Gaussian field with the power spectrum k^slope, of mean 0 and variance 1."""
    axes = tuple(range(len(shape)))
    spectrum = np.fft.rfftn(rng.standard_normal(shape, dtype=np.float32), axes=axes)
    waves = [np.fft.fftfreq(side, 1 / side) for side in shape[:-1]] + [np.fft.rfftfreq(shape[-1], 1 / shape[-1])]
    square = sum(wave**2 for wave in np.meshgrid(*waves, indexing="ij", sparse=True))
    square[(0,) * len(shape)] = np.inf
    field = np.fft.irfftn(spectrum * square ** (slope / 4), s=shape, axes=axes)
    return (field / field.std()).astype(np.float32)


def write_volumes(root: Path, count: int) -> None:
    """raw/N.npy, encoded/N.hfsc and gzip/N.npy.gz of the same `count` volumes."""
    for name in ("raw", "encoded", "gzip"):
        (root / name).mkdir()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(partial(_write_volume, root), range(count)):
            pass


def _write_volume(root: Path, number: int) -> None:
    counts = volume(number)
    np.save(root / "raw" / f"{number:04d}.npy", counts)
    (root / "encoded" / f"{number:04d}.hfsc").write_bytes(encode(counts))
    (root / "gzip" / f"{number:04d}.npy.gz").write_bytes(gzip.compress(counts.tobytes(), GZIP_LEVEL))


def write_fields(root: Path, count: int) -> None:
    """raw/N.npy and encoded/N.hfsc of the same `count` samples."""
    for name in ("raw", "encoded"):
        (root / name).mkdir()
    for number in range(count):
        values, label = fields(number)
        np.save(root / "raw" / f"{number:04d}.npy", values)
        (root / "encoded" / f"{number:04d}.hfsc").write_bytes(encode(values, beside={"label": label}))
