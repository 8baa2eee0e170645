"""Grown tasks as the miniature's agent meets them: turn by turn, in its terminal, in its tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import pytest

from components.config import PoolConfig, SynthesisConfig, load
from components.demonstrations import corpus, train_tokenizer
from components.demonstrations.demonstrator import answer_text
from components.errors import StopReason
from components.gateway import Trajectory
from components.harness import Progress, ScriptedPolicy, dismiss, template_for, verify_result, wording_for
from components.harness.loop import AgentLoop, Clock
from components.pool import Pool, Task, read_outline
from components.pool.outline import Step
from components.sandbox import SandboxBackend
from components.synthesis import World, open_run, synthesize
from components.tito import BpeTokenizer
from tests.synthesis.conftest import LIMITS, root_pool

MINIATURE = load("configs/miniature.yaml")
HARNESS = MINIATURE.harness.model_copy(update={"max_turns": 40, "max_context_tokens": 2048})


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> BpeTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    return train_tokenizer(corpus(PoolConfig(), seed=1), vocab_size=768, folder=folder, separator="")


class Typist:
    """Types the reference solution, one step a turn."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps

    def __call__(self, turn: int, observation: str) -> str:
        total = len(self._steps)
        if turn >= total:
            return answer_text(f"{total}/{total} done", "stop", (), done=True)
        step = self._steps[turn]
        return answer_text(f"step {turn + 1}/{total}", f"{turn + 1}:{step.wording}", (step.command,), done=False)


async def typed(task: Task, backend: SandboxBackend, tokenizer: BpeTokenizer) -> tuple[int, int]:
    """(turns, tokens of the trajectory) of a task that is solved by typing its solution."""
    template = template_for(tokenizer, HARNESS)
    steps = read_outline(task.path, task.ref.pass_to_pass).steps
    box = await backend.start(task.sandbox_spec(LIMITS))
    try:
        terminal = await box.terminal(rows=HARNESS.rows, columns=HARNESS.columns, echo=HARNESS.echo)
        loop = AgentLoop(
            trajectory=Trajectory(ScriptedPolicy(template, Typist(steps)), template),
            terminal=terminal,
            wording=wording_for(HARNESS),
            config=HARNESS,
            progress=Progress(),
            clock=Clock(),
        )
        assert await loop.run(task.instruction) is StopReason.COMPLETED
        assert (await verify_result(box, task, timeout_s=10)).report.outcome is True, task.instruction
        last = loop.trajectory.turns[-1]
        return len(loop.trajectory.turns) - 1, len(last.prompt_ids) + len(last.completion_ids)
    finally:
        await dismiss(box)


@pytest.mark.nightly
@pytest.mark.timeout(900)
async def test_grown_tasks_are_solved_in_the_turns_that_were_counted_and_fit_twice_the_miniatures_context(
    backend: SandboxBackend, tokenizer: BpeTokenizer, tmp_path: Path
) -> None:
    config = SynthesisConfig(rounds=3, tasks=12)
    run = open_run(root_pool(tmp_path / "pool", 40).folder, tmp_path / "grown", config, 1)
    reports = await synthesize(run, tmp_path / "grown", World(backend, LIMITS, PoolConfig(), 4), config, seed=1)
    grown = Pool(tmp_path / "grown")
    lengths: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for ref in grown.refs:
        lengths[ref.round].append(await typed(grown.load(ref.task_id), backend, tokenizer))
    for report in reports:
        assert report.after is not None
        assert median(turns for turns, _ in lengths[str(report.round)]) == report.after.turns
    tokens = [tokens for each in lengths.values() for _, tokens in each]
    assert max(tokens) <= 2 * MINIATURE.harness.max_context_tokens
    assert sum(count <= MINIATURE.harness.max_context_tokens for count in tokens) >= len(tokens) // 2
