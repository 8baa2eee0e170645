"""Templates of Prefect's work pools: every place is a variable that exists, and a worker knows all that is asked."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from components.cluster import REPOSITORY
from tests.infra.test_images import everything

FOLDER = REPOSITORY / "infra" / "prefect"
COMMON = {"command", "env", "labels", "name", "stream_output"}
KNOWN = {
    "process": COMMON | {"working_dir"},
    "docker": COMMON
    | {"image", "registry_credentials", "image_pull_policy", "networks", "network_mode", "auto_remove", "volumes"}
    | {"mem_limit", "memswap_limit", "privileged", "container_create_kwargs"},
    "kubernetes": COMMON
    | {"annotations", "namespace", "job_manifest", "cluster_config"}
    | {"job_watch_timeout_seconds", "pod_watch_timeout_seconds"},
}
"""What workers of Prefect 3.9.1, prefect-docker 0.7.4 and prefect-kubernetes 0.8.0 read of a job's configuration."""


def template(kind: str) -> dict[str, Any]:
    return dict(json.loads((FOLDER / f"{kind}.json").read_text()))


def test_there_is_one_for_every_kind_of_worker() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == KNOWN.keys()


@pytest.mark.parametrize("kind", KNOWN)
def test_a_template_fills_what_its_worker_reads_from_variables_that_it_has(kind: str) -> None:
    found = template(kind)
    assert found.keys() == {"job_configuration", "variables"}
    assert found["job_configuration"].keys() <= KNOWN[kind]
    places = {
        place
        for one in everything(found["job_configuration"])
        if isinstance(one, str)
        for place in re.findall(r"\{\{\s*(\w+)\s*\}\}", one)
    }
    variables = found["variables"]["properties"]
    assert places == variables.keys()
    for name, said in variables.items():
        assert said["description"], name
        assert "type" in said, name


@pytest.mark.parametrize("kind", ["docker", "kubernetes"])
def test_flow_runs_in_containers_are_nobody_and_have_no_secret_in_their_template(kind: str) -> None:
    found = template(kind)
    text = json.dumps(found)
    assert re.search(r"RAY_AUTH_TOKEN\"\s*:|AUTH_STRING\"\s*:", text) is None
    assert found["variables"]["properties"]["image"]["default"] == "longshell/control-plane:0.1.0"
    if kind == "docker":
        wanted = {"user": "10001:10001", "cap_drop": ["ALL"], "security_opt": ["no-new-privileges"], "init": True}
        assert found["job_configuration"]["container_create_kwargs"] == wanted
        assert found["job_configuration"]["privileged"] is False
        variables = found["variables"]["properties"]
        token = variables["env"]["default"]["RAY_AUTH_TOKEN_PATH"]
        assert f"{token}:{token}:ro" in variables["volumes"]["default"]
    else:
        pod = found["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        (container,) = pod["containers"]
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
