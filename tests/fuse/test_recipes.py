"""The recipes of docs/recipes.md, each as the page has it, over a real mount: every byte is right, the source is read
once, and the order is followed ahead of the readers.

The user's `training` is scripts/benchmarks/readers/training.py. In its first step it waits until the daemon has staged
all that was ordered; the readers are only a few batches ahead meanwhile, so it is the daemon that follows the order.
"""

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import xxhash

from hfs.client.client import Client
from scripts.benchmarks import recipes, recipes_page
from scripts.benchmarks import recipes_data as made
from scripts.benchmarks.common import BenchError
from tests.fuse.harness import HfsMount, environment, must_here
from tests.fuse.hinted import counter
from tests.fuse.slowfs import SlowSource

COUNT = 400
VOLUMES, EDGE = 24, 24
SHARDS, SIZE = 3, 1 << 16

IMAGES = made.images(COUNT, 32)
LABELS = np.arange(COUNT) % made.CLASSES
TOKENS = made.tokens(COUNT, 64)


class DataSet(NamedTuple):
    """What makes it, how many samples it has, and the arrays whose rows come once an epoch."""

    make: Callable[[Path], None]
    arrays: Callable[[], Sequence[np.ndarray]]
    samples: int = COUNT


FILES = DataSet(lambda data: made.make_files(data, IMAGES), lambda: [IMAGES])
DATA = {
    "files": FILES,
    "stream": FILES,
    "rows": DataSet(lambda data: made.make_npy(data, IMAGES), lambda: [IMAGES]),
    "ddp": FILES,
    "fit": FILES,
    "train_h5": DataSet(lambda data: made.make_hdf5(data, IMAGES), lambda: [IMAGES, LABELS]),
    "train_lmdb": DataSet(lambda data: made.make_lmdb(data, IMAGES), lambda: [IMAGES.reshape(COUNT, -1)]),
    "train_zarr": DataSet(lambda data: made.make_zarr(data, IMAGES), lambda: [IMAGES]),
    "shards": DataSet(lambda data: made.make_tar(data, IMAGES), lambda: [IMAGES, LABELS]),
    "arrow": DataSet(lambda data: made.make_arrow(data, TOKENS), lambda: [TOKENS.astype(np.int64)]),
    "volumes": DataSet(
        lambda data: made.make_volumes(data, VOLUMES, EDGE),
        lambda: [np.stack([made.voxels(number, EDGE) for number in range(VOLUMES)])],
        VOLUMES,
    ),
    "weights": DataSet(
        lambda data: made.make_weights(data, SHARDS, SIZE),
        lambda: [tensor for shard in range(SHARDS) for tensor in made.tensors(shard, SIZE).values()],
        SHARDS * 4,
    ),
    "tf_files": FILES,
    "tf_records": DataSet(lambda data: made.make_records(data, IMAGES), lambda: [IMAGES.reshape(COUNT, -1), LABELS]),
}
EPOCHS = {name: 1 if name == "weights" else 2 for name in DATA}

# How many ranks or workers hint in one of these.
LEARNERS = {"stream": 2, "ddp": 2, "shards": 2, "arrow": 0}

LIBRARIES = {"fit": "lightning", "train_h5": "h5py", "shards": "webdataset", "arrow": "datasets", "volumes": "nibabel"}
LIBRARIES |= {"train_lmdb": "lmdb", "train_zarr": "zarr"}
LIBRARIES |= {"weights": "safetensors", "tf_records": "tfrecord"}

SLOW = {"ddp"}
LONG = {"fit", "train_lmdb", "train_zarr", "stream", "rows", "arrow", "weights"}


def marked(name: str) -> object:
    marks: list[pytest.MarkDecorator] = []
    for library in ("torch", LIBRARIES.get(name, "torch")):
        absent = importlib.util.find_spec(library) is None
        marks.append(pytest.mark.skipif(absent, reason=f"{library} is not installed"))
    if name.startswith("tf_"):
        absent = not (recipes_page.TENSORFLOW / "python").exists()
        marks += [pytest.mark.long, pytest.mark.skipif(absent, reason="no TensorFlow: run scripts/tensorflow")]
    marks += [pytest.mark.slow] * (name in SLOW) + [pytest.mark.long] * (name in LONG)
    return pytest.param(name, marks=marks)


def digest(arrays: Sequence[np.ndarray]) -> int:
    return sum(xxhash.xxh3_64_intdigest(np.ascontiguousarray(row).data) for array in arrays for row in array)


def test_every_recipe_of_the_page_is_run() -> None:
    assert set(recipes_page.recipes()) == set(DATA) == set(recipes.GROUPS)
    assert all(recipe.hinted == (LEARNERS.get(name, 1) > 0) for name, recipe in recipes_page.recipes().items())


@pytest.mark.parametrize("name", [marked(name) for name in DATA])
def test_recipe(name: str, tmp_path: Path, slow_source: SlowSource, hfs_mount: HfsMount) -> None:
    recipe = recipes_page.recipes()[name]
    data, job = tmp_path / "data", tmp_path / "job"
    data.mkdir()
    job.mkdir()
    DATA[name].make(data)
    recipes_page.lay_out(job)
    slow = slow_source(data)
    hfs = hfs_mount(slow.path)
    if recipe.commands(hfs.path, prepares=True):
        recipes_page.run(recipe, hfs.path, job, prepares=True, env=environment())
        must_here("cache", "evict", hfs.path)
        slow.order("reset")
    env = {"TRAINING_AWAITS": str(hfs.path)} if recipe.hinted else {}
    done = recipes_page.run(recipe, hfs.path, job, env=environment(env))

    arrays = DATA[name].arrays()
    assert sum(each["samples"] for each in done.trained) == EPOCHS[name] * DATA[name].samples
    assert sum(each["digest"] for each in done.trained) % (1 << 64) == EPOCHS[name] * digest(arrays) % (1 << 64)
    assert slow.counters()["read_bytes"] <= sum(path.stat().st_size for path in data.rglob("*") if path.is_file())
    assert "without hints" not in done.stderr
    status = Client(str(hfs.socket)).status()
    ranks = {(learner["rank"], learner["world"]) for learner in status["hints"]["past"]}
    world = LEARNERS.get(name, 1)
    assert ranks == {(rank, world) for rank in range(world)}
    if recipe.hinted:
        assert counter(status, "hinted_bytes") > 0
    if name == "fit":
        assert (job / "checkpoints" / "last.ckpt").stat().st_size > 0


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed")
def test_a_run_that_was_cut_goes_on_from_its_checkpoint_beside_the_mount(tmp_path: Path, hfs_mount: HfsMount) -> None:
    recipe = recipes_page.recipes()["fit"]
    data, job = tmp_path / "data", tmp_path / "job"
    data.mkdir()
    job.mkdir()
    made.make_files(data, IMAGES)
    recipes_page.lay_out(job)
    hfs = hfs_mount(data)
    with pytest.raises(BenchError, match="the job is cut here"):
        recipes_page.run(recipe, hfs.path, job, env=environment({"TRAINING_FAILS_AFTER": "15"}))  # an epoch has 13
    assert (job / "checkpoints" / "last.ckpt").stat().st_size > 0
    (trained,) = recipes_page.run(recipe, hfs.path, job, env=environment()).trained
    assert (trained["samples"], trained["digest"]) == (COUNT, digest([IMAGES]) % (1 << 64))
