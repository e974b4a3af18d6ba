"""The recipes of docs/containers: their schema, and that what they run is there. No cluster and no builder of images is
needed; what they do is shown by tests/fuse/test_given_connection.py."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from hfs.cli import cli

FOLDER = Path(__file__).parents[2] / "docs" / "containers"
MANIFESTS = sorted(FOLDER.glob("*.yaml"))
KUBERNETES = "1.31"
HADOLINT = Path(sys.executable).with_name("hadolint")


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


def pod_of(document: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = document["spec"]["template"]["spec"] if "template" in document["spec"] else document["spec"]
    return pod


def containers(path: Path) -> Iterator[dict[str, Any]]:
    for document in documents(path):
        pod = pod_of(document)
        yield from [*pod.get("initContainers", []), *pod["containers"]]


def runs(container: dict[str, Any]) -> Iterator[list[str]]:
    """What it executes: its command and its probes."""
    yield [*container["command"], *container.get("args", [])]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if probe in container:
            yield container[probe]["exec"]["command"]


def ours(words: list[str]) -> list[str] | None:
    """The words of the call of hfs in it, in a text for a shell too."""
    if words[:2] == ["sh", "-c"]:
        words = shlex.split(words[2].replace("\\\n", " "))
        words = words[words.index("exec") + 1 :]
    return words if words[0] == "hfs" else None


def parse(words: list[str]) -> None:
    """Raises click.UsageError for a command or an option that is not there."""
    command: click.Command = cli
    context = click.Context(cli)
    rest = words[1:]
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None, name
        command = found
    command.make_context("hfs", rest)


def test_the_image_is_built_under_the_name_that_is_asked_for() -> None:
    images = {container["image"] for path in MANIFESTS for container in containers(path)}
    for page in (FOLDER / "Dockerfile", FOLDER.parent / "containers.md"):
        built = re.findall(r"docker build .* -t (\S+) \.", page.read_text())
        assert built
        assert set(built) <= images, page


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_user_that_is_spoken_of_is_one_of_the_pod(path: Path) -> None:
    text = path.read_text()
    assert set(re.findall(r"\buser (\d+)", text)) <= set(re.findall(r"runAsUser: (\d+)", text))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_is_one(path: Path) -> None:
    for document in documents(path):
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


def test_a_manifest_that_is_none_is_found() -> None:
    (document,) = documents(FOLDER / "sidecar.yaml")
    pod_of(document)["initContainers"][0]["volumeMounts"][0]["mountPropagations"] = "Bidirectional"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_its_commands_are_there(path: Path) -> None:
    calls = [call for container in containers(path) for words in runs(container) if (call := ours(words))]
    assert len(calls) == {"consumer": 0, "daemonset": 4, "sidecar": 5}[path.stem]
    for call in calls:
        parse(call)


def test_a_command_that_is_not_there_is_found() -> None:
    with pytest.raises(click.UsageError):
        parse(["hfs", "status", "--redy"])
    with pytest.raises(click.UsageError):
        parse(["hfs", "mont", "/a", "/b"])


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_mounts_go_where_they_are_wanted_and_rights_where_they_are_needed(path: Path) -> None:
    """Who mounts is privileged, which Bidirectional needs; who reads sees what comes later; nobody else has rights."""
    volumes = {volume["name"] for document in documents(path) for volume in pod_of(document)["volumes"]}
    for container in containers(path):
        mounts = {mount["name"]: mount.get("mountPropagation") for mount in container["volumeMounts"]}
        assert mounts.keys() <= volumes
        rights = container["securityContext"]
        assert ("Bidirectional" in mounts.values()) is rights.get("privileged", False), container["name"]
        if container["name"] == "train":
            assert "HostToContainer" in mounts.values()
        if not rights.get("privileged"):
            assert (rights["capabilities"], rights["allowPrivilegeEscalation"]) == ({"drop": ["ALL"]}, False)


def test_the_image_is_built_by_rule() -> None:
    done = subprocess.run(
        [HADOLINT, "--format", "json", FOLDER / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (json.loads(done.stdout), done.returncode) == ([], 0)
    entry = re.search(r"^ENTRYPOINT (\[.*\])", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
    assert entry is not None
    assert json.loads(entry[1]) == ["hfs"]
