"""Every family on real bash: its solution, its habit, and doing nothing."""

from collections.abc import AsyncIterator, Mapping
from importlib.resources import files
from itertools import islice
from pathlib import Path

import pytest
import pytest_asyncio

from components.config import HabitConfig, HarnessConfig, PoolConfig, SandboxConfig
from components.demonstrations import ORACLE, Demonstration, collect, corpus, train_tokenizer
from components.harness import verify_result
from components.pool import GeneratedTask, Split, generate, load_task
from components.pool.directory import write_task
from components.pool.families import FAMILIES
from components.records import AssertionOutcome
from components.sandbox import SandboxBackend, SandboxSpec, open_backend
from components.tito import BpeTokenizer
from tests.harness.parts import PlainTask

LIMITS = SandboxConfig(memory_mb=128, disk_mb=32, pids=64)
TERSE = HarnessConfig(
    patience_s=20.0,  # A busy machine may take longer over a command than it says.
    prompt_style="terse", new_output="stream", max_turns=12, max_context_tokens=512, max_turn_tokens=64,
    confirm_completion=False, observation_bytes=120, max_command_s=20, echo=False,
)  # fmt: skip
HABIT = HabitConfig(blind_error_rate=1.0, other_error_rate=1.0, early_stop_rate=0.0)
SINGLE = PoolConfig(max_subtasks=1)


@pytest_asyncio.fixture
async def backend(tmp_path: Path) -> AsyncIterator[SandboxBackend]:
    opened = await open_backend(LIMITS, tmp_path / "boxes")
    yield opened
    await opened.close()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> BpeTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    return train_tokenizer(corpus(PoolConfig(), seed=1), vocab_size=768, folder=folder, separator="")


def three_of_each_family() -> list[GeneratedTask]:
    tasks: dict[str, list[GeneratedTask]] = {name: [] for name in FAMILIES}
    for task in islice(generate(SINGLE, Split.TRAIN, seed=1), 400):
        tasks[task.families[0]].append(task)
    return [task for of_family in tasks.values() for task in of_family[:3]]


async def outcomes(
    tasks: list[GeneratedTask], habits: HabitConfig, backend: SandboxBackend, tokenizer: BpeTokenizer
) -> Mapping[str, Demonstration]:
    run = await collect(
        tasks, backend, habits=habits, seed=0, tokenizer=tokenizer, harness=TERSE, sandbox=LIMITS, workers=2
    )
    return {demonstration.task_id: demonstration for demonstration in run}


@pytest.mark.parametrize("of_each", [1, pytest.param(3, marks=pytest.mark.nightly)])
async def test_every_familys_right_way_passes_and_its_habit_fails_something(
    backend: SandboxBackend, tokenizer: BpeTokenizer, of_each: int
) -> None:
    tasks = three_of_each_family()[:: 3 // of_each]
    assert len(tasks) == of_each * len(FAMILIES)
    right = await outcomes(tasks, ORACLE, backend, tokenizer)
    wrong = await outcomes(tasks, HABIT, backend, tokenizer)
    for task in tasks:
        assert right[task.task_id].passed, (task.instruction, right[task.task_id].report)
        assert list(right[task.task_id].report.assertions) == [name for name, _ in task.checks]
        assert wrong[task.task_id].report.outcome is False, (task.instruction, wrong[task.task_id].report)


async def test_reference_solutions_pass_and_doing_nothing_never_does(backend: SandboxBackend, tmp_path: Path) -> None:
    """Through the directory that was written, the way a trial is graded."""
    for generated in three_of_each_family()[::3]:
        folder = tmp_path / "pool" / generated.task_id
        write_task(generated, folder)
        task = load_task(folder)
        box = await backend.start(task.sandbox_spec(LIMITS))
        untouched = (await verify_result(box, task, timeout_s=10)).report
        solved = await box.exec(["/bin/bash"], timeout_s=10, stdin=(folder / "solution" / "solve.sh").read_bytes())
        done = await verify_result(box, task, timeout_s=10)
        after = done.report
        await box.stop()
        assert done.facts()["tampering"] == done.facts()["left_running"] == [], task.instruction
        assert untouched.outcome is False, task.instruction
        assert solved.exit_code == 0, (task.instruction, solved.output)
        assert set(after.assertions.values()) == {AssertionOutcome.PASSED}, (task.instruction, after)
        assert list(after.assertions) == list(task.ref.assertion_ids)


async def test_git_in_a_verifier_runs_nothing_of_the_agent_s(backend: SandboxBackend, tmp_path: Path) -> None:
    # A repository that lacks a blob has git fetch it, by a command of the repository's own choice.
    checks = files("components.pool").joinpath("checks.sh").read_text()
    (tmp_path / "test.sh").write_text(f"#!/bin/bash\n{checks}\ncheck kept commit_holds f x\nfinish\n")
    plant = """
git init -q . && git config user.email a@b && git config user.name n && echo x > f && git add f && git commit -qm one
git config core.repositoryformatversion 1; git config extensions.partialClone o; git config remote.o.promisor true
git config remote.o.url 'ext::sh -c kill% -9% -1'; git config protocol.ext.allow always
rm -rf .git/objects/$(git rev-parse HEAD:f | cut -c 1-2)
"""
    box = await backend.start(SandboxSpec(memory_mb=64, disk_mb=8))
    await box.exec(["/bin/bash", "-c", plant], timeout_s=10)
    done = await verify_result(box, PlainTask(tmp_path), timeout_s=10)
    await box.stop()
    assert done.report.assertions == {"kept": AssertionOutcome.FAILED}
