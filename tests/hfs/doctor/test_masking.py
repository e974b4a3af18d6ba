"""Names of the data set in texts, log lines and figures: masked wherever they stand, and what else is said stays."""

import re

import pytest

from hfs.doctor import masking
from hfs.doctor.masking import Masks

pytestmark = pytest.mark.slow  # the words of all that hfs says are read

SOURCE, MOUNT = "/lustre/imagenet", "/data"


@pytest.fixture
def masks() -> Masks:
    return Masks([SOURCE, MOUNT], ["/opt/hfs/lib", "/nvme/cache", "/usr"])


def line(logger: str, text: str) -> str:
    return f"2026-01-02 03:04:05,678 WARNING {logger}: {text}"


@pytest.mark.parametrize(
    ("logger", "text", "shown"),
    [
        ("hfs.mountd.daemon.service", f"{MOUNT}: serving {SOURCE}", f"{MOUNT}: serving {SOURCE}"),
        (
            "hfs.mountd.hints.followed_plans",
            "a hint names what cannot be had, train/zebra: No such file or directory",
            "a hint names what cannot be had, <name-1>/<name-2>: No such file or directory",
        ),
        # A name that is a word of ours too is one where it stands alone, or in a path.
        ("pyfuse3", "source: Input/output error", "<name-1>: Input/output error"),
        ("hfs.mountd.daemon.service", "cannot be had: train/source", "cannot be had: <name-1>/<name-2>"),
        (
            "hfs.mountd.cache.evictions",
            "12345 staged files of 67890 bytes were not used for 60 s, and went",
            "12345 staged files of 67890 bytes were not used for 60 s, and went",
        ),
        ("hfs.mountd.supervisor", "process 4711 answers", "process 4711 answers"),
        ("pyfuse3", "zebra: Input/output error", "<name-1>: Input/output error"),
        ("hfs.mountd.daemon.daemon", "the daemon failed: 000123", "the daemon failed: <name-1>"),
    ],
)
def test_log_lines(masks: Masks, logger: str, text: str, shown: str) -> None:
    assert masks.line(line(logger, text)) == line(logger, shown)


def test_stacks_keep_where_and_lose_what(masks: Masks) -> None:
    frame = '  File "/opt/hfs/lib/mountd/fuse/boundary.py", line 12, in wrapped'
    assert masks.line(frame) == frame
    assert masks.line("Traceback (most recent call last):") == "Traceback (most recent call last):"
    shown = masks.line(f"OSError: [Errno 5] Input/output error: '{SOURCE}/n01440764/my cat.jpg'")
    assert shown == f"OSError: [Errno 5] Input/output error: '{SOURCE}/<name-1>/<name-2>'"
    assert "zebra" not in masks.line('  File "/home/x/zebra.py", line 1, in zebra')


SENTENCES = (
    "{}: Input/output error",
    "reading {} failed: it has changed",
    f"{SOURCE}/{{}}: Permission denied",
    f"{MOUNT}/{{}} is in use",
    "[Errno 2] No such file or directory: {!r}",
    "ValueError('{}', 3)",
    "VersionChanged: sub/{} (17 bytes)",
    "{}",
    "the layout {} names {}",
)


HOSTILE = (
    *("zqxj", "zqxj vbnm", "zqxj: vbnm", "zqxj, vbnm", "zqxj/vbnm w", "'zqxj'", 'zqxj"vbnm', "b'zqxj/vbnm'", "(zqxj)"),
    *(
        f"{SOURCE}/zqxj vbnm",
        f"{MOUNT}/zqxj: vbnm",
        "zqxj\nvbnm",
        "zqxj\\nvbnm",
        "zqxj=vbnm;zqxj",
        "<zqxj>",
        "zqxj%svbnm",
    ),
    *(
        "zqxj...vbnm",
        "Zqxj: Vbnm: zqxj",
        "a zqxj b: c",
        "SIGZQXJ",
        "hfs.mountd.zqxj",
        "hfs.zqxj",
        "zqxj, zqxj: ",
        "/zqxj",
    ),
    "x\n2026-01-02 03:04:05,678 INFO zqxj: vbnm",
    'x\n  File "/zqxj.py", line 1, in vbnm',
    "/usr/../zqxj/vbnm",
)


@pytest.mark.parametrize("sentence", SENTENCES)
@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_gets_through_however_it_is_written(masks: Masks, sentence: str, name: str) -> None:
    text = sentence.format(name, name)
    for written in (line("hfs.mountd.fetch.misses", text), line("other.module", text), text):
        shown = "\n".join(masks.line(each) for each in written.split("\n"))
        assert not re.search("zqxj|vbnm", shown, re.IGNORECASE), (written, shown)
    assert not re.search("zqxj|vbnm", str(masks.tree({"reason": text, "errors": [text], text: 1})), re.IGNORECASE)


def test_the_same_name_has_the_same_mark_and_the_structure_stays(masks: Masks) -> None:
    assert masks.path(f"{SOURCE}/a/b") == f"{SOURCE}/<name-1>/<name-2>"
    assert masks.path("b/a") == "<name-2>/<name-1>"
    assert masks.path(f"{MOUNT}/b/./../c") == f"{MOUNT}/<name-2>/./../<name-3>"
    assert masks.path(SOURCE) == SOURCE
    assert masks.path(f"{SOURCE}-other/b") == "/<name-4>/<name-5>/<name-2>"
    assert masks.path("/nvme/cache/1-0123/objects/00/17") == "/nvme/cache/1-0123/objects/00/17"


def test_figures_keep_their_keys_and_numbers(masks: Masks) -> None:
    figures = {
        "source": {"path": SOURCE, "bytes": 12, "file_systems": [{"path": "images/zebra", "kind": "nfs4"}]},
        "staged": {"state": "resting", "last_error": "sub/zebra: No space left on device"},
        "readers": [{"pid": 7, "command": "python", "reads": 9}],
        "io_mode": {"mode": "passthrough", "reason": "the kernel can read staged files by itself"},
        "hints": {"learners": [{"name": "zebra", "layout": "zebra.layout", "epoch": 3}]},
        "strict": True,
        "nothing": None,
    }
    shown = masks.tree(figures)
    assert "zebra" not in str(shown)
    assert shown["source"]["path"] == SOURCE
    assert shown["source"]["bytes"] == 12
    assert shown["source"]["file_systems"][0]["path"] == "<name-1>/<name-2>"
    assert shown["staged"]["last_error"] == "<name-3>/<name-2>: No space left on device"
    assert shown["io_mode"] == figures["io_mode"]
    assert shown["hints"]["learners"][0]["epoch"] == 3
    assert shown["strict"] is True
    assert shown["nothing"] is None


def test_a_table_of_mounts_keeps_everything_but_what_is_below_the_places(masks: Masks) -> None:
    row = rf"47 27 0:44 / {SOURCE}/my\040cat ro - squashfs {SOURCE}/zebra.img ro,lower={SOURCE}/zebra:/x"
    assert (
        masks.places_in(row)
        == f"47 27 0:44 / {SOURCE}/<name-1> ro - squashfs {SOURCE}/<name-2> ro,lower={SOURCE}/<name-3>/<name-4>"
    )
    assert masks.places_in(f"a {SOURCE}-other/b") == f"a {SOURCE}-other/b"


def test_without_the_files_everything_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "own_words", frozenset)
    masks = Masks([SOURCE], [])
    assert masks.line(line("hfs.mountd.daemon.service", f"{MOUNT}: serving {SOURCE}")).endswith(f"<name-3> {SOURCE}")
