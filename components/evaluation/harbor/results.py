"""Reads what a Harbor job left, and makes trials of it.

Files that Harbor 0.7.0, 0.25.0 and 0.26.0 left are among the tests. What one of them does not write (the mode of the
verifier, model usage, a phase's times) is absent here, never 0. Files, not Harbor's classes: they need another Python.

Invariant: a trial of Harbor's becomes exactly one of ours, with a verdict or with a fault, as the one classifier says;
Harbor's reward is a verdict only where its verifier was whole and no fault stands beside it.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from components.artifacts.manifest import contents_of, led_out
from components.errors import FaultCause, InfraFault
from components.outcomes import HARBOR_UNVERIFIED, HarborEnded, VerifierEnded, harbor_end_of, verdict_of
from components.records import TaskRef, Trial, VerifierReport
from components.reward import ASSERTION_FILES, read_files

PHASES = {
    "environment_setup": "start",
    "agent_setup": "agent_setup",
    "agent_execution": "agent",
    "verifier": "verify",
}
"""Harbor's phases, and what ours are called."""
VERIFIER_OUTPUT = "verifier/test-stdout.txt"
MAX_BYTES = 4 << 20
COMPLETE = "mark_task_complete"
"""What Terminus-2's trajectory calls a claim of completion; it is asked for twice."""
TIMED_OUT = "VerifierTimeoutError"


@dataclass(frozen=True, slots=True)
class HarborTrial:
    """One trial as Harbor recorded it. What it did not record is None.

    Attributes:
        name: Harbor's own; task and seven characters.
        task: name of the task's directory.
        agent: name and version of the agent.
        rewards: what the verifier's reward file held.
        exception, message: what ended the trial, if an error did.
        turns, sampled_tokens, prompt_tokens, compactions: as the agent counted them.
        complete: whether the agent claimed completion as often as it is asked to.
        seconds: of each phase that began and ended.
        started: for the order of attempts.
        files: what the verifier left in its folder, by name; `said` is its output.
    """

    name: str
    task: str
    agent: str
    rewards: Mapping[str, Any] | None
    exception: str | None
    message: str
    turns: int | None
    sampled_tokens: int | None
    prompt_tokens: int | None
    compactions: int | None
    complete: bool | None
    seconds: Mapping[str, float]
    started: str
    files: Mapping[str, bytes]
    said: str

    def trial(self, trial_id: str, task: TaskRef, *, max_turns: int, verifier_timeout_s: float) -> Trial:
        """This trial as one of ours. Its turns are Harbor's record, not ours: their number is a fact."""
        end = harbor_end_of(HarborEnded(self.exception, self.message, self.turns, max_turns, self.complete))
        stop, ended = (None, end) if isinstance(end, InfraFault) else (end, self._verdict(verifier_timeout_s))
        report, fault = (None, ended) if isinstance(ended, InfraFault) else (ended, None)
        return Trial(trial_id, task, (), stop, report, fault, dict(self.seconds), self._facts())

    def _verdict(self, verifier_timeout_s: float) -> VerifierReport | InfraFault:
        if self.rewards is None and self.exception in HARBOR_UNVERIFIED:
            return VerifierReport({}, False, "harbor", f"{self.exception}: Harbor verifies no trial that ends so")
        files = dict(self.files)
        if self.rewards is not None:
            files["reward.json"] = json.dumps(dict(self.rewards)).encode()
        report = read_files(files)
        timed_out = self.exception == TIMED_OUT
        seen = VerifierEnded(
            exit_code=None if timed_out else 0,
            timed_out=timed_out,
            timeout_s=verifier_timeout_s,
            said=self.said or self.message,
            files=None if report is None else replace(report, source=f"harbor: {report.source}"),
        )
        return verdict_of(seen)

    def _facts(self) -> dict[str, Any]:
        return {
            "harness": f"harbor {self.agent}",
            "harbor_trial": self.name,
            "turns": self.turns,
            "sampled_tokens": self.sampled_tokens,
            "prompt_tokens": self.prompt_tokens,
            **({} if self.compactions is None else {"compactions_attempted": self.compactions}),
        }


def missing(trial_id: str, task: TaskRef) -> Trial:
    """The trial of an attempt that Harbor was asked for and left no result of."""
    fault = InfraFault(FaultCause.SANDBOX, "Harbor left no result of this attempt")
    return Trial(trial_id, task, (), None, None, fault, facts={"turns": None} | _UNCOUNTED)


_UNCOUNTED = {"sampled_tokens": None, "prompt_tokens": None}


def read_job(folder: Path) -> list[HarborTrial]:
    """The finished trials of a job, in the order in which they were started. One without a whole result is unfinished.

    A folder that is not there holds none.
    """
    found = [trial for path in sorted(folder.glob("*/result.json")) if (trial := _read_trial(path)) is not None]
    return sorted(found, key=lambda trial: (trial.started, trial.name))


def _read_trial(path: Path) -> HarborTrial | None:
    try:
        document = json.loads(path.read_bytes())
        finished = document["finished_at"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if finished is None:
        return None
    folder, agent = path.parent, _table(document, "agent_result")
    error, metadata = _table(document, "exception_info"), _table(agent, "metadata")
    info = _table(document, "agent_info")
    return HarborTrial(
        name=str(document.get("trial_name", folder.name)),
        task=_task_of(document),
        agent=f"{info.get('name', 'unknown')} {info.get('version', '')}".strip(),
        rewards=_table(document, "verifier_result").get("rewards"),
        exception=error.get("exception_type"),
        message=str(error.get("exception_message", "")),
        turns=metadata.get("n_episodes"),
        sampled_tokens=agent.get("n_output_tokens"),
        prompt_tokens=agent.get("n_input_tokens"),
        compactions=metadata.get("summarization_count"),
        complete=_complete(folder / "agent" / "trajectory.json"),
        seconds={
            ours: took for theirs, ours in PHASES.items() if (took := _took(_table(document, theirs))) is not None
        },
        started=str(document.get("started_at") or ""),
        files={name: data for name in ASSERTION_FILES if (data := _bytes(folder / "verifier" / name)) is not None},
        said=(_bytes(folder / VERIFIER_OUTPUT) or b"").decode("utf-8", "replace"),
    )


def _task_of(document: Mapping[str, Any]) -> str:
    """The name of the task's directory: what Harbor calls the task may be its package."""
    for place in (_table(_table(document, "config"), "task"), _table(document, "task_id")):
        if path := place.get("path"):
            return Path(str(path)).name
    return str(document.get("task_name", "")).rpartition("/")[2]


def _complete(trajectory: Path) -> bool | None:
    """Whether a Terminus-2 claimed completion twice; None where there is no trajectory to tell.

    Answers that it could not read lie between two claims without undoing the first; they have no calls.
    """
    data = _bytes(trajectory)
    try:
        steps = [step for step in json.loads(data or b"")["steps"] if step["source"] == "agent"]
        spoken = [_claims(step) for step in steps if step.get("tool_calls")]
        return bool(steps) and _claims(steps[-1]) and len(spoken) >= 2 and spoken[-2]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _claims(step: Mapping[str, Any]) -> bool:
    return any(call.get("function_name") == COMPLETE for call in step.get("tool_calls") or ())


def _took(phase: Mapping[str, Any]) -> float | None:
    try:
        start, end = (datetime.fromisoformat(phase[name]) for name in ("started_at", "finished_at"))
    except (KeyError, TypeError, ValueError):
        return None
    return (end - start).total_seconds()


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part that may be absent or null."""
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def _bytes(path: Path) -> bytes | None:
    """The end of a file, as much as is read of a report; None where there is none.

    An agent may have put anything in its place: a link to a file of ours, a pipe that nobody writes to.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return None
        return os.pread(descriptor, MAX_BYTES, max(0, found.st_size - MAX_BYTES))
    except OSError:
        return None
    finally:
        os.close(descriptor)


def remove_snares(folder: Path) -> list[str]:
    """Removes what agents left in a job's folder that is not to be followed or opened: their paths below it.

    That is links out of it, pipes and devices. Where Harbor runs Docker itself, agents write there as they like.
    """
    found = contents_of(folder)
    snares = sorted([*led_out(found), *found.others])
    for path in snares:
        (folder / path).unlink()
    return snares
