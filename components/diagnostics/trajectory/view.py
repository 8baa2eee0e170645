"""A trial put together for a person: what it saw, what it typed, and what became of every token.

Invariants: every sampled token stands in exactly one piece of its turn, in its order; a figure that was not measured is
None. Text is as it was decoded: whoever shows it must escape it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from components.diagnostics.trajectory.stored import Stored
from components.errors import StopReason
from components.harness import parse_response
from components.records import AssertionOutcome, Sample, Turn
from components.rollout import TokenFigures
from components.tito import Tokenizer, boundaries

MAX_CHARACTER_TOKENS = 4
"""A character of UTF-8 has four bytes: it is spread over no more tokens."""

WHY: Mapping[StopReason, str] = {
    StopReason.COMPLETED: "the policy said twice, or once where once is enough, that the task is complete",
    StopReason.TURN_LIMIT: "it had no turn left (`harness.max_turns`)",
    StopReason.TOKEN_LIMIT: "its history had no room for another answer (`harness.max_context_tokens`)",
    StopReason.AGENT_TIMEOUT: "the agent's time was over",
    StopReason.PARSE_FAILURES: "too many answers in a row could not be read (`harness.max_parse_failures`)",
    StopReason.GAVE_UP: "the policy left its terminal",
    StopReason.COMPACTION_FAILED: "its history could not be rewritten",
}


@dataclass(frozen=True, slots=True)
class Piece:
    """Sampled tokens that make up whole characters: nearly always one.

    Attributes:
        ids: of its tokens.
        logprob: the sampler's, summed over its tokens, nats.
        trainer: the trainer's at equal weights; None where it was not stored.
        advantage, value: means over its tokens; None where not stored.
    """

    text: str
    ids: tuple[int, ...]
    logprob: float
    trainer: float | None
    advantage: float | None
    value: float | None

    @property
    def gap(self) -> float | None:
        """|log-prob gap| between sampler and trainer."""
        return None if self.trainer is None else abs(self.trainer - self.logprob)


@dataclass(frozen=True, slots=True)
class ViewedTurn:
    """One turn.

    Attributes:
        case: how it joins the turn before it: a boundary case, or None for the first.
        shown: what was put before the policy since then; the whole prompt where history was rewritten.
        pieces: what it answered.
        trained: whether its tokens have loss; None where no stream is stored.
        chunk: the stream that it is trained in.
        keystrokes: what was typed, a command each; none where the answer could not be read.
        problem: why an answer was not executed.
    """

    number: int
    case: str | None
    shown: str
    pieces: tuple[Piece, ...]
    trained: bool | None
    chunk: int | None
    keystrokes: tuple[str, ...]
    problem: str | None
    prompt_tokens: int
    sampled_tokens: int
    finish_reason: str
    weight_version: int


@dataclass(frozen=True, slots=True)
class View:
    """One trial. `facts` and `timings_s` are the trial's; `why` tells its end in words."""

    trial_id: str
    campaign: str
    key: str
    step: int
    task_id: str
    category: str
    difficulty: str
    stop: str
    why: str
    reward: float
    passed: int
    total: int
    resolved: bool
    fallback: str | None
    assertions: tuple[tuple[str, AssertionOutcome, str], ...]
    verdict_source: str
    turns: tuple[ViewedTurn, ...]
    boundaries: Mapping[str, int]
    chunks: int
    tampering: tuple[str, ...]
    left_running: tuple[str, ...]
    facts: Mapping[str, Any]
    timings_s: Mapping[str, float]

    @property
    def judged(self) -> bool:
        """Whether the trainer's log-probs are stored for any token."""
        return any(piece.trainer is not None for turn in self.turns for piece in turn.pieces)


def view(found: Stored, tokenizer: Tokenizer) -> View:
    """What a person reads of a stored trial."""
    trial, reward, report = found.trial, found.reward, found.trial.report
    cases: dict[str, int] = {}
    for sample in found.samples:
        for case, count in sample.boundaries.items():
            cases[case] = cases.get(case, 0) + count
    facts = dict(trial.facts)
    return View(
        trial_id=trial.trial_id,
        campaign=found.campaign,
        key=found.key,
        step=found.row.step,
        task_id=trial.task.task_id,
        category=trial.task.category,
        difficulty=trial.task.difficulty,
        stop="not recorded" if trial.stop is None else trial.stop,
        why="" if trial.stop is None else WHY[trial.stop],
        reward=reward.value,
        passed=reward.passed,
        total=reward.total,
        resolved=reward.outcome,
        fallback=reward.fallback,
        assertions=() if report is None else tuple(_assertions(found)),
        verdict_source="" if report is None else report.source,
        turns=tuple(_turns(found, tokenizer)),
        boundaries=cases,
        chunks=len(found.samples),
        tampering=tuple(map(str, facts.pop("tampering", ()))),
        left_running=tuple(map(str, facts.pop("left_running", ()))),
        facts=facts,
        timings_s=trial.timings_s,
    )


def _assertions(found: Stored) -> Iterator[tuple[str, AssertionOutcome, str]]:
    """Name, outcome, and what an assertion is to its task; those first that did not pass."""
    trial = found.trial
    assert trial.report is not None
    kinds = dict.fromkeys(trial.task.pass_to_pass, "passed untouched") | dict.fromkeys(
        trial.task.fail_to_pass, "failed untouched"
    )
    said = sorted(trial.report.assertions.items(), key=lambda item: (item[1] is AssertionOutcome.PASSED, item[0]))
    for name, outcome in said:
        yield name, outcome, kinds.get(name, "")


def _turns(found: Stored, tokenizer: Tokenizer) -> Iterator[ViewedTurn]:
    turns = found.trial.turns
    joints = boundaries(turns, tokenizer)
    places = _places(turns, found.samples)
    for number, (turn, joint, place) in enumerate(zip(turns, joints, places, strict=True)):
        cut = 0 if joint is None else joint.cut
        keystrokes, problem = _typed(turn, tokenizer)
        yield ViewedTurn(
            number=number,
            case=None if joint is None else joint.case,
            shown=tokenizer.decode(turn.prompt_ids[cut:].tolist()),
            pieces=tuple(_pieces(turn, _slice(found, place, len(turn.completion_ids)), tokenizer)),
            trained=None if not found.samples else place is not None,
            chunk=None if place is None else found.samples[place[0]].chunk,
            keystrokes=keystrokes,
            problem=problem,
            prompt_tokens=len(turn.prompt_ids),
            sampled_tokens=len(turn.completion_ids),
            finish_reason=turn.finish_reason,
            weight_version=turn.weight_version,
        )


def _typed(turn: Turn, tokenizer: Tokenizer) -> tuple[tuple[str, ...], str | None]:
    """The keystrokes of an answer, or why it has none."""
    if turn.finish_reason == "length":
        return (), f"cut at {len(turn.completion_ids)} tokens: nothing was executed"
    parsed = parse_response(tokenizer.decode(turn.completion_ids.tolist()))
    return tuple(command.keystrokes for command in parsed.commands), parsed.error


def _places(turns: Sequence[Turn], samples: Sequence[Sample]) -> list[tuple[int, int] | None]:
    """Where each turn is trained: the index of its stream, and how many loss positions stand before it there.

    A node that two branches share is trained where it comes first; its second listing has no place.
    """
    losses = [(sample.tokens[sample.loss_mask], sample.logprobs[sample.loss_mask]) for sample in samples]
    read = [0] * len(samples)

    def place(turn: Turn) -> tuple[int, int] | None:
        size = len(turn.completion_ids)
        for index, (tokens, logprobs) in enumerate(losses):
            at = read[index]
            same = np.array_equal(tokens[at : at + size], turn.completion_ids)
            if size and same and np.array_equal(logprobs[at : at + size], turn.logprobs):
                read[index] = at + size
                return index, at
        return None

    return [place(turn) for turn in turns]


def _slice(found: Stored, place: tuple[int, int] | None, size: int) -> TokenFigures | None:
    """What the trainer said of one turn's tokens."""
    said = None if place is None else found.figures.get(found.samples[place[0]].chunk)
    if place is None or said is None:
        return None
    at = slice(place[1], place[1] + size)
    values = None if said.values is None else said.values[at]
    return TokenFigures(said.behaviour[at], said.current[at], said.advantages[at], values)


def _pieces(turn: Turn, said: TokenFigures | None, tokenizer: Tokenizer) -> Iterator[Piece]:
    ids = turn.completion_ids.tolist()
    start = 0
    while start < len(ids):
        end = _whole(ids, start, tokenizer)
        yield Piece(
            text=tokenizer.decode(ids[start:end]),
            ids=tuple(ids[start:end]),
            logprob=float(turn.logprobs[start:end].sum()),
            trainer=None if said is None else float(said.behaviour[start:end].sum()),
            advantage=None if said is None else float(said.advantages[start:end].mean()),
            value=None if said is None or said.values is None else float(said.values[start:end].mean()),
        )
        start = end


def _whole(ids: Sequence[int], start: int, tokenizer: Tokenizer) -> int:
    """The end of the fewest tokens from `start` on that are whole characters; of one where no few of them are."""
    for end in range(start + 1, min(len(ids), start + MAX_CHARACTER_TOKENS) + 1):
        if "\ufffd" not in tokenizer.decode(ids[start:end]):
            return end
    return start + 1
