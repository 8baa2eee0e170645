"""What flows between the stages: frozen values, arrays in numpy.

Invariants, checked at construction so that a broken record cannot travel: a turn has one log-prob per sampled id; a
sample's mask, log-probs and routing rows fit its tokens; log-probs are 0 exactly where nothing was sampled.

Shape suffixes: N tokens of a stream, R = N-1 routing rows (row j is the routing used to predict token j+1), L MoE
layers, K experts a token, P prompt ids, A sampled ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.errors import InfraFault, RecordError, StopReason

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]
Bool = NDArray[np.bool_]
Routing = NDArray[np.uint8] | NDArray[np.uint16]


class AssertionOutcome(StrEnum):
    """What the verifier said of one assertion."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"
    NOT_RUN = "not_run"


VERDICT = "verdict"
"""The one assertion of a task whose verifier gives a verdict and names no assertion."""


@dataclass(frozen=True, slots=True)
class TaskRef:
    """Names one version of one task of a pool.

    `fail_to_pass` lists the assertions that fail on the untouched environment and pass under the oracle; `pass_to_pass`
    those that already pass untouched. Both are measured by curation and are empty before it.

    `lineage` names the tasks that it descends from, oldest first, one a generation: its length is the task's depth. A
    task that was synthesized has `parents` (the first is the one that it continues), the `operator` that made it of
    them, and the `round` it was made in; for others these are empty.
    """

    pool_id: str
    task_id: str
    digest: str
    category: str
    lineage: tuple[str, ...] = ()
    assertion_ids: tuple[str, ...] = ()
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    difficulty: str = "unknown"
    parents: tuple[str, ...] = ()
    operator: str = ""
    round: str = ""

    @property
    def binary_only(self) -> bool:
        """Whether curation saw a verdict alone: such a task earns 0 or 1."""
        return self.assertion_ids == (VERDICT,)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a turn was sampled. Log-probs on both sides are taken at `temperature`."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One call of the sampler: what it was given, what it drew, and with which experts.

    Attributes:
        prompt_ids: int32[P], the exact ids the sampler was conditioned on.
        completion_ids: int32[A], the ids it drew.
        logprobs: float32[A], log-probability of each drawn id at the sampling temperature.
        routing: uint8 or uint16[P+A-1, L, K], or None when capture was off.
        weight_version: version of the weights that drew every id of this turn.
        finish_reason: "stop", "length" or "abort".
        sampling: parameters of the draw.
        opens: its recorder knows that the prompt does not go on from the turn listed before it: history was rewritten,
            or another branch begins. Where it is False the ids decide.

    Raises:
        RecordError: lengths disagree. The turn is rejected; nothing is padded.
    """

    prompt_ids: Int32
    completion_ids: Int32
    logprobs: Float32
    routing: Routing | None
    weight_version: int
    finish_reason: str
    sampling: Sampling = Sampling()
    opens: bool = False

    def __post_init__(self) -> None:
        if len(self.logprobs) != len(self.completion_ids):
            raise RecordError(f"turn has {len(self.completion_ids)} sampled ids and {len(self.logprobs)} log-probs")
        rows = len(self.prompt_ids) + len(self.completion_ids) - 1
        if self.routing is not None and (self.routing.ndim != 3 or len(self.routing) != rows):
            raise RecordError(f"turn of {rows + 1} ids needs routing [{rows}, L, K], got {list(self.routing.shape)}")


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One training stream: a whole trajectory, or a chunk of one whose history was rewritten.

    Attributes:
        tokens: int32[N].
        loss_mask: bool[N], True exactly where the id was sampled by the policy.
        logprobs: float32[N], the sampler's log-prob where the mask is set, 0 elsewhere.
        routing: uint8 or uint16[N-1, L, K], or None.
        routing_checksum: `routing.checksum` of the rows as they were stitched from their captures; compared before they
            are replayed. None where there is no routing.
        trial_id: the trial this stream belongs to; all its chunks share one reward.
        chunk: index of this chunk within the trial.
        boundaries: how many turn boundaries were strict, normalized, retokenized, split.
        weight_version: version of the weights that sampled every masked id.

    Raises:
        RecordError: a length or the mask/log-prob identity is broken.
    """

    tokens: Int32
    loss_mask: Bool
    logprobs: Float32
    routing: Routing | None
    trial_id: str
    chunk: int = 0
    boundaries: Mapping[str, int] = field(default_factory=dict)
    weight_version: int = 0
    routing_checksum: int | None = None

    def __post_init__(self) -> None:
        n = len(self.tokens)
        if len(self.loss_mask) != n or len(self.logprobs) != n:
            lengths = f"{n} tokens, {len(self.loss_mask)} mask, {len(self.logprobs)} log-probs"
            raise RecordError(f"sample {self.trial_id}/{self.chunk}: {lengths}")
        if n and self.loss_mask[0]:
            raise RecordError(f"sample {self.trial_id}/{self.chunk}: the first token has nothing to condition on")
        if np.any(self.logprobs[~self.loss_mask]):
            raise RecordError(f"sample {self.trial_id}/{self.chunk}: log-prob on a token that was not sampled")
        if self.routing is not None and (self.routing.ndim != 3 or len(self.routing) != n - 1):
            raise RecordError(
                f"sample {self.trial_id}/{self.chunk}: {n} tokens need {n - 1} routing rows, got {self.routing.shape}"
            )


@dataclass(frozen=True, slots=True)
class VerifierReport:
    """What the verifier said, per assertion.

    Attributes:
        assertions: outcome of each assertion id; empty when the verifier reports only a verdict.
        outcome: the binary verdict (every assertion passed), or None when no verdict was written.
        source: where it was read from, e.g. "assertions.jsonl", "junit".
        parse_cause: why the report is missing or unreadable; None when it was read.
        number: what the verifier wrote for Harbor, of which `outcome` only says whether it is 1; None where it wrote
            no number, or one that is not believed.
    """

    assertions: Mapping[str, AssertionOutcome]
    outcome: bool | None
    source: str
    parse_cause: str | None = None
    number: float | None = None


@dataclass(frozen=True, slots=True)
class Reward:
    """A scalar reward and how it came about (paper Eq 20, Algorithm 2).

    Attributes:
        value: the reward that is trained on.
        passed: assertions that earned credit.
        total: assertions that could have earned credit.
        outcome: binary verdict b.
        fallback: cause why `value` is b instead of P/S; None when the report was used.
    """

    value: float
    passed: int
    total: int
    outcome: bool
    fallback: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """One attempt at one task. Exactly one of `report` and `fault` is set once it has ended.

    `trial_id` is a digest of (campaign, step, task, attempt): a retry of the same work finds the same id.
    """

    trial_id: str
    task: TaskRef
    turns: Sequence[Turn]
    stop: StopReason | None
    report: VerifierReport | None
    fault: InfraFault | None
    timings_s: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.report is None) == (self.fault is None):
            raise RecordError(f"trial {self.trial_id} must end with a report or a fault, not both or neither")
