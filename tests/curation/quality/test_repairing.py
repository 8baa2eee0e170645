"""What a new instruction may be, and what may change with it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from components.config import PoolConfig, RepairConfig
from components.curation.quality.answer import BadAnswer
from components.curation.quality.repairing import read_instruction, write_repaired
from components.errors import TaskError
from components.pool import Split, Task, generate, load_task
from components.pool.directory import write_task

SECRET = "seventeen grey geese walked over the old bridge before the sun had come up again"


@pytest.fixture
def task(tmp_path: Path) -> Task:
    folder = tmp_path / "pool" / "task"
    write_task(next(iter(generate(PoolConfig(), Split.TRAIN, seed=3))), folder)
    (folder / "instruction.md").write_text("Count the words of `a.txt` into `b.txt`.\n")
    (folder / "tests" / "expected.txt").write_text(SECRET)
    return load_task(folder)


def read(task: Task, instruction: object, **config: object) -> str:
    return read_instruction(json.dumps({"instruction": instruction}), task, RepairConfig.model_validate(config))


def test_a_usable_instruction_is_taken_as_it_is(task: Task) -> None:
    assert read(task, "\nCount the words of `a.txt`; write the number alone into `b.txt`.") == (
        "Count the words of `a.txt`; write the number alone into `b.txt`.\n"
    )


@pytest.mark.parametrize(
    ("instruction", "told"),
    [
        ("Count the words of a.txt into b.txt!", "the old one"),
        ("", "must be a text"),
        (None, "must be a text"),
        ("so " * 70, "has 70 words, more than 69"),
        (f"The answer: {SECRET}.", "copies 13 words"),
        ("lone \ud800", "not Unicode"),
    ],
)
def test_any_other_is_a_bad_answer(task: Task, instruction: object, told: str) -> None:
    with pytest.raises(BadAnswer, match=told):
        read(task, instruction, growth=1.0)


@pytest.mark.parametrize("text", ["{}", '{"instruction": "a b", "tests": "c"}', '["a b"]', "a b"])
def test_an_answer_with_anything_beside_the_instruction_is_a_bad_one(task: Task, text: str) -> None:
    with pytest.raises(BadAnswer):
        read_instruction(text, task, RepairConfig())


def test_what_the_old_instruction_said_the_new_one_may_say(task: Task) -> None:
    (task.path / "instruction.md").write_text(f"Write this into `b.txt`: {SECRET}.\n")
    told = load_task(task.path)
    assert SECRET in read(told, f"Write this, on one line, into `b.txt`: {SECRET}.")


def test_a_linked_instruction_is_replaced_and_what_it_leads_to_is_left(task: Task, tmp_path: Path) -> None:
    (task.path / "tests" / "text.md").write_text("Old words.\n")
    (task.path / "instruction.md").unlink()
    (task.path / "instruction.md").symlink_to("tests/text.md")
    write_repaired(load_task(task.path), "New words.\n", tmp_path / "repaired")
    place = tmp_path / "repaired" / "task"
    assert ((place / "instruction.md").read_text(), (place / "tests" / "text.md").read_text()) == (
        "New words.\n",
        "Old words.\n",
    )


def test_a_repair_that_changed_more_is_refused(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def meddling(source: Path, target: Path) -> None:
        moved(source, target)
        (target.parent / "tests" / "expected.txt").write_text("easier")

    moved = os.replace
    monkeypatch.setattr(os, "replace", meddling)
    with pytest.raises(TaskError, match=r"more than instruction\.md differs"):
        write_repaired(task, "New words.\n", tmp_path / "repaired")
    assert not (tmp_path / "repaired" / "task").exists()
