"""The data sets that the recipes of docs/recipes.md read, one maker for each form, and what is in them.

Deterministic: `images` is the one array that all image sets hold, whatever their form. Writes below the folder given.
"""

import io
import tarfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

CLASSES = 4


def images(count: int, edge: int) -> npt.NDArray[np.uint8]:
    """`count` pictures of edge x edge x 3 bytes, no two alike."""
    return np.random.default_rng(7).integers(0, 256, (count, edge, edge, 3), np.uint8)


def make_files(folder: Path, samples: npt.NDArray[np.uint8]) -> None:
    """train/CLASS/NUMBER.npy."""
    for label in range(CLASSES):
        (folder / "train" / str(label)).mkdir(parents=True)
    for number, sample in enumerate(samples):
        np.save(folder / "train" / str(number % CLASSES) / f"{number:06d}.npy", sample)


def make_npy(folder: Path, samples: npt.NDArray[np.uint8]) -> None:
    """train.npy."""
    np.save(folder / "train.npy", samples)


def make_hdf5(folder: Path, samples: npt.NDArray[np.uint8]) -> None:
    """train.h5 with x and y."""
    import h5py

    with h5py.File(folder / "train.h5", "w") as file:
        file["x"] = samples
        file["y"] = np.arange(len(samples)) % CLASSES


def make_lmdb(folder: Path, samples: npt.NDArray[np.uint8]) -> None:
    """train.lmdb, whose keys are eight digits."""
    import lmdb

    path = str(folder / "train.lmdb")
    with (
        lmdb.open(path, subdir=False, lock=False, map_size=2 * samples.nbytes + (1 << 24)) as env,
        env.begin(write=True) as records,
    ):
        for number, sample in enumerate(samples):
            records.put(b"%08d" % number, sample.tobytes())


def make_zarr(folder: Path, samples: npt.NDArray[np.uint8]) -> None:
    """train.zarr, a chunk for each sample."""
    import zarr
    from zarr.core.sync import cleanup_resources

    chunks = (1, *samples.shape[1:])
    array = zarr.create_array(folder / "train.zarr", shape=samples.shape, dtype=samples.dtype, chunks=chunks)
    array[:] = samples
    cleanup_resources()  # its event loop


def make_tar(folder: Path, samples: npt.NDArray[np.uint8], shards: int = 8) -> None:
    """shards/NUMBER.tar of WebDataset: a member .npy and a member .cls for each sample."""
    (folder / "shards").mkdir()
    for shard, numbers in enumerate(np.array_split(np.arange(len(samples)), shards)):
        with tarfile.open(folder / "shards" / f"{shard:04d}.tar", "w") as archive:
            for number in numbers:
                array = io.BytesIO()
                np.save(array, samples[number])
                for suffix, content in (("npy", array.getvalue()), ("cls", str(number % CLASSES).encode())):
                    member = tarfile.TarInfo(f"{number:06d}.{suffix}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))


def tokens(count: int, length: int) -> npt.NDArray[np.int32]:
    """`count` rows of `length` tokens."""
    return np.random.default_rng(8).integers(0, 50_000, (count, length), np.int32)


def make_arrow(folder: Path, rows: npt.NDArray[np.int32], shards: int = 4) -> None:
    """arrow/ as Hugging Face's `save_to_disk` writes it."""
    import datasets

    datasets.disable_progress_bars()
    features = datasets.Features(input_ids=datasets.Sequence(datasets.Value("int32"), length=rows.shape[1]))
    datasets.Dataset.from_dict({"input_ids": rows}, features=features).save_to_disk(folder / "arrow", num_shards=shards)


def voxels(number: int, edge: int) -> npt.NDArray[np.int16]:
    """Volume `number`: edge x edge x edge."""
    return np.random.default_rng(number).integers(0, 500, (edge, edge, edge), np.int16)


def make_volumes(folder: Path, count: int, edge: int) -> None:
    """volumes/NUMBER.nii.gz, every other one .nii."""
    import nibabel

    (folder / "volumes").mkdir()
    for number in range(count):
        suffix = "nii" if number % 2 else "nii.gz"
        image = nibabel.Nifti1Image(voxels(number, edge), np.eye(4))
        nibabel.save(image, folder / "volumes" / f"{number:04d}.{suffix}")


def tensors(shard: int, size: int) -> dict[str, npt.NDArray[np.float32]]:
    """The four tensors of a file of weights, `size` numbers together."""
    random = np.random.default_rng(shard)
    return {f"layer{shard}.{number}": random.random((4, size // 16), np.float32) for number in range(4)}


def make_weights(folder: Path, shards: int, size: int) -> None:
    """model/NUMBER.safetensors."""
    from safetensors.numpy import save_file

    (folder / "model").mkdir()
    for shard in range(shards):
        save_file(tensors(shard, size), folder / "model" / f"{shard:04d}.safetensors")


def make_records(folder: Path, samples: npt.NDArray[np.uint8], shards: int = 2) -> None:
    """records/train-NUMBER.tfrecord of tf.train.Example."""
    from tfrecord.writer import TFRecordWriter

    (folder / "records").mkdir()
    for shard, numbers in enumerate(np.array_split(np.arange(len(samples)), shards)):
        writer = TFRecordWriter(str(folder / "records" / f"train-{shard}.tfrecord"))
        for number in numbers:
            writer.write({"image": (samples[number].tobytes(), "byte"), "label": (int(number) % CLASSES, "int")})
        writer.close()
