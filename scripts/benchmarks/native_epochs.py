"""Rows of whole epochs in a job that sees its data in place: the first one, cold, and the one after it."""

import random
import statistics
import time
from pathlib import Path

from scripts.benchmarks.common import Reader, Work, files_at, preload, reader, seconds
from scripts.benchmarks.fastpath_results import Results
from scripts.benchmarks.fastpath_staged import FILE_BYTES, FILES, FILES_QUICK, small_folder
from scripts.benchmarks.first_epoch_cold import READERS, touch_memory
from scripts.benchmarks.mount_images import FILES_QUICK as IMAGES_QUICK
from scripts.benchmarks.mount_images import WORKERS, copy_of, image_folder
from scripts.benchmarks.native_job import OVERLAY, USERS, WITHOUT, Home, Job, job
from scripts.benchmarks.options import Options
from scripts.benchmarks.table import Row, at_least, at_most

IMAGES = 1500
BARS = {"decode": 1.02, "read": 1.15}
_WORDS = {"decode": "decoded", "read": "read only"}
_SETTLES_S = 20.0


def cold(work: Work, options: Options, command: str) -> list[Row]:
    """Four readers, each its own part, of files that were never read; with an overlay and without one, in turns."""
    got = Results(command)
    source = small_folder(work, options)
    for user in USERS:
        for seed in range(options.runs):
            with got.attempt(f"{user} cold", f"{user} speed"):
                hows = (OVERLAY, WITHOUT[user]) if seed % 2 else (WITHOUT[user], OVERLAY)
                spent_s = {how: _cold_s(work, source, user, how, seed) for how in hows}
                got.add(f"{user} cold", spent_s[WITHOUT[user]] / spent_s[OVERLAY])
                got.add(f"{user} speed", len(files_at(source)) / spent_s[OVERLAY])
    rows = []
    for user in USERS:
        what = f"{user}, {FILES} cold files of {FILE_BYTES // 1000} KB{options.scale(FILES, FILES_QUICK)}"
        rows += [
            got.row(f"{what}, {READERS} readers: speed / without an overlay", f"{user} cold", at_least(0.95)),
            got.row("  files a second", f"{user} speed", None, "/s"),
        ]
    return rows


def _cold_s(work: Work, source: Path, user: str, how: tuple[str, ...], seed: int) -> float:
    names = [str(path.relative_to(source)) for path in files_at(source)]
    random.Random(seed).shuffle(names)
    preload(source)
    home = Home(work, user)
    with job(home, source, home.own / "cache", READERS, "staged.py", "{}", how=how) as within:
        plain = {"do": "files", "root": str(source), "seed": seed, "least_s": 0.0, "size": 0, "count": None}
        touch_memory()
        parts = [{**plain, "direct": False, "names": names[number::READERS]} for number in range(READERS)]
        answers = within.each(parts)
    return max(answer["end_s"] for answer in answers) - min(answer["begin_s"] for answer in answers)


def epochs(work: Work, options: Options, command: str) -> list[Row]:
    """A job that has staged its data in epoch 1 and goes on at once, beside the same epoch of a plain copy."""
    got = Results(command)
    images = image_folder(work, options, IMAGES)
    copy = copy_of(images)
    for user in USERS:
        for seed in range(options.runs):
            for what in BARS:
                with got.attempt(*(f"{user} {what} {epoch}" for epoch in ("second", "later"))):
                    _second(work, images, copy, user, what, seed, got)
    rows = []
    for user in USERS:
        for what, bar in BARS.items():
            name = f"{user}, {IMAGES} JPEG files{options.scale(IMAGES, IMAGES_QUICK)} {_WORDS[what]}, epoch 2"
            rows += [
                got.row(f"{name}: time / plain copy", f"{user} {what} second", at_most(bar)),
                got.row("  a later epoch, in a new overlay: time / plain copy", f"{user} {what} later"),
            ]
    return rows


def _second(work: Work, images: Path, copy: Path, user: str, what: str, seed: int, got: Results) -> None:
    home = Home(work, user)
    preload(images)
    preload(copy)
    with (
        reader("images.py", copy, WORKERS, what, within=home.words()) as plain,
        job(home, images, home.own / "cache", 1, "images.py", images, WORKERS, what) as within,
    ):
        plain.do(epoch=0, seed=seed)
        first = within.overlays()
        before_s = seconds(plain.do(epoch=2, seed=seed))
        _epoch_s(within, 1, seed)
        spent_s = _epoch_s(within, 2, seed)
        after_s = seconds(plain.do(epoch=2, seed=seed))
        got.add(f"{user} {what} second", spent_s / statistics.fmean([before_s, after_s]))
        _settled(within, first)
        spent_s = _epoch_s(within, 3, seed)
        got.add(f"{user} {what} later", spent_s / _plain_s(plain, 3, seed))


def _epoch_s(within: Job, epoch: int, seed: int) -> float:
    return seconds(within.ask({"epoch": epoch, "seed": seed})[0])


def _plain_s(plain: Reader, epoch: int, seed: int) -> float:
    return seconds(plain.do(epoch=epoch, seed=seed))


def _settled(within: Job, first: list[int]) -> None:
    """Wait until all that was staged is in an overlay: there was another one, and no newer one for some seconds."""
    within.renewed(first, _SETTLES_S)
    while within.renewed(within.overlays(), 5.0):
        time.sleep(0.1)
