"""The error tree and the failure contract of every stage.

Invariant: an infrastructure fault never becomes a reward, and what the policy caused never becomes an infrastructure
fault. `InfraFault` carries a `FaultCause`, leaves the reward absent and the trial out of the denominator. What the
policy caused is a `StopReason` on a trial that the verifier grades like any other.

What ends a job or a flow is of one `Failure` kind, told by `failure_of`; the kind alone decides whether it is tried
again. Between processes the kind travels as a job's exit code.

Every class is picklable (Ray moves exceptions between processes) and is also the standard-library type a caller would
expect, so that `except ValueError` keeps its meaning.
"""

from __future__ import annotations

import errno
import re
from collections import deque
from collections.abc import Iterator, Sequence
from enum import IntEnum, StrEnum


class StopReason(StrEnum):
    """Why a trial's agent ended. Mirrored one to one as the metric `stop/<reason>`."""

    COMPLETED = "completed"
    TURN_LIMIT = "turn_limit"
    TOKEN_LIMIT = "token_limit"
    AGENT_TIMEOUT = "agent_timeout"
    PARSE_FAILURES = "parse_failures"
    GAVE_UP = "gave_up"
    COMPACTION_FAILED = "compaction_failed"


class FaultCause(StrEnum):
    """Which part of the infrastructure failed. Mirrored one to one as the metric `fault/<cause>`."""

    SANDBOX = "sandbox"
    IMAGE = "image"
    SAMPLER = "sampler"
    VERIFIER_BOOTSTRAP = "verifier_bootstrap"
    VERIFIER_TIMEOUT = "verifier_timeout"
    VERIFIER_KILLED = "verifier_killed"
    CAPTURE_MISSING = "capture_missing"
    DRIFT = "drift"
    """What would be trained on is not what was sampled."""
    RECORD = "record"
    """A turn, or its routing, is not one that this model's sampler can have produced."""
    CHECKSUM = "checksum"
    """Routing rows are not those that were captured."""
    STORE = "store"
    TRAINER = "trainer"


class Failure(StrEnum):
    """Why a job or a flow ended: what would have to change for it to end otherwise."""

    REFUSED = "refused"
    """Its input or its machine: configuration, data, permissions, a full disk."""
    PROGRAM = "program"
    """The code: what failed fails again on the same input."""
    INFRASTRUCTURE = "infrastructure"
    """Nothing, perhaps: a service, a node or a network was away."""
    STOPPED = "stopped"
    """Someone's mind: it was told to stop."""

    @property
    def retriable(self) -> bool:
        """Whether trying again may help."""
        return self is Failure.INFRASTRUCTURE


class Exit(IntEnum):
    """Exit codes of jobs. Every other end, by a signal above all, is one of infrastructure."""

    DONE = 0
    PROGRAM = 1
    """Also what Python gives for an exception that nobody caught, such as a failed import."""
    REFUSED = 2
    INFRASTRUCTURE = 75
    """`EX_TEMPFAIL` of sysexits.h."""
    STOPPED = 143
    """128 + SIGTERM."""

    @classmethod
    def of(cls, failure: Failure) -> Exit:
        """The exit code that tells a kind of failure."""
        return cls[failure.name]


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


class ChecksumError(RecordError):
    """Routing rows were changed or permuted since they were captured."""


class InfraFault(LongshellError, RuntimeError):
    """The infrastructure failed: no reward, out of the denominator, counted under `cause`."""

    def __init__(self, cause: FaultCause, detail: str) -> None:
        self.cause = cause
        self.detail = detail
        super().__init__(cause, detail)

    def __str__(self) -> str:
        return f"{self.cause.value}: {self.detail}"


class BoxSpent(InfraFault):
    """Programs of a box took its memory, and its first process with it. In a trial that is the policy's doing."""


class CompactionError(LongshellError, RuntimeError):
    """The policy did not manage to rewrite its history. Ends its trial as `compaction_failed`, and is graded."""


class DriftError(LongshellError, RuntimeError):
    """A trained token is not the sampled token. One such trial is rejected; a leg that has many stops."""


class CheckpointError(LongshellError, ValueError):
    """A checkpoint or model folder is missing, incomplete or of another shape."""


class DivergedError(LongshellError, FloatingPointError):
    """A gradient is not finite. The step was not taken."""


class StoreError(LongshellError, OSError):
    """The artifact store refused, lost or corrupted an object."""


class DamagedError(StoreError):
    """What the store holds is not what was put: bytes have changed, or a part is missing."""


class StoreRefused(StoreError):
    """The store cannot be used as it is: no such bucket, no permission, no credentials. Trying again does not help."""


class NoStoreError(StoreRefused):
    """There is no store where something was to be read."""


class ServiceError(LongshellError, RuntimeError):
    """A service of the stack (Prefect, Ray, MLflow, sampler) did not start, or stopped answering."""


class NoSpaceError(LongshellError, OSError):
    """A disk or a quota is full. `what` says which, and what was being written; nothing of it is half-written."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(what)

    def __str__(self) -> str:
        return f"{self.what}. Free space there, or have the quota raised: the same command then continues"


class JobFailed(LongshellError, RuntimeError):
    """A Ray job ended without its result. Carries the last lines of its log and the kind of its failure."""

    def __init__(self, submission_id: str, status: str, tail: str, failure: Failure = Failure.INFRASTRUCTURE) -> None:
        self.submission_id = submission_id
        self.status = status
        self.tail = tail
        self.failure = failure
        super().__init__(submission_id, status, tail, failure)

    def __str__(self) -> str:
        return f"Ray job {self.submission_id} ended {self.status}; its last lines:\n{self.tail}"

    @property
    def reason(self) -> str:
        """The job's last words if they are an error message, which may have several lines; otherwise empty."""
        lines = self.tail.splitlines()
        levels = [number for number, line in enumerate(lines) if line.startswith(_LEVELS)]
        if not levels or not lines[levels[-1]].startswith(_ERROR):
            return ""
        return "\n".join(lines[levels[-1] :]).removeprefix(_ERROR)


_ERROR = "ERROR "
_LEVELS = ("DEBUG ", "INFO ", "WARNING ", _ERROR)
"""How the lines of a job's log begin."""
_FULL = {errno.ENOSPC, errno.EDQUOT}
_FULL_WORDS = re.compile(
    r"database or disk is full"  # SQLite, whatever wraps it
    r"|No space left on device|Disk quota exceeded"  # libraries that keep the words and lose the number
    r"|inline_container\.cc.* unexpected pos \d+"  # torch.save
    r"|\d+ requested and \d+ written"  # numpy
)
_WHAT_CHARS = 300
"""Some errors list every file that they could not write."""
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}
_REFUSALS = (ConfigError, TaskError, CheckpointError, DamagedError, StoreRefused)
_MISTAKES = (
    *(AssertionError, TypeError, ValueError, LookupError, AttributeError, NameError, ArithmeticError),
    *(ImportError, SyntaxError, NotImplementedError, RecursionError, DriftError),
)
"""What Python itself calls a mistake in the program, and ours of that kind."""


def failure_of(error: BaseException) -> Failure:
    """The kind of a failure. What nobody has foreseen is taken for infrastructure: trying again costs little."""
    if isinstance(error, JobFailed):
        return error.failure
    if isinstance(error, BaseExceptionGroup):
        kinds = {failure_of(each) for each in error.exceptions}
        return next(kind for kind in Failure if kind in kinds)
    if isinstance(error, _REFUSALS) or no_space(error) is not None:
        return Failure.REFUSED
    if isinstance(error, StoreError) and isinstance(error.__cause__, OSError) and error.__cause__.errno in _FORBIDDEN:
        return Failure.REFUSED
    return Failure.PROGRAM if isinstance(error, _MISTAKES) else Failure.INFRASTRUCTURE


def no_space(error: BaseException, place: object = None) -> NoSpaceError | None:
    """The one place where a full disk is recognised, whoever met it first: None when `error` comes of something else.

    Args:
        error: what was raised; its causes, and the members of a group, count too.
        place: what was written to, for errors that do not say it themselves.
    """
    for each in _chain(error):
        if isinstance(each, NoSpaceError):
            return each
        if isinstance(each, (JobFailed, ConfigError)):  # A whole log, or told already: user namespaces run out, too.
            continue
        number = each.errno if isinstance(each, OSError) else None
        if number in _FULL or _FULL_WORDS.search(str(each)):
            if isinstance(error, LongshellError):
                return NoSpaceError(_telling_line(str(error)))
            where = (each.filename if isinstance(each, OSError) else None) or place or "the disk"
            return NoSpaceError(f"{where}: {_telling_line(str(each))}")
    return None


def _telling_line(text: str) -> str:
    """Of a text that may hold a whole traceback, the line that tells of the full disk, or else the first."""
    lines = [line.strip() for line in text.splitlines()] or [""]
    return next((line for line in lines if _FULL_WORDS.search(line)), lines[0])[:_WHAT_CHARS]


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error, the members of a group, and whatever they were raised from, nearest first."""
    seen: set[int] = set()
    left = deque([error])
    while left:
        each = left.popleft()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        left += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        before = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
        left += [before] if before is not None else []
