"""Images and cluster templates: pinned, without secrets, made of the lock, and naming only what exists."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from components.cluster import REPOSITORY
from tests.infra.terraform import blocks

IMAGES = REPOSITORY / "infra" / "images"
TEMPLATES = REPOSITORY / "infra" / "ray"
NAMES = ("control-plane", "sampler", "sandbox-host", "trainer")
LONGSHELL = ("control-plane", "trainer")
PINNED = re.compile(r"[\w./-]+(:[\w.-]*\d[\w.-]*|@sha256:[0-9a-f]{64})")
SECRET = re.compile(
    r"(?i)(password|secret|token|api_?key|credential)\w*\s*=\s*[^\s$/]{4,}|AKIA[0-9A-Z]{16}|BEGIN [A-Z ]*PRIVATE"
)


def instructions(name: str) -> list[tuple[str, str]]:
    """A Dockerfile's instructions with their arguments, continuation lines joined."""
    text = re.sub(r"^#.*\n", "", (IMAGES / name / "Dockerfile").read_text(), flags=re.M).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]  # type: ignore[misc]


def arguments(name: str) -> dict[str, str]:
    return dict(rest.split("=", 1) for kind, rest in instructions(name) if kind == "ARG")


def test_these_are_the_images() -> None:
    assert tuple(sorted(path.name for path in IMAGES.iterdir())) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_what_an_image_begins_with_is_an_argument_with_a_pinned_default(name: str) -> None:
    assert [rest for kind, rest in instructions(name) if kind == "FROM"] == ["${BASE}"]
    base = arguments(name)["BASE"]
    assert PINNED.fullmatch(base), base
    assert not base.endswith(":latest")


@pytest.mark.parametrize("name", NAMES)
def test_no_image_holds_a_secret_or_fetches_a_program(name: str) -> None:
    text = (IMAGES / name / "Dockerfile").read_text()
    assert SECRET.search(text) is None
    for kind, rest in instructions(name):
        assert kind != "ADD"
        assert kind != "RUN" or not re.search(r"\bcurl\b|\bwget\b|\bsudo\b|--trusted-host|https?://", rest), rest


@pytest.mark.parametrize("name", NAMES)
def test_what_is_copied_exists_and_is_let_into_the_context(name: str) -> None:
    admitted = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for kind, rest in instructions(name):
        for source in rest.split()[:-1] if kind == "COPY" else ():
            assert (REPOSITORY / source).exists(), source
            assert any(source == root or source.startswith(f"{root}/") for root in admitted), source
    assert {"var", ".venv", ".git"}.isdisjoint(admitted)


@pytest.mark.parametrize("name", LONGSHELL)
def test_longshell_is_installed_by_its_lock_at_the_one_place(name: str) -> None:
    shell = " ".join(rest for kind, rest in instructions(name) if kind == "RUN")
    assert re.search(r"uv pip install .*--constraint constraints\.txt --editable", shell)
    # A job is submitted as `cd SOURCES && exec PYTHON -m ...` with the submitter's own paths.
    assert ("WORKDIR", "/opt/longshell") in instructions(name)
    assert "python3 -m venv .venv" in shell
    uv = re.search(r"uv==([\d.]+)", (REPOSITORY / "bootstrap.sh").read_text())
    assert uv is not None
    assert arguments(name)["UV"] == uv.group(1)
    assert {"components", "tasks", "flows", "configs", "prefect.yaml", "pyproject.toml", "constraints.txt"} <= {
        source for kind, rest in instructions(name) if kind == "COPY" for source in rest.split()[:-1]
    }


@pytest.mark.parametrize("name", [name for name in NAMES if name != "sandbox-host"])
def test_images_run_as_a_user_who_cannot_change_them(name: str) -> None:
    users = [rest for kind, rest in instructions(name) if kind == "USER"]
    assert users[-1] == "10001:10001"
    assert not any("chown" in rest and "/opt/longshell" in rest for _, rest in instructions(name))


def test_engines_are_configured_alike_on_machines_and_in_the_image() -> None:
    (words,) = [block.body["daemon"] for block in blocks() if block.kind == "locals" and "daemon" in block.body]
    image = json.loads((IMAGES / "sandbox-host" / "daemon.json").read_text())
    assert image.keys() == words.keys()
    for name, value in image.items():
        if isinstance(value, bool | str):
            assert words[name] == value, name
    assert image["tlsverify"] is True
    assert "userns-remap" not in image  # Sealing the tests does not work in a user namespace.


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((TEMPLATES / name).read_text()))


def everything(value: Any) -> list[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value, *(found for one in inner for found in everything(one))]


def words(name: str) -> list[str]:
    return [found for one in documents(name) for found in everything(one) if isinstance(found, str)]


TEMPLATE_NAMES = ("ec2.yaml", "kuberay-cluster.yaml", "kuberay-job.yaml", "kubernetes-sandbox.yaml")


def test_these_are_the_templates() -> None:
    assert tuple(sorted(path.name for path in TEMPLATES.iterdir())) == TEMPLATE_NAMES


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_templates_name_images_commands_and_configurations_that_exist(name: str) -> None:
    found = words(name)
    images = {image for word in found for image in re.findall(r"REGISTRY/([\w-]+):[\d.]+$", word)}
    assert images
    assert images <= set(NAMES)
    for word in found:
        for module in re.findall(r"python -m ([\w.]+)", word):
            assert importlib.util.find_spec(module) is not None, module
        for path in re.findall(r"configs/[\w.-]+", word):
            assert (REPOSITORY / path).is_file(), path
        assert SECRET.search(word) is None, word
        assert "ray stop" not in word


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_templates_use_the_ports_that_images_open(name: str) -> None:
    opened = {
        int(port) for image in NAMES for kind, rest in instructions(image) if kind == "EXPOSE" for port in rest.split()
    }
    used = {
        int(one["containerPort"])
        for document in documents(name)
        for one in everything(document)
        if isinstance(one, dict) and "containerPort" in one
    }
    used |= {int(port) for word in words(name) for port in re.findall(r"--(?:dashboard-)?port=(\d+)", word)}
    assert used
    assert used <= opened


def test_the_ec2_template_is_what_rays_launcher_reads() -> None:
    ray = Path(importlib.util.find_spec("ray").origin).parent  # type: ignore[union-attr, arg-type]
    (document,) = documents("ec2.yaml")
    jsonschema.validate(document, json.loads((ray / "autoscaler" / "ray-schema.json").read_text()))
    for node in document["available_node_types"].values():
        assert node["node_config"]["MetadataOptions"] == {"HttpTokens": "required", "HttpPutResponseHopLimit": 1}
        assert all(disk["Ebs"]["Encrypted"] for disk in node["node_config"]["BlockDeviceMappings"])


def test_rays_version_is_the_locks_in_every_template() -> None:
    (locked,) = re.findall(r"^ray==(.+)$", (REPOSITORY / "constraints.txt").read_text(), flags=re.M)
    told = [
        one["rayVersion"]
        for name in TEMPLATE_NAMES
        for document in documents(name)
        for one in everything(document)
        if isinstance(one, dict) and "rayVersion" in one
    ]
    assert told == [locked, locked]


@pytest.mark.parametrize("name", ["kuberay-cluster.yaml", "kuberay-job.yaml"])
def test_rays_pods_ask_for_the_token_and_are_nobody(name: str) -> None:
    pods = [
        one
        for document in documents(name)
        for one in everything(document)
        if isinstance(one, dict) and "containers" in one
    ]
    assert pods
    for pod in pods:
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            assert {"name": "RAY_AUTH_MODE", "value": "token"} in container["env"]
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }


def test_engines_on_kubernetes_are_reached_by_ray_alone_and_reach_nothing() -> None:
    engine, _, policy = documents("kubernetes-sandbox.yaml")
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert policy["spec"]["egress"] == []
    assert policy["spec"]["podSelector"]["matchLabels"] == engine["spec"]["template"]["metadata"]["labels"]
    (way,) = policy["spec"]["ingress"]
    assert way == {
        "from": [
            {
                "podSelector": {
                    "matchLabels": {"ray.io/cluster": documents("kuberay-cluster.yaml")[0]["metadata"]["name"]}
                }
            }
        ],
        "ports": [{"protocol": "TCP", "port": 2376}],
    }
