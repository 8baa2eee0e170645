"""The error tree and the failure contract of every stage.

Invariant: an infrastructure fault never becomes a reward, and what the policy caused never becomes an infrastructure
fault. `InfraFault` carries a `FaultCause`, leaves the reward absent and the trial out of the denominator. What the
policy caused is a `StopReason` on a trial that the verifier grades like any other.

Every class is picklable (Ray moves exceptions between processes) and is also the standard-library type a caller would
expect, so that `except ValueError` keeps its meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum


class StopReason(StrEnum):
    """Why a trial's agent ended. Mirrored one to one as the metric `stop/<reason>`."""

    COMPLETED = "completed"
    TURN_LIMIT = "turn_limit"
    TOKEN_LIMIT = "token_limit"
    AGENT_TIMEOUT = "agent_timeout"
    PARSE_FAILURES = "parse_failures"
    GAVE_UP = "gave_up"


class FaultCause(StrEnum):
    """Which part of the infrastructure failed. Mirrored one to one as the metric `fault/<cause>`."""

    SANDBOX = "sandbox"
    IMAGE = "image"
    SAMPLER = "sampler"
    VERIFIER_BOOTSTRAP = "verifier_bootstrap"
    VERIFIER_TIMEOUT = "verifier_timeout"
    CAPTURE_MISSING = "capture_missing"
    STORE = "store"


class LongshellError(Exception):
    """Root of every error that Longshell raises on purpose."""


class ConfigError(LongshellError, ValueError):
    """The configuration cannot be run. Lists every problem with its path in the file."""

    def __init__(self, problems: Sequence[str], source: str = "configuration") -> None:
        self.problems = tuple(problems)
        self.source = source
        super().__init__(self.problems, source)

    def __str__(self) -> str:
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        count = len(self.problems)
        return f"{self.source}: {count} problem{'' if count == 1 else 's'}\n{lines}"


class TaskError(LongshellError, ValueError):
    """A task directory cannot be used. Lists every problem with its place."""

    def __init__(self, path: str, problems: Sequence[str]) -> None:
        self.path = path
        self.problems = tuple(problems)
        super().__init__(path, self.problems)

    def __str__(self) -> str:
        return f"task {self.path}:\n" + "\n".join(f"  - {problem}" for problem in self.problems)


class RecordError(LongshellError, ValueError):
    """A turn, sample or routing record breaks its contract (lengths, ranges, dtypes)."""


class InfraFault(LongshellError, RuntimeError):
    """The infrastructure failed: no reward, out of the denominator, counted under `cause`."""

    def __init__(self, cause: FaultCause, detail: str) -> None:
        self.cause = cause
        self.detail = detail
        super().__init__(cause, detail)

    def __str__(self) -> str:
        return f"{self.cause.value}: {self.detail}"


class DriftError(LongshellError, RuntimeError):
    """A trained token is not the sampled token: the leg stops rather than train on it."""


class CheckpointError(LongshellError, ValueError):
    """A checkpoint or model folder is missing, incomplete or of another shape."""


class DivergedError(LongshellError, FloatingPointError):
    """A gradient is not finite. The step was not taken."""


class StoreError(LongshellError, OSError):
    """The artifact store refused, lost or corrupted an object."""


class ServiceError(LongshellError, RuntimeError):
    """A service of the stack (Prefect, Ray, MLflow, sampler) did not start, or stopped answering."""


class JobFailed(LongshellError, RuntimeError):
    """A Ray job ended without its result. Carries the last lines of its log.

    `retriable` is False when the job refused its configuration or its data: the same input would be refused again.
    """

    def __init__(self, submission_id: str, status: str, tail: str, retriable: bool = True) -> None:
        self.submission_id = submission_id
        self.status = status
        self.tail = tail
        self.retriable = retriable
        super().__init__(submission_id, status, tail, retriable)

    def __str__(self) -> str:
        return f"Ray job {self.submission_id} ended {self.status}; its last lines:\n{self.tail}"
