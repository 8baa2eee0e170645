"""Loads a Harbor task directory.

Invariant: a `Task` that was loaded can be attempted; what is wrong with a directory is said all at once, with its place
in it. The digest covers every byte, name and execute bit of the directory.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from components.config import SandboxConfig
from components.errors import TaskError
from components.pool.manifest import Manifest, parse_manifest
from components.records import TaskRef
from components.sandbox.contract import SandboxSpec
from components.sandbox.image import ImageSpec, read_dockerfile


@dataclass(frozen=True, slots=True)
class Task:
    """One task directory, read and found sound.

    Attributes:
        ref: names this version of the task; curation's assertion lists are in it once the pool index has them.
        path: the directory.
        instruction: what the agent is asked.
        manifest: what `task.toml` says: timeouts, limits, environment variables, metadata.
    """

    ref: TaskRef
    path: Path
    instruction: str
    manifest: Manifest

    @property
    def environment_dir(self) -> Path:
        return self.path / "environment"

    @property
    def tests_dir(self) -> Path:
        """Becomes /tests, in the verifier's box only."""
        return self.path / "tests"

    @property
    def solution_dir(self) -> Path | None:
        """Becomes /solution, for the oracle only. None when the task ships no solution."""
        folder = self.path / "solution"
        return folder if (folder / "solve.sh").is_file() else None

    @property
    def agent_timeout_s(self) -> float | None:
        """Seconds that the agent is given; None where `task.toml` names none."""
        return self.manifest.agent_timeout_s

    @property
    def verifier_timeout_s(self) -> float:
        """Seconds that the verifier is given."""
        return self.manifest.verifier_timeout_s

    @property
    def verifier_env(self) -> Mapping[str, str]:
        """Environment variables of the verifier alone."""
        return self.manifest.verifier_env

    @property
    def verifier_installs(self) -> bool:
        """Whether its verifier writes to the system, below /usr or /etc, also where it reaches no host."""
        return self.manifest.verifier_installs

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.manifest.metadata

    def sandbox_spec(self, config: SandboxConfig) -> SandboxSpec:
        """The box this task starts in. The task's limits hold up to those of `config`, which are what a node can give.

        Raises:
            TaskError: the Dockerfile asks for what a sandbox cannot build; every such line is listed.
        """
        manifest = self.manifest
        image = self._image()
        return SandboxSpec(
            workdir=manifest.workdir or image.workdir,
            image=image,
            env=manifest.environment_env,
            cpus=min(manifest.cpus or config.cpus, config.cpus),
            memory_mb=min(manifest.memory_mb or config.memory_mb, config.memory_mb),
            disk_mb=min(manifest.disk_mb or config.disk_mb, config.disk_mb),
            pids=config.pids,
            network=config.network,
            view_network=config.verifier_network,
            build_network=config.build_network,
            hosts=config.hosts,
            setup_timeout_s=manifest.build_timeout_s,
        )

    def _image(self) -> ImageSpec:
        prebuilt = self.manifest.docker_image
        if prebuilt and not (self.environment_dir / "Dockerfile").is_file():
            return ImageSpec(prebuilt)
        return read_dockerfile(self.environment_dir)

    def indexed(self, ref: TaskRef) -> Task:
        """This task under the reference of a pool index.

        Raises:
            TaskError: the directory is not the one that was indexed.
        """
        if ref.digest != self.ref.digest:
            raise TaskError(str(self.path), [f"changed since it was indexed ({ref.digest} → {self.ref.digest})"])
        return replace(self, ref=ref)


def load_task(path: str | Path) -> Task:
    """Reads a Harbor task directory.

    Raises:
        TaskError: it cannot be used; every problem is listed with its place in the directory.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise TaskError(str(path), ["is not a directory"])
    problems: list[str] = []
    toml = _read(folder, "task.toml", problems)
    instruction = _read(folder, "instruction.md", problems)
    manifest, faults = parse_manifest(toml) if toml is not None else (Manifest(), [])
    problems += faults + _tests(folder) + _environment(folder, manifest)
    if (folder / "solution").is_dir() and not (folder / "solution" / "solve.sh").is_file():
        problems.append("solution/: solve.sh is missing")
    if problems or instruction is None:
        raise TaskError(str(path), problems)
    return Task(_reference(folder, manifest), folder, instruction, manifest)


def directory_digest(folder: Path, *, without: Collection[str] = ()) -> str:
    """Content digest of a directory: names, execute bits, link targets and bytes; nothing of time or owner.

    `without` names entries, relative to the directory, that do not count.
    """
    digest = hashlib.sha256()
    for name, path in sorted(_entries(folder)):
        if name in without:
            continue
        if path.is_symlink():
            kind, content = "link", os.readlink(path).encode()
        elif path.is_dir():
            kind, content = "folder", b""
        else:
            kind = "program" if path.stat().st_mode & 0o100 else "file"
            content = path.read_bytes()
        digest.update(f"{kind} {len(content)} {name}\n".encode() + content)
    return digest.hexdigest()[:16]


def _entries(folder: Path) -> list[tuple[str, Path]]:
    return [
        (str(Path(root, name).relative_to(folder)), Path(root, name))
        for root, folders, names in os.walk(folder)
        for name in [*folders, *names]
    ]


def _read(folder: Path, name: str, problems: list[str]) -> str | None:
    """The text of a required file; None, with the problem noted, when it cannot be used."""
    try:
        text = (folder / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        problems.append(f"{name}: missing")
    except UnicodeDecodeError as error:
        problems.append(f"{name}: not UTF-8 (byte {error.start})")
    except OSError as error:
        problems.append(f"{name}: cannot be read: {error.strerror}")
    else:
        if text.strip():
            return text
        problems.append(f"{name}: empty")
    return None


def _tests(folder: Path) -> list[str]:
    if not (folder / "tests").is_dir():
        return ["tests/: missing"]
    return [] if (folder / "tests" / "test.sh").is_file() else ["tests/: test.sh is missing"]


def _environment(folder: Path, manifest: Manifest) -> list[str]:
    environment = folder / "environment"
    if (environment / "docker-compose.yaml").exists():
        return ["environment/docker-compose.yaml: compose environments are not supported"]
    if (environment / "Dockerfile").is_file() or manifest.docker_image:
        return []
    if not environment.is_dir():
        return ["environment/: missing, and task.toml names no environment.docker_image"]
    return ["environment/: Dockerfile is missing, and task.toml names no environment.docker_image"]


def _reference(folder: Path, manifest: Manifest) -> TaskRef:
    metadata = manifest.metadata
    path = folder.resolve()
    return TaskRef(
        pool_id=path.parent.name,
        task_id=path.name,
        digest=directory_digest(path),
        category=metadata.get("category", "unknown"),
        lineage=manifest.lineage.ancestors,
        assertion_ids=tuple(metadata.get("assertion_ids", ())),
        difficulty=metadata.get("difficulty", "unknown"),
        parents=manifest.lineage.parents,
        operator=manifest.lineage.operator or "",
        round=manifest.lineage.round or "",
    )
