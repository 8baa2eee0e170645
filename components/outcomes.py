"""The one classifier of trials (design section 9): a pure function from what was seen to what it means.

    classify(situation) -> StopReason       the policy ended the agent's side: the trial is graded
                           VerifierReport   a verdict: its reward counts
                           InfraFault       the infrastructure failed: no reward, out of every denominator, tried again
                           None             nothing of the kind: the trial goes on, or the error is the program's own

Invariants: a verdict that was not given is never 0; what the agent can bring about by itself earns at most the verdict
of the assertions that really ran; no situation is two things. Training, evaluation, curation and diagnosis ask here and
nowhere else. (What ends a whole job is told by `components.errors.failure_of`.)
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, replace

from components.errors import (
    BoxSpent,
    ChecksumError,
    DriftError,
    FaultCause,
    InfraFault,
    RecordError,
    StopReason,
    StoreError,
    no_space,
)
from components.records import VerifierReport

TAMPERING = "tampering"
"""How a report's `parse_cause` begins where the code under test worked against the verifier."""
TAIL_CHARS = 600
"""Of the verifier's output, in a fault's detail."""

_SIGNALS = {number.value: number.name for number in signal.Signals}

BOOTSTRAP_SIGNS = re.compile(
    r"""^(?:
      curl:[ ]\(\d+\)
    | E:[ ](?:Unable[ ]to|Failed[ ]to|Could[ ]not|dpkg[ ]was[ ]interrupted|Sub-process[ ]\S+[ ]returned)
    | dpkg:[ ]error
    | Err:\d+[ ]http
    | wget:[ ]unable[ ]to[ ]resolve
    | .*Temporary[ ]failure[ ](?:in[ ]name[ ]resolution|resolving)
    | .*Could[ ]not[ ]resolve[ ]host
    | .*\b(?:uvx?|curl|wget|apt(?:-get)?|pip3?|npm|pytest|go|cargo):[ ](?:command[ ])?not[ ]found
    | .*No[ ]module[ ]named[ ]'?(?:_?pytest|pip|uv|pluggy|iniconfig|packaging|pygments)\b
    | error:[ ](?:Failed[ ]to[ ](?:fetch|download|install)|Request[ ]failed|could[ ]not[ ]download)
    | [ ]*(?:├─▶|╰─▶)[ ](?:Failed[ ]to|error[ ]sending[ ]request|dns[ ]error)
    | ERROR:[ ](?:Could[ ]not[ ](?:find[ ]a[ ]version|install[ ]packages)|No[ ]matching[ ]distribution)
    | npm[ ](?:ERR!|error)[ ](?:code[ ]|network)
    | .*No[ ]space[ ]left[ ]on[ ]device
    | (?!.*PytestCacheWarning).*/tests\b.*Read-only[ ]file[ ]system
    )""",
    re.MULTILINE | re.VERBOSE,
)
"""Lines that say the verifier could not be set up: 6.6 % of public trials were scored 0 for these. They count only
beside a bare 0: where assertions were reported the verifier did run."""

AGAINST_TASK = frozenset(
    {FaultCause.IMAGE, FaultCause.VERIFIER_BOOTSTRAP, FaultCause.VERIFIER_TIMEOUT, FaultCause.VERIFIER_KILLED}
)
"""Causes that, met again and again with one task, are that task's and not the machine's."""

HARBOR_STOPS = {
    "AgentTimeoutError": StopReason.AGENT_TIMEOUT,
    "ContextWindowExceededError": StopReason.TOKEN_LIMIT,
    "ContextLengthExceededError": StopReason.TOKEN_LIMIT,
    "OutputTokenExceededError": StopReason.TOKEN_LIMIT,
    "OutputLengthExceededError": StopReason.TOKEN_LIMIT,
    "AgentSafetyRefusalError": StopReason.GAVE_UP,
    "ContentPolicyViolationError": StopReason.GAVE_UP,
    BoxSpent.__name__: StopReason.GAVE_UP,
}
"""Errors by which Harbor says that the policy ended its side."""
HARBOR_LEFT = "RuntimeError"
"""What Harbor raises, among much else, where the policy has left its terminal and Harbor cannot type into it."""
HARBOR_NO_TERMINAL = re.compile(
    r"""failed[ ]to[ ]send[ ][\w-]+[ ]keys:.*return_code=-?\d+,[ ]stderr=.*(?:
      no[ ]server[ ]running[ ]on | error[ ]connecting[ ]to[ ]\S*tmux | server[ ]exited | lost[ ]server
    | can't[ ]find[ ](?:session|window|pane) | no[ ]sessions
    )""",
    re.DOTALL | re.VERBOSE,
)
"""tmux's own words for that: `exit` amid an answer's commands, a killed tmux. A box that is gone has other ones. Keys
are only sent once the session has started, and only for the policy."""
HARBOR_UNVERIFIED = frozenset({*HARBOR_STOPS, HARBOR_LEFT}) - {"AgentTimeoutError"}
"""Ends by the policy after which Harbor 0.25 runs no verifier, and takes the task for not resolved. So do we, and say
it: to leave such a trial out as a fault would take a policy's own overflows from its denominator."""
HARBOR_VERIFIER = frozenset(
    {"VerifierTimeoutError", "RewardFileNotFoundError", "RewardFileEmptyError", "VerifierOutputParseError"}
)
"""Errors that Harbor's verifier ends with, after the agent's side has ended as it should."""
HARBOR_FAULTS = {
    "SandboxBuildFailedError": FaultCause.IMAGE,
    "DownloadVerifierDirError": FaultCause.VERIFIER_BOOTSTRAP,
    "AddTestsDirError": FaultCause.VERIFIER_BOOTSTRAP,
    **dict.fromkeys(
        (
            *("ApiError", "ApiRateLimitError", "ApiInternalServerError", "ApiOverloadedError", "UnknownApiError"),
            *("ApiConnectionClosedError", "ApiResponseStalledError", "NetworkConnectionError", "ApiConnectionError"),
            *("ApiUsageLimitError", "RateLimitError", "InternalServerError", "ServiceUnavailableError", "APIError"),
            *("APIConnectionError", "Timeout", "BadRequestError", "UnprocessableEntityError", "NotFoundError"),
            *("UnsupportedParamsError", "APIResponseValidationError", "BudgetExceededError", "AuthenticationError"),
            *("AgentAuthenticationError", "ModelNotFoundError", "ApiProviderResourceNotFoundError"),
            *("PermissionDeniedError", "RetryError"),
        ),
        FaultCause.SAMPLER,
    ),
}
"""Errors of Harbor's and of its model client whose part is known. Every other one is the sandbox's, and is named."""

REJECTIONS = frozenset({FaultCause.DRIFT, FaultCause.RECORD, FaultCause.CHECKSUM})
"""Causes by which a trial is rejected: it ran, and what was recorded of it may not be trained on."""


@dataclass(frozen=True, slots=True)
class AgentStands:
    """How the agent's side of a trial stands. What is left out has not come about.

    Attributes:
        turns: answers drawn; `max_turns` is their limit.
        room: tokens that the next answer may have.
        cut_at_wall: the last answer was cut where the context ends.
        compaction_failed: its history could not be rewritten to fit.
        unreadable: answers in a row that could not be read; `max_unreadable` is their limit.
        shell_alive: the agent has not left its shell.
        complete: it said, as often as it is asked to, that the task is done.
        overdue: its deadline has passed.
    """

    turns: int = 0
    max_turns: int = 1
    room: int = 1
    cut_at_wall: bool = False
    compaction_failed: bool = False
    unreadable: int = 0
    max_unreadable: int = 1
    shell_alive: bool = True
    complete: bool = False
    overdue: bool = False


@dataclass(frozen=True, slots=True)
class TurnDrawn:
    """What a sampler returned for one turn; `version` is what it must be of, None if of any."""

    finish_reason: str
    drawn_version: int
    version: int | None
    routing_missing: bool = False


@dataclass(frozen=True, slots=True)
class HttpAnswered:
    """What a sampler answered to a request of ours."""

    url: str
    status: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class TrialOverdue:
    """A trial passed the outermost deadline: agent and verifier have their own, shorter ones."""

    limit_s: float


@dataclass(frozen=True, slots=True)
class Raised:
    """An error reached the boundary of a trial."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class VerifierEnded:
    """What was seen of a verifier's run.

    Attributes:
        exit_code: 128 + signal for a killed one; None when it was killed at its deadline.
        timed_out: it was killed at its deadline, `timeout_s`.
        oom: the kernel killed a process of the view for memory meanwhile.
        said: its output.
        stream: what it reported on the channel that only it has; None where it said nothing there.
        files: what it wrote for Harbor; None where it wrote no verdict.
        tests_whole: its tests were afterwards what they had been before.
        system_whole: so was its system, where it was sealed.
        logs_whole: no verdict or report in its log folder was written to after its end, or is what no script writes.
        waits_at: a pipe or a device where the agent's work is, at which a verifier that did not end may have waited.
    """

    exit_code: int | None
    timed_out: bool = False
    timeout_s: float = 0.0
    oom: bool = False
    said: str = ""
    stream: VerifierReport | None = None
    files: VerifierReport | None = None
    tests_whole: bool = True
    system_whole: bool = True
    logs_whole: bool = True
    waits_at: str | None = None


@dataclass(frozen=True, slots=True)
class HarborEnded:
    """What Harbor recorded of the agent's side of a trial.

    Attributes:
        exception: name of the type of the error that ended the trial; None where none did.
        message: its text.
        turns: answers drawn, where that is known; `max_turns` is their limit.
        complete: the agent said, as often as it is asked to, that the task is done; None where that is not known.
    """

    exception: str | None
    message: str = ""
    turns: int | None = None
    max_turns: int = 1
    complete: bool | None = None


Situation = HarborEnded | AgentStands | TurnDrawn | HttpAnswered | TrialOverdue | Raised | VerifierEnded


def classify(situation: Situation) -> StopReason | VerifierReport | InfraFault | None:
    """What a situation means."""
    match situation:
        case AgentStands():
            return stop_of(situation)
        case HarborEnded():
            return harbor_end_of(situation)
        case VerifierEnded():
            return verdict_of(situation)
        case _:
            return fault_of(situation)


def stop_of(stands: AgentStands) -> StopReason | None:
    """Why the agent's side ends here; None while it goes on. What comes first below decides."""
    if stands.overdue:
        return StopReason.AGENT_TIMEOUT
    if stands.compaction_failed:
        return StopReason.COMPACTION_FAILED
    if stands.room < 1 or stands.cut_at_wall:
        return StopReason.TOKEN_LIMIT
    if stands.unreadable >= stands.max_unreadable:
        return StopReason.PARSE_FAILURES
    if not stands.shell_alive:
        return StopReason.GAVE_UP
    if stands.complete:
        return StopReason.COMPLETED
    return StopReason.TURN_LIMIT if stands.turns >= stands.max_turns else None


def fault_of(situation: TurnDrawn | HttpAnswered | TrialOverdue | Raised) -> InfraFault | None:
    """The fault of the infrastructure that this is; None where it is none."""
    match situation:
        case TurnDrawn(finish, _, _, _) if finish not in ("stop", "length"):
            return InfraFault(FaultCause.SAMPLER, f"the sampler ended a turn as {finish!r}")
        case TurnDrawn(_, drawn, version, _) if version not in (None, drawn):
            return InfraFault(FaultCause.SAMPLER, f"a turn was drawn under weights {drawn}, not {version}")
        case TurnDrawn(routing_missing=missing):
            return InfraFault(FaultCause.CAPTURE_MISSING, "the turn has no routing") if missing else None
        case HttpAnswered(url, status, text):
            detail = f"{url}: HTTP {status}: {text.strip()[:500]}"
            return None if status == 200 else InfraFault(FaultCause.SAMPLER, detail)
        case TrialOverdue(limit_s):
            return InfraFault(FaultCause.SANDBOX, f"trial passed its remote deadline of {limit_s:g} s")
        case Raised(error):
            return _raised(error)


def _raised(error: BaseException) -> InfraFault | None:
    if isinstance(error, InfraFault):
        return error
    if isinstance(error, DriftError):
        return InfraFault(FaultCause.DRIFT, str(error))
    if isinstance(error, RecordError):
        cause = FaultCause.CHECKSUM if isinstance(error, ChecksumError) else FaultCause.RECORD
        return InfraFault(cause, str(error))
    if isinstance(error, StoreError) and no_space(error) is None:  # a full disk is told to whoever can free it
        return InfraFault(FaultCause.STORE, f"{type(error).__name__}: {error}")
    return None


def harbor_end_of(ended: HarborEnded) -> StopReason | InfraFault:
    """Why the agent's side of a trial of Harbor's ended. A reward beside a fault counts for nothing."""
    name = ended.exception
    if name is None or name in HARBOR_VERIFIER:
        if ended.complete is None or ended.complete:
            return StopReason.COMPLETED
        spent = ended.turns is not None and ended.turns >= ended.max_turns
        return StopReason.TURN_LIMIT if spent else StopReason.GAVE_UP
    if name in HARBOR_STOPS:
        return HARBOR_STOPS[name]
    if name == HARBOR_LEFT and HARBOR_NO_TERMINAL.search(ended.message):
        return StopReason.GAVE_UP
    detail = f"{name}: {ended.message.strip()[:TAIL_CHARS]}"
    return InfraFault(HARBOR_FAULTS.get(name, FaultCause.SANDBOX), f"Harbor's trial ended with {detail}")


def spent_of(spent: BoxSpent) -> VerifierReport:
    """The verdict on work whose box is gone: what the agent left took its memory, before or while it was verified."""
    return VerifierReport({}, False, "box", spent.detail)


def verdict_of(run: VerifierEnded) -> VerifierReport | InfraFault:
    """The verdict of a run, or why there is none."""
    stream, files = run.stream, run.files
    if not run.tests_whole:
        return VerifierReport({}, False, "tests", f"{TAMPERING}: the tests were changed while they ran")
    if not run.system_whole:
        return VerifierReport({}, False, "system", f"{TAMPERING}: the system was changed while the tests ran")
    if not run.logs_whole:
        seen = stream if stream is not None and stream.assertions else VerifierReport({}, False, "files")
        cause = _joined(seen, *_signs(files), f"{TAMPERING}: what the verifier wrote is not as it left it")
        return replace(seen, outcome=False, parse_cause=cause)
    if stream is not None and stream.outcome is not None:
        if stream.outcome and files is not None and files.outcome is None and files.parse_cause:
            return _fault(run, FaultCause.VERIFIER_BOOTSTRAP, f"all assertions passed, but {files.parse_cause}")
        return _weighed(stream, files)
    if files is not None and files.outcome is not None:
        if stream is not None and stream.assertions:
            return _broken_off(stream, files)
        if files.outcome or files.assertions or files.number or not (sign := BOOTSTRAP_SIGNS.search(run.said)):
            return files
        line = run.said[sign.start() :].partition("\n")[0].strip()[:200]
        return _fault(run, FaultCause.VERIFIER_BOOTSTRAP, f"the verifier's own set-up failed: {line}")
    if stream is not None and stream.assertions:  # what was collected is what the agent's work was run by
        return replace(stream, outcome=False, parse_cause=_joined(stream, _ending(run)))
    if run.waits_at is not None:
        cause = f"{TAMPERING}: {run.waits_at} is a pipe or a device: {_ending(run)}"
        return VerifierReport({}, False, "files", cause)
    return _unjudged(run)


def _unjudged(run: VerifierEnded) -> InfraFault:
    """Why there is no verdict."""
    causes = [report.parse_cause for report in (run.stream, run.files) if report is not None and report.parse_cause]
    cause = "; ".join(causes) or "no verdict was written"
    if run.timed_out:
        return _fault(run, FaultCause.VERIFIER_TIMEOUT, f"{_ending(run)} ({cause})")
    ending = _ending(run)
    if ending is not None:
        return _fault(run, FaultCause.VERIFIER_KILLED, f"{cause}: {ending}")
    return _fault(run, FaultCause.VERIFIER_BOOTSTRAP, cause)


def _ending(run: VerifierEnded) -> str | None:
    """What ended the verifier; None where it ended by itself."""
    if run.timed_out:
        return f"no verdict within {run.timeout_s:g} s"
    if run.oom:
        return "out of memory"
    return None if run.exit_code is None else _SIGNALS.get(run.exit_code - 128)


def _weighed(stream: VerifierReport, files: VerifierReport | None) -> VerifierReport:
    """A whole report beside what was written for Harbor: a verdict is good only where both are."""
    if files is None or files.outcome is None:
        return stream
    stream = replace(stream, parse_cause=_joined(stream, *_signs(files)))
    if files.outcome == stream.outcome:
        return replace(stream, number=files.number)
    source = f"{stream.source}+{files.source}"
    if stream.outcome:
        return replace(stream, outcome=False, source=source, number=files.number)
    sign = f"{TAMPERING}: {files.source} says 1 where assertions failed"
    return replace(stream, source=source, parse_cause=_joined(stream, sign))


def _broken_off(stream: VerifierReport, files: VerifierReport) -> VerifierReport:
    """The runner was ended under way, and its script saw that, or was made to believe that all was well."""
    extra = f"{TAMPERING}: {files.source} says 1" if files.outcome else None
    cause = _joined(stream, *_signs(files), extra)
    return replace(stream, outcome=False, source=f"{stream.source}+{files.source}", parse_cause=cause)


def _signs(files: VerifierReport | None) -> list[str]:
    said = None if files is None else files.parse_cause
    return [cause for cause in (said or "").split("; ") if cause.startswith(TAMPERING)]


def _joined(report: VerifierReport, *extra: str | None) -> str | None:
    return "; ".join(filter(None, (report.parse_cause, *extra))) or None


def _fault(run: VerifierEnded, cause: FaultCause, detail: str) -> InfraFault:
    tail = run.said.strip()[-TAIL_CHARS:].strip() or "(no output)"
    ended = "" if run.exit_code is None else f" (exit {run.exit_code})"
    return InfraFault(cause, f"{detail}{ended}: {tail}")
