"""docs/recipe.md says what is true: its names exist, its equations are all there, its defaults are in force."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import types
import typing
from pathlib import Path
from typing import Any

import pytest
import yaml

from components.config import CampaignConfig, load
from components.config.section import Section

ROOT = Path(__file__).parents[1]
EQUATIONS, ALGORITHMS = range(1, 30), range(1, 5)
TEXT = (ROOT / "docs" / "recipe.md").read_text()


def tables() -> list[tuple[list[str], list[list[str]]]]:
    """(header, rows) of every table of the page."""
    found = []
    for block in re.findall(r"(?:^\|.*\|\n)+", TEXT, re.M):
        header, _, *rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in block.splitlines()]
        found.append((header, rows))
    return found


def column(name: str) -> list[str]:
    """Every cell of the columns of this name."""
    return [row[header.index(name)] for header, rows in tables() if name in header for row in rows]


def quoted(cells: list[str]) -> list[str]:
    return [word for cell in cells for word in re.findall(r"`([^`]+)`", cell)]


@functools.cache
def names_in(path: str) -> list[str]:
    """Names of the tests in a file, those in classes included."""
    tree = ast.parse((ROOT / "tests" / path).read_text())
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return [node.name for node in functions if node.name.startswith("test_")]


def named_tests() -> list[tuple[str, str]]:
    """(file, start of the name) of every test that the page names."""
    found = []
    for cell in [*column("tests"), *re.findall(r"\(`(\w+/\w+\.py::[^`]+)`\)", TEXT)]:
        file = ""
        for word in re.findall(r"`([^`]*\.py[^`]*|::[^`]+)`", cell) or [cell]:
            path, _, name = word.partition("::")
            file = path or file
            found.append((file, name))
    return found


@pytest.mark.parametrize("name", sorted(set(quoted(column("code")))))
def test_every_function_that_the_recipe_names_can_be_imported(name: str) -> None:
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(["components", *parts[:cut]]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return
    raise AssertionError(f"components.{name} does not exist")


def test_every_test_that_the_recipe_names_exists() -> None:
    """One test, without parameters: a file's name in an id would be selected by `-k faults`."""
    named = set(named_tests())
    assert len(named) > 100
    missing = []
    for file, start in sorted(named):
        wanted = start.rstrip("…")
        whole = bool(wanted) and wanted == start
        if not any(name == wanted if whole else name.startswith(wanted) for name in names_in(file)):
            missing.append(f"{file}::{start}")
    assert missing == []


def test_every_equation_and_algorithm_of_the_paper_has_a_row() -> None:
    claims = column("paper")
    equations = {
        int(n) for cell in claims for part in re.findall(r"Eq ([\d, ]+)", cell) for n in re.findall(r"\d+", part)
    }
    algorithms = {int(n) for cell in claims for p in re.findall(r"Alg ([\d, ]+)", cell) for n in re.findall(r"\d+", p)}
    assert equations == set(EQUATIONS)
    assert algorithms == set(ALGORITHMS)


def test_every_row_of_code_names_a_test() -> None:
    for header, rows in tables():
        if "tests" in header:
            for row in rows:
                assert re.search(r"`\S+\.py", row[header.index("tests")]), row


def _default(path: str) -> Any:
    """The schema's default at a path; PydanticUndefined where there is none."""
    owners: list[type[Section]] = [CampaignConfig]
    *parents, leaf = path.split(".")
    for parent in parents:
        owners = [section for owner in owners if parent in owner.model_fields for section in _sections(owner, parent)]
    (field,) = [owner.model_fields[leaf] for owner in owners if leaf in owner.model_fields]
    return field.default


def _sections(owner: type[Section], name: str) -> list[type[Section]]:
    annotation = owner.model_fields[name].annotation
    choices = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    return [choice for choice in choices if isinstance(choice, type) and issubclass(choice, Section)]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


DEFAULTS = [row for header, rows in tables() if "default" in header for row in rows if row[2] != "–"]


@pytest.mark.parametrize("row", DEFAULTS, ids=[row[2].strip("`") for row in DEFAULTS])
def test_every_default_is_the_one_in_force(row: list[str]) -> None:
    _, _, key, default, miniature = row
    path = key.strip("`")
    if default == "–":
        assert repr(_default(path)) == "PydanticUndefined"
    else:
        assert _plain(_default(path)) == yaml.safe_load(default)
    value: Any = load(ROOT / "configs" / "miniature.yaml")
    for part in path.split("."):
        value = getattr(value, part)
    assert _plain(value) == yaml.safe_load(miniature)
