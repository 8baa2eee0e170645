"""Public benchmark tasks that find their way into a training pool do not stay there, whatever was done to them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from components.curation import Benchmark, screen
from components.pool import import_tasks
from tests.curation import mixed

BENCHMARK = Path(__file__).parents[3] / "shared" / "data" / "terminal-bench-2"
KEPT = ("badger", "crane")
WORDS = re.compile(r"\b[a-z_]{4,}\b")

pytestmark = pytest.mark.skipif(
    not BENCHMARK.is_dir(), reason=f"{BENCHMARK} is not there: it is no part of the project"
)


def without_canary(task: Path) -> None:
    for path in texts(task):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if "canary" not in line.lower()))


def texts(task: Path) -> list[Path]:
    return [path for path in task.rglob("*") if path.suffix in (".md", ".sh", ".py") or path.name == "Dockerfile"]


def reword(text: str, every: int) -> str:
    """Another word in the place of every so manieth."""
    words = text.split(" ")
    words[every - 1 :: every] = [f"some{len(word)}" for word in words[every - 1 :: every]]
    return " ".join(words)


def renamed(task: Path) -> None:
    """Another name, and another one for every function of the tests."""
    without_canary(task)
    for path in texts(task / "tests"):
        path.write_text(re.sub(r"\btest_(\w+)\(", r"test_that_\1_holds(", path.read_text()))


def paraphrased(task: Path) -> None:
    """Every eighth word of the instruction is another, and the rest of the task is somebody else's."""
    instruction = reword((task / "instruction.md").read_text(), every=8)
    shutil.rmtree(task)
    mixed.write(task, instruction, "true", {"there": "[[ -e there ]]"})


def solution_reworded(task: Path) -> None:
    """Only the solution is left of it, with every eighth word another."""
    solution = reword((task / "solution/solve.sh").read_text(), every=8)
    shutil.rmtree(task)
    mixed.animal(task, f"q{len(task.name)}")
    (task / "solution/solve.sh").write_text("\n".join(line for line in solution.splitlines() if "canary" not in line))


def only_its_tests(task: Path) -> None:
    """Only the tests are left of it."""
    renamed(task)
    kept = (task / "tests/test_outputs.py").read_text()
    shutil.rmtree(task)
    mixed.animal(task, f"q{len(task.name)}")
    (task / "tests/test_outputs.py").write_text(kept)


@pytest.mark.parametrize(
    "disguise", [lambda task: None, without_canary, renamed, paraphrased, solution_reworded, only_its_tests]
)
def test_a_public_task_is_taken_out_of_a_training_pool_in_every_disguise(
    tmp_path: Path, disguise: Callable[[Path], None]
) -> None:
    originals = sorted(path.parent for path in BENCHMARK.glob("*/instruction.md"))
    assert len(originals) == 4
    for number, original in enumerate(originals):
        task = tmp_path / "train" / f"own-{number}"
        shutil.copytree(original, task)
        task.chmod(0o755)
        for path in task.rglob("*"):
            path.chmod(0o755)
        disguise(task)
    for name in KEPT:
        mixed.animal(tmp_path / "train" / name, name)
    assert import_tasks([tmp_path / "train"], tmp_path / "pool") == []
    left_out = screen(tmp_path / "pool", [Benchmark(BENCHMARK)], jaccard=0.1, near_duplicate=None)
    assert [(each.task, each.reason) for each in left_out] == [(f"own-{n}", "contaminated") for n in range(4)]
    for original, each in zip(originals, left_out, strict=True):
        assert original.name in each.detail, "it quotes what it repeats"
    assert sorted(path.name for path in (tmp_path / "pool").iterdir()) == list(KEPT)
