"""`scripts/bench recipes`: what each recipe of docs/recipes.md gains on a simulated Lustre, a group for each.

    direct     the program of the page on the source, which is cold
    first      the same through a new mount with an empty cache: with the hint of the page, and without one
    later      the same in a job that comes later: all is staged, nothing of it in memory
    local      the same on a copy in this machine's memory: what there is to gain at most

A ratio is the time of the first epoch of direct / that of the mount; it begins where the program has imported
everything, and so has the listing of the files in it. All ways must have trained on the same bytes, and where there is
a hint, the daemon must have followed it; else nothing is told.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from scripts.benchmarks import recipes_data, recipes_page
from scripts.benchmarks.common import (
    BenchError,
    Mount,
    Work,
    files_at,
    forget,
    hfs_mount,
    objects_of,
    slowfs,
)
from scripts.benchmarks.data import stamped
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.options import Options
from scripts.benchmarks.recipes_page import Recipe
from scripts.benchmarks.table import Row, skipped_row

RUNS = 3
PRESET = "lustre"

COUNT, COUNT_QUICK = 2000, 500
EDGE = 192
"""Of a picture: 110 KB."""
ROWS, ROWS_QUICK, ROW_TOKENS = 20_000, 5_000, 2048
VOLUMES, VOLUMES_QUICK, VOLUME_EDGE = 24, 8, 160
WEIGHTS, WEIGHTS_QUICK, WEIGHTS_NUMBERS = 4, 2, 1 << 24


def _pictures(make: Callable[..., None], options: Options) -> Callable[[Path], None]:
    return lambda folder: make(folder, recipes_data.images(options.size(COUNT, COUNT_QUICK), EDGE))


def _tokens(options: Options) -> Callable[[Path], None]:
    return lambda folder: recipes_data.make_arrow(
        folder, recipes_data.tokens(options.size(ROWS, ROWS_QUICK), ROW_TOKENS)
    )


def _volumes(options: Options) -> Callable[[Path], None]:
    return lambda folder: recipes_data.make_volumes(folder, options.size(VOLUMES, VOLUMES_QUICK), VOLUME_EDGE)


def _weights(options: Options) -> Callable[[Path], None]:
    return lambda folder: recipes_data.make_weights(folder, options.size(WEIGHTS, WEIGHTS_QUICK), WEIGHTS_NUMBERS)


_FILES = ("recipes-files", partial(_pictures, recipes_data.make_files), f"{COUNT} files of 110 KB")
# The data set of each recipe: its folder, what makes it, what it is in words.
_DATA: dict[str, tuple[str, Callable[[Options], Callable[[Path], None]], str]] = {
    "files": _FILES,
    "stream": _FILES,
    "rows": ("recipes-npy", partial(_pictures, recipes_data.make_npy), f"{COUNT} rows of 110 KB"),
    "ddp": _FILES,
    "fit": _FILES,
    "train_h5": ("recipes-hdf5", partial(_pictures, recipes_data.make_hdf5), f"{COUNT} rows of 110 KB"),
    "train_lmdb": ("recipes-lmdb", partial(_pictures, recipes_data.make_lmdb), f"{COUNT} records of 110 KB"),
    "train_zarr": ("recipes-zarr", partial(_pictures, recipes_data.make_zarr), f"{COUNT} chunks of 110 KB"),
    "shards": ("recipes-tar", partial(_pictures, recipes_data.make_tar), f"8 shards, {COUNT} samples of 110 KB"),
    "arrow": ("recipes-arrow", _tokens, f"{ROWS} rows of 8 KB"),
    "volumes": ("recipes-volumes", _volumes, f"{VOLUMES} volumes of 8 MB, half of them gzipped"),
    "weights": ("recipes-weights", _weights, f"{WEIGHTS} files of 67 MB"),
    "tf_files": _FILES,
    "tf_records": ("recipes-records", partial(_pictures, recipes_data.make_records), f"{COUNT} records of 110 KB"),
}


def _trained(recipe: Recipe, root: Path, job: Path, digests: set[int]) -> float:
    """Seconds of the first epoch. Raises BenchError where it trained on other bytes than those before."""
    done = recipes_page.run(recipe, root, job)
    if not done.trained:
        raise BenchError(f"{recipe.name} has trained on nothing: {done.stderr[-1000:]}")
    digests.add(sum(each["digest"] for each in done.trained) % (1 << 64))
    if len(digests) > 1:
        raise BenchError(f"{recipe.name} has trained on other bytes than directly")
    return max(each["ends_s"][len(each["ends_s"]) // recipe.epochs - 1] for each in done.trained)


def _job(work: Work, recipe: Recipe, data: Path, *, hinted: bool = True) -> Path:
    """A folder with the programs and, where the recipe asks for one, the layout."""
    job = work.new("job")
    recipes_page.lay_out(job, hinted=hinted)
    recipes_page.run(recipe, data, job, prepares=True, options=("--root", str(data)))
    return job


def _check_followed(mount: Mount) -> None:
    hinted_bytes = mount.status()["counters"]["hinted_bytes"]["value"]
    if not hinted_bytes:
        raise BenchError("the daemon has followed no hint")


def _measure(work: Work, recipe: Recipe, data: Path, got: Results) -> None:
    digests: set[int] = set()
    with slowfs(work, data, PRESET) as source:
        direct_s = _trained(recipe, source.path, _job(work, recipe, data), digests)
    got.add("direct", direct_s)
    got.add("local", direct_s / _trained(recipe, data, _job(work, recipe, data, hinted=False), digests))
    for key, hinted in [("hint", True)] * recipe.hinted + [("bare", False)]:
        with slowfs(work, data, PRESET) as source, hfs_mount(work, source.path) as mount:
            got.add(key, direct_s / _trained(recipe, mount.path, _job(work, recipe, data, hinted=hinted), digests))
            if hinted:
                _check_followed(mount)
            if hinted == recipe.hinted:
                forget([*files_at(mount.path), *objects_of(mount.cache)])
                got.add("later", direct_s / _trained(recipe, mount.path, _job(work, recipe, data), digests))


def _group(name: str, work: Work, options: Options, command: str) -> list[Row]:
    recipe = recipes_page.recipes()[name]
    if recipe.needs_tensorflow and not (recipes_page.TENSORFLOW / "python").exists():
        return [skipped_row(name, "no TensorFlow: run scripts/tensorflow", command)]
    folder, make, words = _DATA[name]
    spec = {"maker": 1, "quick": options.quick}
    data = stamped(work.data / (folder + ("-quick" if options.quick else "")), spec, make(options))
    got = Results(command)
    keys = ("direct", *(("hint",) if recipe.hinted else ()), "bare", "later", "local")
    for _ in range(options.runs):
        with got.attempt(*keys):
            _measure(work, recipe, data, got)
    what = f"{name}.py, {words}, {PRESET}{options.scale(COUNT, COUNT_QUICK)}: "
    names = {
        "hint": what + "speed-up of the first epoch over direct",
        "bare": "  without a hint" if recipe.hinted else what + "speed-up of the first epoch over direct",
        "later": "  all staged by an earlier job, none in memory",
        "local": "  a copy in memory: what there is to gain",
    }
    return [*(got.row(names[key], key) for key in keys[1:]), got.row("  time of direct", "direct", None, "s")]


GROUPS = {name: partial(_group, name) for name in _DATA}
