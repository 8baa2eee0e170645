"""Going on, in another process, with trials whose process died.

A trial is deterministic given what its policy answered and what its sandbox told. Both are in its journal, so another
process plays it from the beginning, without drawing a token or typing a key, until its journal ends; from there on it
is alive. Invariants: what was drawn is drawn once, and stands in the trajectory with the ids, log-probs, routing and
version that it was drawn with; a call of a terminal is executed once, whoever asks (`components.sandbox.host`); an
agent that has ended stays so, for the same reason. A trial goes on only where its box lives and nothing was done to it
that its journal does not explain; another starts anew, and why is kept for the ledger.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from components.errors import FaultCause, InfraFault, StopReason
from components.gateway import Policy, Prompt
from components.harness import AgentEnded, RunningTime
from components.records import Float32, Int32, Routing, Sampling
from components.rollout.journal import Event, Journal, Journals, Kept
from components.sandbox.host import HeldBox
from components.tito import Drawn

log = logging.getLogger(__name__)

ANSWER, STOP = "answer", "stop"
BEFORE_CALLS = ("start", "terminal")


@dataclass(frozen=True, slots=True, eq=False)
class Recalled:
    """An answer that an earlier process drew."""

    output_ids: Int32
    logprobs: Float32
    finish_reason: str
    routing: Routing | None
    routing_start: int
    weight_version: int


class Continuation:
    """The journal of one trial, as its sandbox, its policy and its end use it."""

    def __init__(self, journal: Journal, time: RunningTime) -> None:
        self._journal = journal
        self._time = time

    def recall(self, name: str) -> Any | None:
        """See `components.sandbox.host.CallLog`."""
        event = self._recalled(name)
        return None if event is None else event.facts

    def note(self, name: str, answer: Any) -> None:
        """See `components.sandbox.host.CallLog`."""
        self._journal.note(Event(name, self._time.running_s, answer))

    def ended(self, stop: StopReason) -> StopReason:
        """See `components.harness.ending.Ending`."""
        event = self._recalled(STOP)
        if event is not None:
            return StopReason(event.facts)
        self.note(STOP, stop.value)
        return stop

    def close(self) -> None:
        """Nothing more is kept. Idempotent."""
        self._journal.close()

    def answering(self, policy: Policy) -> Policy:
        """A policy whose answers are in the journal."""
        return _Journaled(policy, self)

    def answer(self, prompt: Prompt, sampling: Sampling) -> Recalled | None:
        """What an earlier process drew here.

        Raises:
            InfraFault: it was drawn for other ids, or otherwise.
        """
        event = self._recalled(ANSWER)
        if event is None:
            return None
        facts = event.facts
        if (facts["prompt"], facts["sampling"]) != (_digest(prompt), asdict(sampling)):
            raise InfraFault(FaultCause.STORE, "a trial's journal has an answer to another prompt")
        ids, logprobs = 4 * facts["ids"], 4 * facts["ids"]
        rows = facts["routing"]
        return Recalled(
            np.frombuffer(event.blob[:ids], np.int32),
            np.frombuffer(event.blob[ids : ids + logprobs], np.float32),
            facts["finish_reason"],
            None if rows is None else np.frombuffer(event.blob[ids + logprobs :], rows["dtype"]).reshape(rows["shape"]),
            facts["routing_start"],
            facts["weight_version"],
        )

    def drew(self, prompt: Prompt, sampling: Sampling, drawn: Drawn) -> None:
        """Keeps an answer."""
        rows = drawn.routing
        facts = {
            "prompt": _digest(prompt),
            "sampling": asdict(sampling),
            "ids": len(drawn.output_ids),
            "finish_reason": drawn.finish_reason,
            "routing": None if rows is None else {"dtype": rows.dtype.name, "shape": list(rows.shape)},
            "routing_start": drawn.routing_start,
            "weight_version": drawn.weight_version,
        }
        arrays = [np.asarray(drawn.output_ids, np.int32), np.asarray(drawn.logprobs, np.float32)]
        arrays += [] if rows is None else [np.ascontiguousarray(rows)]
        self._journal.note(Event(ANSWER, self._time.running_s, facts, b"".join(array.tobytes() for array in arrays)))

    def _recalled(self, name: str) -> Event | None:
        if name != STOP and self._journal.next_kind == STOP:
            raise AgentEnded(self.ended(StopReason.AGENT_TIMEOUT))
        event = self._journal.recall(name)
        if event is not None:
            self._time.advance(event.at_s)
        return event


class _Journaled:
    """A policy that answers from a journal for as long as it can, and keeps there what it draws."""

    def __init__(self, policy: Policy, past: Continuation) -> None:
        self._policy = policy
        self._past = past

    async def answer(self, prompt: Prompt, *, sampling: Sampling, max_new_tokens: int) -> Drawn:
        if (known := self._past.answer(prompt, sampling)) is not None:
            return known
        drawn = await self._policy.answer(prompt, sampling=sampling, max_new_tokens=max_new_tokens)
        self._past.drew(prompt, sampling, drawn)
        return drawn


class Interrupted:
    """Trials that were alive when their process died.

    Attributes:
        attempts: which attempt at its task each trial is that can go on, by id.
        lost: why the others cannot, by id.
    """

    def __init__(self, journals: Journals) -> None:
        self.attempts: dict[str, int] = {}
        self.lost: dict[str, str] = {}
        self.gone_on: dict[str, int] = {}
        """Trials that went on in this process, and the turns that they had come to."""
        self._journals = journals
        self._turns: dict[str, int] = {}
        self._boxes: dict[str, str] = {}

    def find(self, boxes: Mapping[str, HeldBox], version: int) -> set[str]:
        """Sorts what earlier processes left.

        Args:
            boxes: those that live, by id.
            version: of the weights that this process draws under first. What was drawn under later ones is of another
                course of the leg.

        Returns:
            The ids of boxes that no trial goes on in.
        """
        for trial_id, kept in self._journals.found().items():
            if cause := _obstacle(kept, boxes, version):
                log.warning("trial %s starts anew: %s", trial_id, cause)
                self.lost[trial_id] = cause
                self._journals.drop(trial_id)
                continue
            self.attempts[trial_id] = kept.header["attempt"]
            self._turns[trial_id] = sum(event.kind == ANSWER for event in kept.events)
            self._boxes[trial_id] = kept.events[0].facts
        return set(boxes) - set(self._boxes.values())

    def note(self, trial_id: str) -> str:
        """What the ledger says of a trial: how it went on, or why it could not; nothing of one that was not alive."""
        if trial_id in self.attempts:
            return f"its job ended: it goes on after turn {self._turns[trial_id]}"
        return f"starts anew: {self.lost[trial_id]}" if trial_id in self.lost else ""

    def open(self, trial_id: str, attempt: int, time: RunningTime) -> Continuation:
        """The journal of a trial that begins, or goes on."""
        if self.attempts.pop(trial_id, None) is not None:
            self.gone_on[trial_id] = self._turns[trial_id]
        return Continuation(self._journals.open(trial_id, {"attempt": attempt}), time)

    def ended(self, trial_id: str) -> None:
        """A trial that need not go on any more."""
        self._journals.drop(trial_id)

    def give_up(self) -> set[str]:
        """Forgets the trials that nobody asked for; the ids of their boxes."""
        given_up, self.attempts = list(self.attempts), {}
        for trial_id in given_up:
            self._journals.drop(trial_id)
        return {self._boxes[trial_id] for trial_id in given_up}


def _obstacle(kept: Kept, boxes: Mapping[str, HeldBox], version: int) -> str:
    """Why a trial cannot go on; nothing where it can."""
    if not kept.events or kept.events[0].kind != "start":
        return "its job ended before it had a box"
    box = boxes.get(kept.events[0].facts)
    if box is None:
        return "its job ended, and its box is gone"
    drawn = [event.facts["weight_version"] for event in kept.events if event.kind == ANSWER]
    if drawn and max(drawn) > version:
        return f"its job ended, and it had drawn under version {max(drawn)}, which is not yet"
    if box.ended and kept.events[-1].kind != STOP:
        return "its job ended, and its agent had been ended, for a reason that is not known"
    calls = sum(event.kind not in (*BEFORE_CALLS, ANSWER, STOP) for event in kept.events)
    known = kept.events[1].facts[0] if len(kept.events) > 1 else None
    had = dict(box.terminals) if known is None else {**box.terminals, known: box.terminals.get(known, -1)}
    if not box.pristine or len(had) != (known is not None) or any(n not in (calls, calls + 1) for n in had.values()):
        return f"its job ended, and its box has had other calls than are known: {calls} are, it had {had}"
    return ""


def _digest(prompt: Prompt) -> int:
    """Names a prompt's ids."""
    return zlib.crc32(np.ascontiguousarray(prompt.ids).tobytes())
