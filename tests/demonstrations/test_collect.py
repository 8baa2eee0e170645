"""Demonstrations in real boxes."""

from collections.abc import AsyncIterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from components.config import CampaignConfig, HabitConfig, load
from components.demonstrations import (
    ORACLE,
    Demonstration,
    Demonstrator,
    collect,
    corpus,
    train_tokenizer,
)
from components.errors import StopReason
from components.gateway import Trajectory
from components.harness import ScriptedPolicy, run_trial, template_for
from components.pool import GeneratedTask, Split, generate, load_task
from components.pool.directory import write_task
from components.records import AssertionOutcome
from components.sandbox import SandboxBackend, open_backend
from components.tito import BpeTokenizer, stitch

CONFIG: CampaignConfig = load("configs/miniature.yaml")
TASKS = list(islice(generate(CONFIG.pool, Split.DEMONSTRATION, seed=1), 200))


@pytest_asyncio.fixture
async def backend(tmp_path: Path) -> AsyncIterator[SandboxBackend]:
    opened = await open_backend(CONFIG.sandbox, tmp_path / "boxes")
    yield opened
    await opened.close()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> BpeTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    return train_tokenizer(corpus(CONFIG.pool, seed=1), vocab_size=768, folder=folder, separator="")


async def run(
    tasks: list[GeneratedTask], habits: HabitConfig, backend: SandboxBackend, tokenizer: BpeTokenizer
) -> list[Demonstration]:
    return await collect(
        tasks,
        backend,
        habits=habits,
        seed=1,
        tokenizer=tokenizer,
        harness=CONFIG.harness,
        sandbox=CONFIG.sandbox,
        workers=3,
    )


async def test_the_oracle_passes_everything_and_fits_the_miniatures_budgets(
    backend: SandboxBackend, tokenizer: BpeTokenizer
) -> None:
    run_ = await run(TASKS[:60], ORACLE, backend, tokenizer)
    assert [demonstration.task_id for demonstration in run_] == [task.task_id for task in TASKS[:60]]
    assert all(demonstration.passed for demonstration in run_)
    assert {demonstration.stop for demonstration in run_} == {StopReason.COMPLETED}
    assert max(len(demonstration.samples[0].tokens) for demonstration in run_) < 400


@pytest.mark.nightly
async def test_habits_bring_the_pass_rates_the_miniature_starts_from(
    backend: SandboxBackend, tokenizer: BpeTokenizer
) -> None:
    """Of 200 trajectories; one standard error is about 3 points."""
    assert CONFIG.base is not None
    base = await run(TASKS, CONFIG.base.demonstrations.habits, backend, tokenizer)
    sft = await run(TASKS, CONFIG.sft.demonstrations.habits, backend, tokenizer)
    rates = [np.mean([demonstration.passed for demonstration in each]) for each in (base, sft)]
    assert 0.06 < rates[0] < 0.25
    assert 0.19 < rates[1] < 0.42
    assert rates[0] < rates[1]
    outcomes = [outcome for each in base for outcome in each.report.assertions.values()]
    assert 0.5 < np.mean([outcome is AssertionOutcome.PASSED for outcome in outcomes]) < 0.75


async def test_a_sample_is_the_rendering_of_a_rollout_with_answers_as_the_loss(
    backend: SandboxBackend, tokenizer: BpeTokenizer
) -> None:
    task = next(task for task in TASKS if task.families == ("find",))
    (demonstration,) = await run([task], ORACLE, backend, tokenizer)
    (sample,) = demonstration.samples
    slots = task.subtasks[0].instance.slots
    target = next(path for path, text in task.files.items() if slots["w"] in text)
    text = tokenizer.decode(sample.tokens.tolist())
    search, move = f"mkdir {slots['d']}; grep -sl {slots['w']} *", f"mv {target} {slots['d']}"
    plan = f"1:locate {slots['w']} then move {slots['d']}"
    head = "<|im_start|>assistant\n"

    def answer(command: str) -> str:
        return (
            f'{{"analysis":"step 1/1","plan":"{plan}","commands":[{{"keystrokes":"{command}\\n","duration":0.1}}],'
            '"task_complete":false}<|im_end|>'
        )

    last = '{"analysis":"1/1 done","plan":"stop","commands":[],"task_complete":true}<|im_end|>'
    assert text == (
        f"<|im_start|>user\n{plan}\n$ <|im_end|>{head}{answer(search)}"
        f"<|im_start|>user\n{target}\n$ <|im_end|>{head}{answer(move)}"
        f"<|im_start|>user\n$ <|im_end|>{head}{last}"
    )
    masked = tokenizer.decode(sample.tokens[sample.loss_mask].tolist())
    assert masked == answer(search) + answer(move) + last
    assert tokenizer.encode(text) == sample.tokens.tolist()


async def test_one_box_serves_many_tasks_and_none_sees_another(
    backend: SandboxBackend, tokenizer: BpeTokenizer
) -> None:
    """The same task before and after others gives the same tokens."""
    task = next(task for task in TASKS if "archive" in task.families and "commit" in task.families)
    again = [task, *TASKS[:10], task, task]
    run_ = await collect(
        again,
        backend,
        habits=ORACLE,
        seed=1,
        tokenizer=tokenizer,
        harness=CONFIG.harness,
        sandbox=CONFIG.sandbox,
        workers=1,
    )
    same = [run_[0], run_[11], run_[12]]
    assert all(demonstration.passed for demonstration in same)
    assert len({demonstration.samples[0].tokens.tobytes() for demonstration in same}) == 1


async def test_a_demonstration_has_the_tokens_of_a_trial_of_the_same_script(
    backend: SandboxBackend, tokenizer: BpeTokenizer, tmp_path: Path
) -> None:
    """A reused box with files put into it, against a fresh box built from the task's directory."""
    assert CONFIG.base is not None
    habits = CONFIG.base.demonstrations.habits
    tasks = TASKS[:8]
    demonstrations = await run(tasks, habits, backend, tokenizer)
    for generated, demonstration in zip(tasks, demonstrations, strict=True):
        folder = tmp_path / "pool" / generated.task_id
        write_task(generated, folder)
        template = template_for(tokenizer, CONFIG.harness)
        policy = ScriptedPolicy(template, Demonstrator(generated, habits, 1))
        trial = await run_trial(
            load_task(folder),
            trial_id=generated.task_id,
            backend=backend,
            trajectory=Trajectory(policy, template),
            config=CONFIG.harness,
            sandbox=CONFIG.sandbox,
            agent_timeout_s=30,
            verifier_timeout_s=30,
        )
        (sample,) = stitch(trial.turns, tokenizer)
        assert tokenizer.decode(sample.tokens.tolist()) == tokenizer.decode(demonstration.samples[0].tokens.tolist())
        assert sample.loss_mask.tolist() == demonstration.samples[0].loss_mask.tolist()
        assert trial.report is not None
        assert dict(trial.report.assertions) == dict(demonstration.report.assertions)
