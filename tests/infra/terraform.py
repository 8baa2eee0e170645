"""The Terraform files as blocks, and where Terraform and its provider are, if they are anywhere.

`LONGSHELL_TERRAFORM_PLUGINS` names a folder with a filesystem mirror (`registry.terraform.io/hashicorp/aws/...`);
without it one is looked for one folder below each of PLACES. Nothing is fetched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import hcl2

ROOT = Path(__file__).resolve().parents[2] / "infra" / "terraform"
PROVIDER = "registry.terraform.io/hashicorp/aws"
PLACES = ("~/.terraform.d", "/usr/share", "/usr/local/share", "/usr/local/lib", "/opt")


@dataclass(frozen=True)
class Block:
    """One block: `resource "aws_vpc" "this" { ... }` has the kind `resource` and these two labels."""

    file: Path
    kind: str
    labels: tuple[str, ...]
    body: dict[str, Any]

    @property
    def where(self) -> str:
        return f"{self.file.relative_to(ROOT)}: {self.kind} {'.'.join(self.labels)}"


@cache
def blocks() -> tuple[Block, ...]:
    """Every block of every file."""
    return tuple(block for file in sorted(ROOT.rglob("*.tf")) for block in _of(file))


def _of(file: Path) -> Iterator[Block]:
    with file.open() as text:
        for kind, found in hcl2.load(text).items():
            for one in found if isinstance(found, list) else ():
                if kind != "__comments__":
                    yield from _labelled(file, kind, (), _bare(one))


def _labelled(file: Path, kind: str, labels: tuple[str, ...], body: dict[str, Any]) -> Iterator[Block]:
    """Labels are keys around the body, which alone says that it is a block."""
    if "__is_block__" in body:
        yield Block(file, kind, labels, {name: value for name, value in body.items() if not name.startswith("__")})
        return
    for label, inner in body.items():
        yield from _labelled(file, kind, (*labels, label), inner)


def _bare(value: Any) -> Any:
    """The same without the quotes that the parser keeps around literals."""
    if isinstance(value, str):
        return value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value
    if isinstance(value, list):
        return [_bare(one) for one in value]
    if isinstance(value, dict):
        return {_bare(name): _bare(one) for name, one in value.items()}
    return value


def resources(kind: str) -> list[Block]:
    """Every resource of one type."""
    return [block for block in blocks() if block.kind == "resource" and block.labels[0] == kind]


def plugins() -> Path | None:
    """A folder that has the provider as Terraform's filesystem mirrors have it."""
    if named := os.environ.get("LONGSHELL_TERRAFORM_PLUGINS"):
        return Path(named)
    for place in PLACES:
        for found in sorted(Path(place).expanduser().glob(f"*/{PROVIDER}")):
            return found.parents[2]
    return None


def missing() -> str:
    """Why Terraform cannot check the files here; empty when it can."""
    if shutil.which("terraform") is None:
        return "terraform is not installed: its files were only parsed (tests/infra/test_terraform.py)"
    if plugins() is None:
        return "the aws provider is on no disk here (LONGSHELL_TERRAFORM_PLUGINS): Terraform's files were only parsed"
    return ""


def terraform(folder: Path, *arguments: str, data: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs Terraform without the user's configuration and without a network."""
    settings = {"TF_CLI_CONFIG_FILE": os.devnull, "TF_IN_AUTOMATION": "1", "CHECKPOINT_DISABLE": "1"}
    settings |= {"TF_DATA_DIR": str(data)} if data else {}
    return subprocess.run(
        ["terraform", *arguments],
        cwd=folder,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
