"""The recipe for conda depends on what pyproject.toml says, under the names that the packages have there.

conda-build itself is not asked: the recipe is rendered as it renders it, and read.
"""

import os
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

from scripts.packaging import stage
from tests.install.environments import ROOT, Environment, copy_of_checkout, own_libfuse

RECIPE = ROOT / "scripts/packaging/conda"
NAMES = {"python-xxhash": "xxhash", "prometheus_client": "prometheus-client"}
"""Names in the channel of what PyPI calls otherwise."""
VERSION = stage.project()["project"]["version"]


@pytest.fixture(scope="module")
def recipe() -> dict[str, Any]:
    template = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string((RECIPE / "meta.yaml").read_text())
    text = template.render(
        compiler=lambda language: f"{language}_compiler",
        stdlib=lambda language: f"{language}_stdlib",
        pin_subpackage=lambda name, exact: f"{name} =={VERSION}" if exact else name,
    )
    return dict(yaml.safe_load(text))


def outputs(recipe: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {output["name"]: output for output in recipe["outputs"]}


def spelled(needs: list[str]) -> set[str]:
    """As pyproject.toml would say it; python and what is only conda's left out."""
    words = [
        need.split(" ", 1) for need in needs if not need.startswith(("python ", "__", "libfuse")) and need != "python"
    ]
    return {f"{NAMES.get(name, name)}{''.join(limit)}" for name, *limit in words}


def test_both_packages_depend_on_what_the_wheels_depend_on(recipe: dict[str, Any]) -> None:
    whole = stage.project()
    found = outputs(recipe)
    assert set(found) == {whole["project"]["name"], stage.NATIVE}
    assert recipe["package"]["version"] == VERSION
    assert spelled(found["hfs-cache"]["requirements"]["run"]) == {*stage.client_table(whole)["dependencies"]}
    # There pyfuse3 is the channel's, where the wheel brings its own.
    (bindings,) = [need for need in whole["project"]["dependencies"] if need.startswith("pyfuse3")]
    native = found[stage.NATIVE]["requirements"]
    assert spelled(native["run"]) == {*stage.native_table(whole)["dependencies"], bindings}
    assert bindings in spelled(native["host"])
    lowest = whole["project"]["requires-python"]
    assert f"python {lowest}" in found["hfs-cache"]["requirements"]["run"]
    assert any(need.startswith("libfuse >=3.17") for need in native["host"])


def test_commands_and_scripts_are_those_there_are(recipe: dict[str, Any]) -> None:
    found = outputs(recipe)
    scripts = {f"{name} = {target}" for name, target in stage.project()["project"]["scripts"].items()}
    assert {*found["hfs-cache"]["build"]["entry_points"]} == scripts
    assert all(os.access(RECIPE / output["script"], os.X_OK) for output in found.values())
    assert (RECIPE / recipe["source"]["path"]).resolve() == ROOT


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_scripts_of_the_recipe_build_both(recipe: dict[str, Any], tmp_path: Path) -> None:
    """Run as conda-build runs them, in an environment that has what the recipe asks for."""
    checkout = copy_of_checkout(tmp_path / "checkout")
    inside = Environment(tmp_path / "venv")
    inside.install("pip", "setuptools>=77", "wheel")
    for name, output in outputs(recipe).items():
        done = inside.run(
            "bash",
            "-c",
            f"cd {checkout} && {RECIPE / output['script']}",
            compilers=True,
            extra={"CFLAGS": "", "LDFLAGS": "", **own_libfuse(), "PYTHON": str(inside.python)},
        )
        assert done.returncode == 0, f"{name}\n{done.stdout}\n{done.stderr}"
    names = {path.name.partition(".")[0] for path in (inside.packages / "hfs_native").iterdir()}
    assert {"_fastpath"} <= names
    assert (inside.packages / "hfs/hint.py").exists()
    assert not any(inside.packages.rglob("with_libfuse"))
