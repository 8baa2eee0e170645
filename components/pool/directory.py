"""Writes a generated task as a Harbor task directory, so that Harbor can run the same files.

Invariant: the bytes are a pure function of the task, hence equal digests for equal tasks.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from importlib.resources import files
from pathlib import Path

from components.pool.generator import GENERATOR_VERSION, GeneratedTask

IMAGE = "longshell-miniature"
"""The base image: bash, coreutils, grep, sed, awk, tar and git. infra/images holds it; the namespace backend uses the
host's own."""

WORKDIR = "/app"
ENVIRONMENT = {"LC_ALL": "C"}
"""Messages in plain ASCII: every byte of an observation is a token the policy reads."""

AGENT_TIMEOUT_S = 60.0
VERIFIER_TIMEOUT_S = 30.0
BUILD_TIMEOUT_S = 60.0

_CHECKS = files("components.pool").joinpath("checks.sh").read_text()
CHECKS_SHA256 = hashlib.sha256(_CHECKS.encode()).hexdigest()
"""A pool whose verifiers were written with other checks is another pool: they may speak another protocol."""


def write_task(task: GeneratedTask, folder: Path) -> None:
    """Writes `task` into the new directory `folder`."""
    for path in (folder / "environment", folder / "tests", folder / "solution"):
        path.mkdir(parents=True)
    (folder / "task.toml").write_text(_manifest(task))
    (folder / "instruction.md").write_text(task.instruction)
    (folder / "environment" / "Dockerfile").write_text(_dockerfile(task))
    for name, text in task.files.items():
        path = folder / "environment" / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    _write_script(folder / "tests" / "test.sh", verifier_script(task))
    _write_script(folder / "solution" / "solve.sh", f"#!/bin/bash\ncd {WORKDIR} || exit 1\n{task.solution}")


def verifier_script(task: GeneratedTask) -> str:
    """`tests/test.sh`: one JSON line an assertion on stdout, the verdict in /logs/verifier/reward.txt."""
    ids = ",".join(f'\\"{name}\\"' for name, _ in task.checks)
    calls = "".join(f"check {name} {shlex.join(call)}\n" for name, call in task.checks)
    return f'#!/bin/bash\n{_CHECKS}\nsay "\\"collected\\":[{ids}]"\n{calls}finish\n'


def _write_script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _dockerfile(task: GeneratedTask) -> str:
    variables = "".join(f"ENV {name}={value}\n" for name, value in ENVIRONMENT.items())
    copy = f"COPY files/ {WORKDIR}/\n" if task.files else ""
    return f"FROM {IMAGE}\n{variables}WORKDIR {WORKDIR}\n{copy}"


def _manifest(task: GeneratedTask) -> str:
    lineage = ["procedural", f"generator-{GENERATOR_VERSION}", *sorted(task.families)]
    return f"""schema_version = "1.4"

[task]
name = "longshell/{task.task_id}"

[metadata]
difficulty = "{task.difficulty}"
category = "{task.category}"
tags = {json.dumps(list(task.families))}
lineage = {json.dumps(lineage)}
assertion_ids = {json.dumps([name for name, _ in task.checks])}

[agent]
timeout_sec = {AGENT_TIMEOUT_S}

[verifier]
timeout_sec = {VERIFIER_TIMEOUT_S}

[environment]
build_timeout_sec = {BUILD_TIMEOUT_S}
cpus = 1
memory_mb = 128
storage_mb = 32
network_mode = "no-network"
"""
