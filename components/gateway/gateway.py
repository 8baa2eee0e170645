"""Trials in front of a sampler: opens, finds and closes their trajectories, and answers requests on them."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field

from components.errors import InfraFault, RecordError
from components.gateway.policy import SamplerPolicy
from components.gateway.request import ChatRequest, Refusal, read_sampling
from components.gateway.template import ChatTemplate
from components.gateway.trajectory import Answer, Prompt, Trajectory
from components.records import Sampling
from components.sampler import Sampler

log = logging.getLogger(__name__)

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
    sampling: Sampling | None = None
    max_answer_tokens: int | None = None
    _trials: dict[str, Trial] = field(default_factory=dict, init=False)

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
            self.open(trial_id, self.sampling)
        trial = self.trial(trial_id)
        sampling = self._sampling(trial, request)
        prompt = self._prompt(trial.trajectory, request)
        try:
            answer = await trial.trajectory.draw(prompt, max_new_tokens=self._room(prompt, request), sampling=sampling)
        except InfraFault as fault:
            log.warning("trial %s: %s", trial_id, fault)
            raise Refusal(str(fault), status=503, kind="server_error", code=fault.cause.value) from fault
        return trial.trajectory, answer

    def _prompt(self, trajectory: Trajectory, request: ChatRequest) -> Prompt:
        if request.tools and not self.template.shows_tools(request.tools):
            message = "the chat template of this model shows no tools"
            raise Refusal(message, param="tools", code="unsupported_value")
        try:
            return trajectory.follow(*trajectory.locate(request.messages, request.tools), request.tools)
        except RecordError as error:
            raise Refusal(str(error), param="messages") from error

    def _room(self, prompt: Prompt, request: ChatRequest) -> int:
        """How many tokens the answer may have. The words of the refusal are those that harnesses look for."""
        room = self.context_tokens - len(prompt)
        wanted = request.max_tokens or max(room, 1)
        if self.max_answer_tokens is not None:
            wanted = min(wanted, self.max_answer_tokens)
        if wanted > room:
            message = (
                f"This model's maximum context length is {self.context_tokens} tokens. However, you requested "
                f"{len(prompt) + wanted} tokens ({len(prompt)} in the messages, {wanted} in the completion). "
                "Please reduce the length of the messages or completion."
            )
            raise Refusal(message, param="messages", code="context_length_exceeded")
        return wanted

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
