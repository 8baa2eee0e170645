"""Folders of tasks: what is run, what cannot be scored, what cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.config import SandboxConfig, SuiteConfig
from components.errors import TaskError
from components.evaluation import load_suite
from tests.evaluation.parts import write_task

BOX = SandboxConfig()


def test_every_task_is_run_or_unscorable_or_unusable_with_its_reason(tmp_path: Path) -> None:
    write_task(tmp_path / "good", category="text", difficulty="hard")
    write_task(tmp_path / "hidden", test=None)
    write_task(tmp_path / "unbuildable", dockerfile="FROM a AS b\nFROM b\nCOPY --from=b /x /y\n")
    write_task(tmp_path / "broken").joinpath("instruction.md").unlink()
    (tmp_path / "README.md").write_text("no task")
    suite = load_suite(SuiteConfig(name="tb", path=str(tmp_path), benchmark="terminal-bench-2.1"), BOX)
    (task,) = suite.tasks
    assert (task.ref.task_id, task.ref.category, task.ref.difficulty) == ("good", "text", "hard")
    assert suite.unscorable == ("hidden",)
    assert suite.unusable is not None
    assert set(suite.unusable) == {"broken", "unbuildable"}
    assert "instruction.md: missing" in suite.unusable["broken"]
    told = suite.coverage()
    assert (told["run"], told["unscorable"], told["expected"]) == (1, 1, 89)
    assert suite.caveats() == [
        "1 tasks ship no verifier: they are unscorable, and in no figure",
        "2 tasks cannot be run here: broken, unbuildable",
        "1 of the 89 tasks of the benchmark were run",
    ]


def test_a_benchmark_whose_verifiers_are_hidden_has_nothing_to_run_and_no_number(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_task(tmp_path / name, test=None)
    suite = load_suite(SuiteConfig(name="long", path=str(tmp_path), benchmark="lhtb"), BOX)
    assert (suite.tasks, suite.unscorable, suite.headline) == ((), ("a", "b"), "verifier_reward")


def test_a_folder_of_ones_own_is_whole_whatever_its_size(tmp_path: Path) -> None:
    write_task(tmp_path / "a")
    suite = load_suite(SuiteConfig(name="mine", path=str(tmp_path)), BOX)
    assert suite.caveats() == []
    assert "expected" not in suite.coverage()


@pytest.mark.parametrize("missing", [True, False])
def test_a_folder_without_tasks_is_refused_by_the_name_of_its_suite(tmp_path: Path, missing: bool) -> None:
    folder = tmp_path / "nowhere" if missing else tmp_path
    with pytest.raises(TaskError, match=r"evaluation\.suites\.mine"):
        load_suite(SuiteConfig(name="mine", path=str(folder)), BOX)
