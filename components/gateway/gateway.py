"""Trials in front of a sampler: opens, finds and closes their trajectories, and answers requests on them.

Invariant: no request holds up the others. One that cannot fit the context is refused by its size, before it is encoded;
what is long and may fit is encoded in a thread.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from dataclasses import dataclass, field

from components.errors import InfraFault, RecordError
from components.gateway.policy import SamplerPolicy
from components.gateway.request import ChatRequest, Refusal, read_sampling
from components.gateway.template import ChatTemplate
from components.gateway.trajectory import Answer, Prompt, Trajectory
from components.records import Sampling
from components.sampler import Sampler

log = logging.getLogger(__name__)

AT_ONCE_BYTES = 32 * 1024
"""What is encoded in the event loop: some ten milliseconds of it."""

TRIAL_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """An open trial. `sampling` None leaves it to the client."""

    trajectory: Trajectory
    sampling: Sampling | None


@dataclass(slots=True, eq=False)
class Gateway:
    """Use within one event loop.

    Attributes:
        model: the name that clients ask for.
        context_tokens: prompt and answer together hold at most this many tokens.
        capture: whether the experts of every position are recorded.
        reasoning: whether `</think>` ends reasoning that is shown apart from content (`read_answer`).
        overrule: draw as the trial says when a client asks for something else, instead of refusing it.
        open_unknown: a request opens the trial that it names.
        max_unknown: how many trials that requests opened are open at most. Beyond it, the one that has been idle
            longest is forgotten, if it has been for `unknown_idle_s`; else the request is refused.
        sampling: of trials that a request opens; None leaves it to the client.
        max_answer_tokens: no answer has more, whatever its client asks for; None where only the context ends it.
    """

    sampler: Sampler
    template: ChatTemplate
    model: str
    context_tokens: int
    capture: bool = True
    reasoning: bool = False
    overrule: bool = False
    open_unknown: bool = False
    max_unknown: int = 4_096
    unknown_idle_s: float = 900.0
    sampling: Sampling | None = None
    max_answer_tokens: int | None = None
    _trials: dict[str, Trial] = field(default_factory=dict, init=False)
    _unknown: dict[str, float] = field(default_factory=dict, init=False)
    """When each trial that a request opened was last asked for, the one that is idle longest first."""

    def open(self, trial_id: str, sampling: Sampling | None = None) -> Trajectory:
        """Opens a trial. With `sampling` all its answers are drawn alike, as training needs it.

        Raises:
            Refusal: the id is taken, or no id.
        """
        if not TRIAL_ID.fullmatch(trial_id):
            raise Refusal(f"a trial id must match {TRIAL_ID.pattern}, got {trial_id!r}", param="trial_id")
        if trial_id in self._trials:
            raise Refusal(f"trial {trial_id} is open already", status=409, param="trial_id", code="duplicate_trial")
        stops = self.template.stop_token_ids
        policy = SamplerPolicy(self.sampler, stop_token_ids=stops, session_id=trial_id, capture=self.capture)
        trajectory = Trajectory(policy, self.template, reasoning=self.reasoning)
        self._trials[trial_id] = Trial(trajectory, sampling)
        return trajectory

    def trial(self, trial_id: str) -> Trial:
        """The open trial of this id.

        Raises:
            Refusal: there is none.
        """
        if trial_id not in self._trials:
            raise Refusal(
                f"unknown trial {trial_id!r}: open it first", status=404, param="trial_id", code="unknown_trial"
            )
        return self._trials[trial_id]

    def close(self, trial_id: str) -> Trajectory:
        """Forgets a trial; what it recorded is the caller's.

        Raises:
            Refusal: there is none.
        """
        trajectory = self.trial(trial_id).trajectory
        del self._trials[trial_id]
        self._unknown.pop(trial_id, None)
        return trajectory

    async def answer(self, trial_id: str, request: ChatRequest) -> tuple[Trajectory, Answer]:
        """Draws and records the answer to a request.

        Raises:
            Refusal: the request cannot be answered, or the sampler failed (503). Nothing is recorded.
        """
        if request.model != self.model:
            message = f"The model {request.model!r} does not exist; this gateway serves {self.model!r}"
            raise Refusal(message, status=404, param="model", code="model_not_found")
        if self.open_unknown and trial_id not in self._trials:
            self._open_unknown(trial_id)
        trial = self.trial(trial_id)
        if self._unknown.pop(trial_id, None) is not None:
            self._unknown[trial_id] = time.monotonic()
        sampling = self._sampling(trial, request)
        prompt = await self._prompt(trial.trajectory, request)
        try:
            answer = await trial.trajectory.draw(prompt, max_new_tokens=self._room(prompt, request), sampling=sampling)
        except InfraFault as fault:
            log.warning("trial %s: %s", trial_id, fault)
            raise Refusal(str(fault), status=503, kind="server_error", code=fault.cause.value) from fault
        return trial.trajectory, answer

    def _open_unknown(self, trial_id: str) -> None:
        if len(self._unknown) >= self.max_unknown:
            idle, since = next(iter(self._unknown.items()))
            if time.monotonic() - since < self.unknown_idle_s:
                message = f"{len(self._unknown)} trials are open that requests opened: close those that have ended"
                raise Refusal(message, status=429, kind="rate_limit_error", param="trial_id", code="too_many_trials")
            log.warning("trial %s is forgotten: nobody closed it, and %d others are open", idle, len(self._unknown) - 1)
            self.close(idle)
        self.open(trial_id, self.sampling)
        self._unknown[trial_id] = time.monotonic()

    async def _prompt(self, trajectory: Trajectory, request: ChatRequest) -> Prompt:
        after, messages = trajectory.locate(request.messages, request.tools)
        new = sum(len(message.content.encode()) for message in messages)
        least = (0 if after is None else len(after.history)) + new // self.template.tokenizer.longest_token
        if least > self.context_tokens:
            raise self.overflow(f"at least {least} tokens in the messages")
        size = sum(message.size for message in messages) + len(json.dumps(request.tools))

        def encode() -> list[int]:
            if request.tools and not self.template.shows_tools(request.tools):
                message = "the chat template of this model shows no tools"
                raise Refusal(message, param="tools", code="unsupported_value")
            return trajectory.encode(after, messages, request.tools)

        try:
            ids = encode() if size <= AT_ONCE_BYTES else await asyncio.to_thread(encode)
        except RecordError as error:
            raise Refusal(str(error), param="messages") from error
        return trajectory.prompt(ids, after, messages, request.tools)

    def _room(self, prompt: Prompt, request: ChatRequest) -> int:
        """How many tokens the answer may have."""
        room = self.context_tokens - len(prompt)
        wanted = request.max_tokens or max(room, 1)
        if self.max_answer_tokens is not None:
            wanted = min(wanted, self.max_answer_tokens)
        if wanted > room:
            tokens = f"{len(prompt) + wanted} tokens ({len(prompt)} in the messages, {wanted} in the completion)"
            raise self.overflow(tokens)
        return wanted

    def overflow(self, asked: str) -> Refusal:
        """In the words that harnesses look for."""
        message = (
            f"This model's maximum context length is {self.context_tokens} tokens. However, you requested {asked}. "
            "Please reduce the length of the messages or completion."
        )
        return Refusal(message, param="messages", code="context_length_exceeded")

    def _sampling(self, trial: Trial, request: ChatRequest) -> Sampling:
        fixed = trial.sampling
        if fixed is None:
            return read_sampling(request.sampling)
        held = {"temperature": fixed.temperature, "top_p": fixed.top_p, "top_k": fixed.top_k}
        for name, value in request.sampling.items():
            if value != held[name] and not self.overrule:
                message = f"this trial samples with {name}={held[name]}, not {value}: leave it out"
                raise Refusal(message, param=name, code="unsupported_value")
        return fixed
