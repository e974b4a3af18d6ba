"""README and docs: their size, and whether what they name is there: links, anchors, options, commands, keys.

Reads text and click's commands only; mounts nothing.
"""

import ast
import re
from functools import cache
from pathlib import Path

import click
import pytest

from hfs.cli import cli
from hfs.cli.hint import hint
from tests.sizes import BUDGETS
from tests.support.commands import commands
from tests.support.configuration_page import PAGE, with_tables
from tests.support.pages import PAGES, ROOT, calls

CONTRIBUTING = ROOT / "CONTRIBUTING.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
GUIDES = sorted((ROOT / "docs").glob("*.md"))

MAX_README_LINES = 200
MAX_README_WORDS = 2_500

PROGRAMS: dict[str, click.Command] = {"hfs": cli, "hfs-hint": hint}

# Options of other programs that the pages show.
FOREIGN = {
    *("--with-ft", "--map-by", "--ntasks-per-node", "--no-kill", "--nproc-per-node", "--standalone"),  # of launchers
    *("--job-name", "--ntasks", "--signal"),  # of sbatch
    *("--overlap", "--jobid", "--uid", "--label", "--format", "--array", "--mpi"),  # of srun, sbatch, squeue
    "--long",  # of scripts/check
    *("--only", "--runs", "--seed", "--quick", "--plots", "--resume", "--minutes", "--stale"),  # of scripts/bench
    *("--no-index", "--no-cache-dir", "--find-links", "--wheelhouse", "--client"),  # of pip, of scripts/wheels
    *("--minimal", "--torch"),  # of scripts/setup
    *("--user", "--cap-drop", "--cap-add", "--read-only", "--tmpfs", "--device", "--security-opt"),  # of docker
    "--fusemount",  # of apptainer
    *("--nonblocking", "--vfs-cache-mode", "--collector"),  # of py-spy, of rclone, of node_exporter
}


def ids(path: Path) -> str:
    return path.name


def outside_code(text: str) -> str:
    """Without fenced and indented code, and without code in a line: links are not looked for there."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^ {4}(?![ *-]).*$", "", text, flags=re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "`code`", text)


@cache
def anchors(path: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    found: dict[str, int] = {}
    names = set()
    for title in re.findall(r"^#{1,6} +(.+?) *$", text, flags=re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        again = found.get(slug, 0)
        found[slug] = again + 1
        names.add(f"{slug}-{again}" if again else slug)
    return frozenset(names)


def broken_links(path: Path) -> list[str]:
    """Relative links of a page that lead nowhere."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", outside_code(path.read_text())):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue  # another site's
        name, _, anchor = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        known = there.exists() and there.is_relative_to(ROOT)
        if not known or (anchor and (there.suffix != ".md" or anchor not in anchors(there))):
            broken.append(target)
    return broken


@cache
def options_of_all() -> frozenset[str]:
    """Every option of every command, as click has them."""
    return frozenset(
        option
        for program, command in PROGRAMS.items()
        for _, found in commands(command, program)
        for parameter in found.get_params(click.Context(found))
        if isinstance(parameter, click.Option)
        for option in (*parameter.opts, *parameter.secondary_opts)
    )


def unknown_commands(text: str) -> list[str]:
    """Calls whose subcommand does not exist. `check|list` names several."""
    unknown = []
    for words in calls(text):
        found: list[click.Command] = [PROGRAMS[words[0]]]
        for word in words[1:]:
            groups = [command for command in found if isinstance(command, click.Group)]
            if not groups or word.startswith("-") or not re.fullmatch(r"[a-z][a-z|-]*", word):
                break
            subs = [groups[0].get_command(click.Context(groups[0]), name) for name in word.split("|")]
            if None in subs:
                unknown.append(" ".join(words))
                break
            found = [sub for sub in subs if sub is not None]
    return unknown


def unknown_options(text: str) -> list[str]:
    """Long options that nothing has."""
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text))
    return sorted(named - options_of_all() - FOREIGN)


def misplaced_options(text: str) -> list[str]:
    """Options that a call in the text gives to a command that does not have them."""
    wrong = []
    for words in calls(text):
        command, rest = PROGRAMS[words[0]], words[1:]
        while isinstance(command, click.Group) and rest and re.fullmatch(r"[a-z-]+", rest[0]):
            found = command.get_command(click.Context(command), rest[0])
            if found is None:
                break  # see unknown_commands
            command, rest = found, rest[1:]
        if isinstance(command, click.Group):
            continue
        has = {option for each in command.get_params(click.Context(command)) for option in each.opts}
        for word in rest:
            if word in {"--", "&", "|", "&&", ";"}:
                break
            option = re.match(r"\[?(--[a-z][a-z-]*)", word)
            if option and option[1] not in has:
                wrong.append(f"{option[1]} in {' '.join(words)}")
    return wrong


def missing_files(text: str) -> list[str]:
    """Source files and folders by their paths in the project, or in mountd where these begin with a room."""
    named = re.findall(r"`((?:[\w.-]+/)+(?:[\w.-]+\.(?:py|c|h))?)[` :]", text)
    return [name for name in named if not any((root / name).exists() for root in (ROOT, ROOT / "mountd"))]


def test_the_readme_is_within_its_bounds() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= MAX_README_LINES
    assert len(text.split()) <= MAX_README_WORDS


@pytest.mark.parametrize("page", [*PAGES, CONTRIBUTING], ids=ids)
def test_relative_links_and_anchors_resolve(page: Path) -> None:
    assert broken_links(page) == []


def test_every_page_of_the_docs_can_be_reached_from_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/[\w-]+\.md)", (ROOT / "README.md").read_text()))
    assert {f"docs/{page.name}" for page in GUIDES} == linked


@pytest.mark.parametrize("page", [CONTRIBUTING, *GUIDES], ids=ids)
def test_files_that_pages_name_are_there(page: Path) -> None:
    assert missing_files(page.read_text()) == []


def test_each_room_and_package_has_a_row_with_its_key_file() -> None:
    packages = {name for name in BUDGETS if "/" in name} | {"hfs", "policies"}
    rows = re.findall(
        r"^\| (?:[-\d]+ \| )?([\w/]+) \| [^|]+ \| `([\w/]+)/[\w.]+`", ARCHITECTURE.read_text(), re.MULTILINE
    )
    assert {name if name in packages else f"mountd/{name}" for name, _ in rows} == packages
    assert [name for name, folder in rows if not folder.startswith(name)] == []


def test_every_command_is_on_the_page_of_commands() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    assert [name for name in cli.list_commands(click.Context(cli)) if f"hfs {name}" not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_options_exist(page: Path) -> None:
    assert unknown_options(page.read_text()) == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_commands_exist_and_have_the_options_that_they_are_given(page: Path) -> None:
    text = page.read_text()
    assert unknown_commands(text) == []
    assert misplaced_options(text) == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_python_in_the_pages_is_python(page: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL):
        ast.parse(block)


def test_the_pages_show_commands() -> None:
    # Else the test above would hold whatever it looked for.
    readme = [words[:2] for words in calls((ROOT / "README.md").read_text())]
    assert ["hfs", "mount"] in readme
    assert ["hfs", "run"] in readme
    assert any(words[0] == "hfs-hint" for words in readme)


def test_the_tables_of_the_configuration_page_are_as_the_keys_are_declared() -> None:
    text = PAGE.read_text()
    assert with_tables(text) == text, "write them: python -m tests.support.configuration_page"


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (unknown_options, "`--ttl 5`", "`--tttl 5`"),
        (unknown_commands, "    \n\n    hfs cache warm /data\n", "    \n\n    hfs cache warn /data\n"),
        (unknown_commands, "```sh\nmpirun -n 2 hfs mount a b &\n```", "```sh\nmpirun -n 2 hfs moun a b &\n```"),
        (unknown_commands, r"`hfs-hint send\|show`", r"`hfs-hint send\|shown`"),
        (missing_files, "`core/errors.py` `hfs/layouts/`", "`core/error.py` `hfs/layouts/`"),
        (misplaced_options, "`hfs status --wait 5 /data`", "`hfs umount --wait 5 /data`"),
    ],
)
def test_what_is_wrong_is_found(check: object, good: str, bad: str) -> None:
    assert callable(check)
    assert check(good) == []
    assert len(check(bad)) == 1


def test_a_broken_link_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    other = tmp_path / "other.md"
    other.write_text("# A title: with *marks*\n\n## Twice\n\n## Twice\n")
    page = tmp_path / "page.md"
    page.write_text("# Own\n\n[a](other.md#a-title-with-marks) [b](#own) [c](other.md#twice-1) [d](https://x.y/z)\n")
    assert broken_links(page) == []
    page.write_text("[a](other.md#no-title) [b](gone.md) [c](#gone) `[d](in-code.md)`\n")
    assert broken_links(page) == ["other.md#no-title", "gone.md", "#gone"]
