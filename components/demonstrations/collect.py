"""Runs demonstrations in real boxes and renders them as training samples.

Invariants: a demonstration goes through the very loop, terminal and rendering of a rollout, so that its tokens are
those a rollout would have had; it starts in the state its task's environment describes; it is graded by the task's own
verifier, in the same box: a script that does not know the verifier does not forge it.

A box is used for many tasks. Between two of them its working directory is emptied; the scripts change nothing else.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from components.config import HabitConfig, HarnessConfig, SandboxConfig
from components.demonstrations.demonstrator import Demonstrator
from components.errors import FaultCause, InfraFault, StopReason
from components.gateway import ChatTemplate, ChatTokenizer, Trajectory
from components.harness import Progress, ScriptedPolicy, dismiss, template_for, wording_for
from components.harness.loop import AgentLoop, Clock
from components.pool import GeneratedTask
from components.pool.directory import ENVIRONMENT, VERIFIER_TIMEOUT_S, WORKDIR, verifier_script
from components.records import Sample, VerifierReport
from components.reward import parse_report
from components.sandbox import Sandbox, SandboxBackend, SandboxSpec, Terminal
from components.tito import stitch

WORKERS = 4
"""Boxes in use at once: enough to keep two cores busy while each waits for its shell."""

_EMPTY = f"cd {WORKDIR}; rm -rf * .git\n"
_SETTLE_S = 10.0
"""Deadline of the emptying between two tasks; it takes milliseconds."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One demonstration, run. `samples` is one unless the loop ever rewrote history."""

    task_id: str
    samples: Sequence[Sample]
    stop: StopReason
    report: VerifierReport

    @property
    def passed(self) -> bool:
        return self.report.outcome is True


async def collect(
    tasks: Iterable[GeneratedTask],
    backend: SandboxBackend,
    *,
    habits: HabitConfig,
    seed: int,
    tokenizer: ChatTokenizer,
    harness: HarnessConfig,
    sandbox: SandboxConfig,
    workers: int = WORKERS,
    on_result: Callable[[Demonstration], None] | None = None,
) -> list[Demonstration]:
    """One demonstration a task, in the order of the tasks.

    Raises:
        InfraFault: a box failed.
    """
    stage = _Stage(habits, seed, tokenizer, template_for(tokenizer, harness), harness)
    spec = SandboxSpec.within(sandbox, env=ENVIRONMENT)
    waiting = iter(enumerate(tasks))
    done: dict[int, Demonstration] = {}

    async def work() -> None:
        async for number, demonstration in _in_one_box(backend, spec, stage, waiting):
            done[number] = demonstration
            if on_result is not None:
                on_result(demonstration)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(work())
    except ExceptionGroup as several:
        raise several.exceptions[0] from several
    return [done[number] for number in sorted(done)]


@dataclass(frozen=True, slots=True)
class _Stage:
    """What all demonstrations of one collection share."""

    habits: HabitConfig
    seed: int
    tokenizer: ChatTokenizer
    template: ChatTemplate
    harness: HarnessConfig


async def _in_one_box(
    backend: SandboxBackend, spec: SandboxSpec, stage: _Stage, waiting: Iterator[tuple[int, GeneratedTask]]
) -> AsyncIterator[tuple[int, Demonstration]]:
    """Runs tasks in one box until none is left."""
    box = await backend.start(spec)
    try:
        config = stage.harness
        terminal = await box.terminal(rows=config.rows, columns=config.columns, echo=config.echo)
        for number, task in waiting:
            yield number, await _demonstrate(task, box, terminal, stage)
    finally:
        await dismiss(box)


async def _demonstrate(task: GeneratedTask, box: Sandbox, terminal: Terminal, stage: _Stage) -> Demonstration:
    await _lay_out(task, box, terminal)
    config = stage.harness
    policy = ScriptedPolicy(stage.template, Demonstrator(task, stage.habits, stage.seed))
    loop = AgentLoop(
        trajectory=Trajectory(policy, stage.template),
        terminal=terminal,
        wording=wording_for(config),
        config=config,
        progress=Progress(),
        clock=Clock(),
    )
    stop = await loop.run(task.instruction)
    report = await _grade(task, box)
    samples = stitch(loop.trajectory.turns, stage.tokenizer, trial_id=f"demonstration-{stage.seed}-{task.task_id}")
    return Demonstration(task.task_id, samples, stop, report)


async def _lay_out(task: GeneratedTask, box: Sandbox, terminal: Terminal) -> None:
    """Puts the terminal's shell into an otherwise fresh working directory, with its prompt as the only news."""
    await terminal.new_output()
    await terminal.send(_EMPTY)
    if not await terminal.settle(_SETTLE_S, at_prompt=True):
        raise InfraFault(FaultCause.SANDBOX, f"box {box.id}: the working directory was not emptied in {_SETTLE_S:g} s")
    if task.files:
        await box.put({f"{WORKDIR}/{path}": text.encode() for path, text in task.files.items()})


async def _grade(task: GeneratedTask, box: Sandbox) -> VerifierReport:
    nonce = secrets.token_hex(8)
    result = await box.exec(
        ["/bin/bash", "--norc", "-s"],
        timeout_s=VERIFIER_TIMEOUT_S,
        stdin=verifier_script(task.checks).encode(),
        secret=f"{nonce}\n".encode(),
    )
    return parse_report(result.output.decode("utf-8", "replace"), "assertions.jsonl", nonce=nonce)
