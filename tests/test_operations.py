"""What docs/operations.md tells a person to do, can be done: commands, keys, files, alarms and detectors exist."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from components.cluster import REPOSITORY
from components.config import CampaignConfig
from components.diagnostics import DETECTORS
from tests.infra.terraform import blocks

TEXT = (REPOSITORY / "docs" / "operations.md").read_text()
QUOTED = re.findall(r"`([^`\n]+)`", TEXT)


def models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections that a field's type may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from models(inner)


def is_key(path: str) -> bool:
    """Whether a campaign's configuration has this key."""
    sections: list[type[BaseModel]] = [CampaignConfig]
    for name in path.split("."):
        found = [section.model_fields[name] for section in sections if name in section.model_fields]
        if not found:
            return False
        sections = [model for field in found for model in models(field.annotation)]
    return True


def test_a_key_is_told_from_what_is_none() -> None:
    assert is_key("sandbox.docker.tls")
    assert is_key("pool.imported.probes")
    assert not is_key("sandbox.docker.tsl")


def test_every_key_that_is_named_exists() -> None:
    sections = CampaignConfig.model_fields.keys()
    named = {word for word in QUOTED if re.fullmatch(r"[a-z_]+(\.[a-z_0-9]+)+", word)}
    keys = {word for word in named if word.split(".")[0] in sections}
    assert len(keys) > 12
    assert [key for key in sorted(keys) if not is_key(key)] == []


def test_the_configuration_that_is_shown_is_one() -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.S)
    document = yaml.safe_load(re.sub(r"^ {3}", "", shown, flags=re.M))

    def paths(value: dict[str, Any], before: str = "") -> Iterator[str]:
        for name, inner in value.items():
            yield f"{before}{name}"
            if isinstance(inner, dict):
                yield from paths(inner, f"{before}{name}.")

    assert [path for path in paths(document) if not is_key(path)] == []


def test_every_command_that_is_named_exists() -> None:
    modules = set(re.findall(r"python -m ([a-z_.]+)", TEXT))
    assert {"tasks.stack", "components.diagnostics", "components.planner", "flows.campaign"} <= modules
    assert [module for module in modules if importlib.util.find_spec(module) is None] == []
    targets = set(re.findall(r"^([a-z]+):", (REPOSITORY / "Makefile").read_text(), flags=re.M))
    assert set(re.findall(r"`make ([a-z]+)", TEXT)) <= targets
    stack = (REPOSITORY / "tasks/stack/__main__.py").read_text()
    assert all(f'"{word}"' in stack for word in re.findall(r"tasks\.stack (\w+)", TEXT))


def test_every_file_and_deployment_that_is_named_exists() -> None:
    paths = set(re.findall(r"(?<![\w/])((?:infra|configs|docs|components|tasks)/[\w./-]+)", TEXT))
    assert len(paths) > 10
    assert [path for path in sorted(paths) if not (REPOSITORY / path.rstrip(".")).exists()] == []
    named = {f"{name}/{name}" for name in re.findall(r"`(\w+)/\1`", TEXT)}
    deployments = yaml.safe_load((REPOSITORY / "prefect.yaml").read_text())["deployments"]
    assert named <= {f"{one['entrypoint'].split(':')[1]}/{one['name']}" for one in deployments}


def test_every_detector_has_a_line() -> None:
    assert re.findall(r"^\| `(\w+)` \| [^|]{4,} \| [^|]{20,} \|$", TEXT, flags=re.M) == [
        detector.name for detector in DETECTORS
    ]


def test_every_alarm_has_a_page() -> None:
    pages = set(re.findall(r"^### `([\w-]+)`$", TEXT, flags=re.M))
    source = (REPOSITORY / "infra/terraform/modules/observability/main.tf").read_text()
    (words,) = re.findall(r"locals \{(.*?)\n\}", source, flags=re.S)
    single = set(re.findall(r"^\s+([a-z]+(?:-[a-z]+)+)\s*= \{", words, flags=re.M))
    of_hosts = {name.rstrip("-") for name in re.findall(r'"([a-z-]+)\$\{name\}"', words)}
    services = {f"{name}-down" for name in _services()}
    assert pages == single | of_hosts | services | {"budget"}


def _services() -> list[str]:
    (found,) = [block.body["services"] for block in blocks() if block.kind == "locals" and "services" in block.body]
    return list(found)


@pytest.mark.parametrize("name", ["secrets", "database", "urls", "docker_hosts", "ray_jobs"])
def test_every_output_that_is_read_exists(name: str) -> None:
    assert f"terraform output {name}" in TEXT
    assert any(
        block.kind == "output" and block.labels == (name,) and block.file.parent.name == "terraform"
        for block in blocks()
    )


def test_every_secret_of_the_cluster_is_told() -> None:
    (told,) = [block.body["value"] for block in blocks() if block.kind == "output" and block.labels == ("secrets",)]
    (made,) = [block.body["secrets"] for block in blocks() if block.kind == "locals" and "secrets" in block.body]
    names = {*made, *re.findall(r"([\w-]+)\s*(?:=|:) ?\"?\$?\{?module", str(told))}
    assert {"prefect-database", "prefect-login", "ray-token"} <= names
    assert [name for name in names if f"`{name}`" not in TEXT] == []
