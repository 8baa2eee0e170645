"""Trials without sandboxes, for tests of scheduling and files."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from components.config import RolloutConfig
from components.errors import FaultCause, InfraFault, StopReason
from components.records import AssertionOutcome, Reward, Sample, TaskRef, Trial, Turn, VerifierReport
from components.rollout import Barrier, Rollout, StepResult
from components.routing import checksum


@dataclass(frozen=True)
class PlainTask:
    ref: TaskRef


def tasks(count: int, category: str = "files") -> list[PlainTask]:
    return [PlainTask(TaskRef("pool", f"{category}-{i}", "d", category, difficulty="easy")) for i in range(count)]


def config(**changes) -> RolloutConfig:
    settings = {"batch": 8, "oversample": 0.25, "concurrency": 64, "starts_per_s": 1e6, "agent_timeout_s": 5}
    settings |= {"verifier_timeout_s": 5, "remote_timeout_s": 10, "tail": "cancel"}
    return RolloutConfig(**(settings | changes))


async def run_step(run_trial, supply: list[PlainTask], settings: RolloutConfig, group: int = 1) -> StepResult:
    """One step by itself."""
    rollout = Rollout(campaign="c", config=settings, run_trial=run_trial, barrier=Barrier(), group=group)
    return await rollout.step(2, 1, supply)


def report(passed: bool = True) -> VerifierReport:
    outcome = AssertionOutcome.PASSED if passed else AssertionOutcome.FAILED
    return VerifierReport({"a": AssertionOutcome.PASSED, "b": outcome}, passed, "assertions.jsonl")


def turns(count: int = 2, routing: bool = False) -> list[Turn]:
    """Turns of one growing stream: each prompt is the stream before it and two ids of context.

    Routing is of two layers, two of eight experts.
    """
    made, stream = [], list(range(10, 15))
    for turn in range(count):
        prompt = np.asarray(stream, np.int32)
        ids = np.asarray([100 + turn, 200 + turn, 1], np.int32)
        rows = np.tile(np.uint8([turn % 4, 4 + turn % 4]), (len(prompt) + 2, 2, 1)) if routing else None
        made.append(Turn(prompt, ids, np.asarray([-0.5, -1.5, -0.25], np.float32), rows, 3, "stop"))
        stream += [*ids.tolist(), 7, 8]
    return made


def graded(trial_id: str, task: TaskRef, *, passed: bool = True, count: int = 2, routing: bool = False) -> Trial:
    made = turns(count, routing)
    return Trial(trial_id, task, made, StopReason.COMPLETED, report(passed), None, {"sample": 0.5}, {"commands": 1})


def faulted(trial_id: str, task: TaskRef, cause: FaultCause = FaultCause.SANDBOX) -> Trial:
    return Trial(trial_id, task, (), None, None, InfraFault(cause, "gone"))


def sample_of(trial: Trial) -> Sample:
    last = trial.turns[-1]
    tokens = np.concatenate([last.prompt_ids, last.completion_ids])
    mask = np.zeros(len(tokens), bool)
    mask[len(last.prompt_ids) :] = True
    logprobs = np.where(mask, -0.5, 0).astype(np.float32)
    routing = np.arange((len(tokens) - 1) * 4, dtype=np.uint8).reshape(-1, 2, 2)
    return Sample(tokens, mask, logprobs, routing, trial.trial_id, 0, {"strict": 1}, 3, checksum(routing))


def reward(value: float = 0.1, passed: bool = True) -> Reward:
    return Reward(value, 2, 2, passed)
