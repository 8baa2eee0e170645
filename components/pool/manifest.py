"""Reads `task.toml`, tolerantly: schemas 1.0 to 1.4, the legacy keys `version`, `memory` and `storage`.

Invariant: every problem is reported with its place, not only the first. Keys this loader does not know are left alone:
they belong to Harbor.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from components.pool.lineage import Lineage, read_lineage

SCHEMAS = ("1.0", "1.1", "1.2", "1.3", "1.4")
DEFAULT_TIMEOUT_S = 600.0
"""Harbor's default of the verifier and of the build."""

_NUMBER = (int, float)
_FLAG = (bool,)
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "agent.timeout_sec": (_NUMBER, "a number of seconds"),
    "verifier.timeout_sec": (_NUMBER, "a number of seconds"),
    "verifier.env": ((dict,), "a table of strings"),
    "solution.env": ((dict,), "a table of strings"),
    "environment.build_timeout_sec": (_NUMBER, "a number of seconds"),
    "environment.docker_image": ((str,), "a string"),
    "environment.workdir": ((str,), "a string"),
    "environment.env": ((dict,), "a table of strings"),
    "environment.cpus": (_NUMBER, "a number"),
    "environment.memory_mb": (_NUMBER, "a number of MiB"),
    "environment.storage_mb": (_NUMBER, "a number of MiB"),
    "environment.memory": ((str,), 'a size like "2G"'),
    "environment.storage": ((str,), 'a size like "10G"'),
    "metadata.category": ((str,), "a string"),
    "metadata.difficulty": ((str,), "a string"),
    "metadata.assertion_ids": ((list,), "a list of strings"),
    "metadata.verifier_installs": (_FLAG, "true or false"),
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT])i?B?", re.IGNORECASE)
_MIB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a task says about itself. Limits are None where it says nothing.

    `metadata` has the fields of the lineage under their names, whatever the task calls them.
    """

    metadata: Mapping[str, Any] = field(default_factory=dict)
    lineage: Lineage = field(default_factory=Lineage)
    agent_timeout_s: float | None = None
    verifier_timeout_s: float = DEFAULT_TIMEOUT_S
    build_timeout_s: float = DEFAULT_TIMEOUT_S
    docker_image: str | None = None
    workdir: str | None = None
    cpus: float | None = None
    memory_mb: int | None = None
    disk_mb: int | None = None
    environment_env: Mapping[str, str] = field(default_factory=dict)
    verifier_env: Mapping[str, str] = field(default_factory=dict)
    solution_env: Mapping[str, str] = field(default_factory=dict)
    verifier_installs: bool = False


def parse_manifest(text: str) -> tuple[Manifest, list[str]]:
    """The manifest in `text` and every problem with it; with problems, the manifest must not be used."""
    try:
        document = tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        return Manifest(), [f"task.toml: not valid TOML: {error}"]
    except RecursionError:
        return Manifest(), ["task.toml: not valid TOML: nested too deeply"]
    metadata, lineage, faults = _lineage(document)
    problems = _schema(document) + _unsupported(document) + faults
    values: dict[str, Any] = {}
    for key, (types, wanted) in _TYPES.items():
        value, problem = _look_up(document, key)
        if problem is None and value is not None:
            problem = _mismatch(value, types, wanted)
        if problem is not None:
            problems.append(f"task.toml: {key}: {problem}")
        else:
            values[key] = value
    if problems:
        return Manifest(), sorted(set(problems), key=problems.index)
    return _manifest(metadata, lineage, values), []


def _manifest(metadata: Mapping[str, Any], lineage: Lineage, values: Mapping[str, Any]) -> Manifest:
    return Manifest(
        metadata={**metadata, **lineage.named()},
        lineage=lineage,
        agent_timeout_s=values["agent.timeout_sec"],
        verifier_timeout_s=float(values["verifier.timeout_sec"] or DEFAULT_TIMEOUT_S),
        build_timeout_s=float(values["environment.build_timeout_sec"] or DEFAULT_TIMEOUT_S),
        docker_image=values["environment.docker_image"],
        workdir=values["environment.workdir"],
        cpus=values["environment.cpus"],
        memory_mb=_mib(values["environment.memory_mb"], values["environment.memory"]),
        disk_mb=_mib(values["environment.storage_mb"], values["environment.storage"]),
        environment_env=values["environment.env"] or {},
        verifier_env=values["verifier.env"] or {},
        solution_env=values["solution.env"] or {},
        verifier_installs=bool(values["metadata.verifier_installs"]),
    )


def _schema(document: Mapping[str, Any]) -> list[str]:
    version = document.get("schema_version", document.get("version", SCHEMAS[-1]))
    if str(version) in SCHEMAS:
        return []
    return [f"task.toml: schema_version: {version!r} is not supported ({SCHEMAS[0]} to {SCHEMAS[-1]})"]


def _lineage(document: Mapping[str, Any]) -> tuple[Mapping[str, Any], Lineage, list[str]]:
    metadata = document.get("metadata", {})
    if not isinstance(metadata, dict):
        return {}, Lineage(), ["task.toml: metadata.lineage: [metadata] must be a table"]
    lineage, problems = read_lineage(metadata)
    return metadata, lineage, [f"task.toml: {problem}" for problem in problems]


def _unsupported(document: Mapping[str, Any]) -> list[str]:
    """What Harbor can give a task and our boxes cannot."""
    problems = []
    if document.get("steps"):
        problems.append("task.toml: steps: multi-step tasks are not supported")
    environment, verifier = (document.get(name) for name in ("environment", "verifier"))
    if isinstance(verifier, dict) and verifier.get("environment_mode", "shared") != "shared":
        problems.append("task.toml: verifier.environment_mode: a verifier in a container of its own is not supported")
    if isinstance(environment, dict):
        if environment.get("os", "linux") != "linux":
            problems.append(f"task.toml: environment.os: {environment['os']!r} is not supported (linux)")
        for key, what in (("gpus", "a GPU"), ("tpu", "a TPU"), ("mcp_servers", "MCP servers")):
            if environment.get(key):
                problems.append(f"task.toml: environment.{key}: no box has {what}")
    return problems


def _look_up(document: Mapping[str, Any], key: str) -> tuple[Any, str | None]:
    """(value or None, problem). A section that is not a table is the problem of each of its keys."""
    section, _, leaf = key.partition(".")
    table = document.get(section, {})
    if not isinstance(table, dict):
        return None, f"[{section}] must be a table"
    return table.get(leaf), None


def _mismatch(value: Any, types: tuple[type, ...], wanted: str) -> str | None:
    if types is _FLAG and isinstance(value, bool):
        return None
    if isinstance(value, bool) or not isinstance(value, types):
        return f"must be {wanted}, is {value!r}"
    if isinstance(value, int | float) and not 0 < value < float("inf"):
        return f"must be positive, is {value!r}"
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if not all(isinstance(part, str) for part in parts):
        return f"must be {wanted}, is {value!r}"
    unreadable = isinstance(value, str) and wanted.startswith("a size") and not _SIZE.fullmatch(value)
    return f"must be {wanted}, is {value!r}" if unreadable else None


def _mib(number: float | None, legacy: str | None) -> int | None:
    """MiB from the current key, else from the legacy one ("2G")."""
    if number is not None:
        return int(number)
    match = _SIZE.fullmatch(legacy) if legacy else None
    return max(1, int(float(match[1]) * _MIB[match[2].upper()])) if match else None
