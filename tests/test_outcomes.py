"""The failure contract as a table: every situation, and the one thing it means."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.errors import (
    ChecksumError,
    ConfigError,
    DriftError,
    FaultCause,
    InfraFault,
    RecordError,
    StopReason,
    StoreError,
)
from components.outcomes import (
    AGAINST_TASK,
    AgentStands,
    HarborEnded,
    HttpAnswered,
    Raised,
    TrialOverdue,
    TurnDrawn,
    VerifierEnded,
    classify,
)
from components.records import AssertionOutcome, VerifierReport

PASSED, FAILED, ERROR, SKIPPED, NOT_RUN = AssertionOutcome
URL = "http://sampler/generate"


def stream(outcome, *outcomes, cause=None):
    return VerifierReport(dict(zip("abc", outcomes, strict=False)), outcome, "assertions.jsonl", cause)


def wrote(outcome, *outcomes):
    return VerifierReport(dict(zip("abc", outcomes, strict=False)), outcome, "reward.txt")


def bare_zero(said):
    """A verifier that wrote a 0 and nothing else, after these words."""
    return VerifierEnded(0, said=f"first line\n{said}\nlast line\n", files=wrote(False))


SOLVED, UNSOLVED = stream(True, PASSED, PASSED), stream(False, PASSED, FAILED)
BROKEN_OFF = stream(None, PASSED, NOT_RUN, cause="the report breaks off: 1 of 2 assertions reported")
BOOT, LATE, KILLED = FaultCause.VERIFIER_BOOTSTRAP, FaultCause.VERIFIER_TIMEOUT, FaultCause.VERIFIER_KILLED

AGENT = {
    "goes on": (AgentStands(turns=1, max_turns=9), None),
    "completes": (AgentStands(turns=1, max_turns=9, complete=True), StopReason.COMPLETED),
    "completes with its last turn": (AgentStands(turns=9, max_turns=9, complete=True), StopReason.COMPLETED),
    "has no turn left": (AgentStands(turns=9, max_turns=9), StopReason.TURN_LIMIT),
    "has no room left": (AgentStands(room=0), StopReason.TOKEN_LIMIT),
    "is over the wall": (AgentStands(room=-5), StopReason.TOKEN_LIMIT),
    "is cut at the wall": (AgentStands(cut_at_wall=True), StopReason.TOKEN_LIMIT),
    "cannot be compacted": (AgentStands(compaction_failed=True, room=0), StopReason.COMPACTION_FAILED),
    "was unreadable too often": (AgentStands(unreadable=3, max_unreadable=3), StopReason.PARSE_FAILURES),
    "was unreadable once": (AgentStands(unreadable=1, max_unreadable=3), None),
    "was unreadable in its last turn": (
        AgentStands(turns=9, max_turns=9, unreadable=1, max_unreadable=3),
        StopReason.TURN_LIMIT,
    ),
    "left its shell": (AgentStands(shell_alive=False), StopReason.GAVE_UP),
    "left its shell and said it is done": (AgentStands(shell_alive=False, complete=True), StopReason.GAVE_UP),
    "is overdue": (AgentStands(overdue=True), StopReason.AGENT_TIMEOUT),
    "is overdue in a dead shell": (AgentStands(overdue=True, shell_alive=False), StopReason.AGENT_TIMEOUT),
}
SAMPLER = {
    "a turn that stopped": (TurnDrawn("stop", 3, 3), None),
    "a turn that was cut": (TurnDrawn("length", 3, None), None),
    "an aborted turn": (TurnDrawn("abort", 3, 3), FaultCause.SAMPLER),
    "an aborted turn without routing": (TurnDrawn("abort", 3, 3, True), FaultCause.SAMPLER),
    "a turn under other weights": (TurnDrawn("stop", 4, 3), FaultCause.SAMPLER),
    "a turn without its routing": (TurnDrawn("stop", 3, 3, True), FaultCause.CAPTURE_MISSING),
    "HTTP 200": (HttpAnswered(URL, 200, "{}"), None),
    "HTTP 400": (HttpAnswered(URL, 400, "maximum context length"), FaultCause.SAMPLER),
    "HTTP 429": (HttpAnswered(URL, 429), FaultCause.SAMPLER),
    "HTTP 500": (HttpAnswered(URL, 500, "CUDA out of memory"), FaultCause.SAMPLER),
    "HTTP 503": (HttpAnswered(URL, 503), FaultCause.SAMPLER),
}
MACHINE = {
    "a trial past its remote deadline": (TrialOverdue(5400.0), FaultCause.SANDBOX),
    "a box that died": (Raised(InfraFault(FaultCause.SANDBOX, "box1 is gone")), FaultCause.SANDBOX),
    "an image that cannot be built": (Raised(InfraFault(FaultCause.IMAGE, "RUN exited 1")), FaultCause.IMAGE),
    "a sampler that does not answer": (Raised(InfraFault(FaultCause.SAMPLER, "refused")), FaultCause.SAMPLER),
    "a store that lost an object": (Raised(StoreError("no such object")), FaultCause.STORE),
    "a store whose disk is full": (Raised(StoreError("put: No space left on device")), None),
    "a full disk": (Raised(OSError(errno.ENOSPC, "No space left on device")), None),
    "a mistake of ours": (Raised(KeyError("x")), None),
    "a broken record": (Raised(RecordError("lengths")), FaultCause.RECORD),
    "routing that was permuted": (Raised(ChecksumError("t/0: its routing")), FaultCause.CHECKSUM),
    "a token that was not sampled": (Raised(DriftError("trial t")), FaultCause.DRIFT),
    "a wrong configuration": (Raised(ConfigError(["x"])), None),
}
FAULTY_VERIFIER = {
    "apt cannot find a package": (bare_zero("E: Unable to locate package curl"), BOOT),
    "apt cannot fetch": (bare_zero("E: Failed to fetch http://deb.debian.org/x"), BOOT),
    "apt cannot connect": (bare_zero("Err:1 http://deb.debian.org bookworm InRelease"), BOOT),
    "dpkg is locked": (bare_zero("E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by 8"), BOOT),
    "dpkg was interrupted": (bare_zero("E: dpkg was interrupted, you must manually run ..."), BOOT),
    "dpkg is broken": (bare_zero("dpkg: error processing package x"), BOOT),
    "DNS, as apt says it": (bare_zero("W: Temporary failure resolving 'deb.debian.org'"), BOOT),
    "DNS, as Python says it": (bare_zero("urlopen error [Errno -3] Temporary failure in name resolution"), BOOT),
    "DNS, as git says it": (bare_zero("fatal: unable to access: Could not resolve host: github.com"), BOOT),
    "curl cannot connect": (bare_zero("curl: (7) Failed to connect to astral.sh port 443"), BOOT),
    "wget cannot resolve": (bare_zero("wget: unable to resolve host address 'x'"), BOOT),
    "curl is not there": (bare_zero("/tests/test.sh: line 3: curl: command not found"), BOOT),
    "uvx is not there": (bare_zero("/tests/test.sh: line 9: uvx: command not found"), BOOT),
    "uv, as dash says it": (bare_zero("/tests/test.sh: 9: uv: not found"), BOOT),
    "uv cannot fetch": (bare_zero("error: Failed to fetch: `https://pypi.org/simple/pytest/`"), BOOT),
    "uv cannot send": (bare_zero("  ├─▶ Failed to fetch: `https://pypi.org`"), BOOT),
    "pip finds no version": (bare_zero("ERROR: Could not find a version that satisfies the requirement x"), BOOT),
    "npm has no network": (bare_zero("npm ERR! code EAI_AGAIN"), BOOT),
    "pytest is not there": (bare_zero("/usr/bin/python3: No module named pytest"), BOOT),
    "half of pytest is there": (bare_zero("ModuleNotFoundError: No module named 'pygments'"), BOOT),
    "the disk is full": (bare_zero("cp: error writing '/logs/x': No space left on device"), BOOT),
    "it writes among its tests": (bare_zero("gcc: error: /tests/a.out: Read-only file system"), BOOT),
    "it says nothing": (VerifierEnded(0), BOOT),
    "it exits with an error": (VerifierEnded(3, said="oops"), BOOT),
    "its script is not one": (VerifierEnded(2, said="syntax error near unexpected token"), BOOT),
    "its program is not there": (VerifierEnded(127, said="bash: /tests/test.sh: No such file"), BOOT),
    "it exits with 255": (VerifierEnded(255), BOOT),
    "its verdict cannot be read": (VerifierEnded(0, files=VerifierReport({}, None, "files", "not a number")), BOOT),
    "its verdict cannot be read beside a good report": (
        VerifierEnded(0, stream=SOLVED, files=VerifierReport({}, None, "files", "reward.txt: not a finite number")),
        BOOT,
    ),
    "its report names nothing": (VerifierEnded(0, stream=stream(None, cause="the report names no assertions")), BOOT),
    "it ran out of time": (VerifierEnded(None, timed_out=True, timeout_s=9.0), LATE),
    "it ran out of time before it collected": (
        VerifierEnded(None, timed_out=True, timeout_s=9.0, stream=stream(None, cause="the report breaks off")),
        LATE,
    ),
    "it ran out of time and memory": (VerifierEnded(None, timed_out=True, oom=True), LATE),
    "it ran out of memory": (VerifierEnded(137, oom=True), KILLED),
    "a part of it ran out of memory": (VerifierEnded(1, oom=True, said="Killed"), KILLED),
    "it was killed": (VerifierEnded(137), KILLED),
    "it was terminated": (VerifierEnded(143), KILLED),
    "it crashed": (VerifierEnded(139), KILLED),
}
TAMPERED = "tampering: reward.txt says 1"
VERDICTS = {
    "all passed, on our channel": (VerifierEnded(0, stream=SOLVED), True, None),
    "one failed, on our channel": (VerifierEnded(0, stream=UNSOLVED), False, None),
    "one failed, and the script's verdict cannot be read": (
        VerifierEnded(0, stream=UNSOLVED, files=VerifierReport({}, None, "files", "reward.txt: not a number")),
        False,
        None,
    ),
    "both say so": (VerifierEnded(0, stream=SOLVED, files=wrote(True)), True, None),
    "the script asks for more": (VerifierEnded(0, stream=SOLVED, files=wrote(False)), False, None),
    "the script says more than its tests": (
        VerifierEnded(0, stream=UNSOLVED, files=wrote(True)),
        False,
        f"{TAMPERED} where assertions failed",
    ),
    "a runner that crashed": (VerifierEnded(0, stream=BROKEN_OFF, files=wrote(False)), False, BROKEN_OFF.parse_cause),
    "a runner that was ended as if well": (
        VerifierEnded(0, stream=BROKEN_OFF, files=wrote(True)),
        False,
        f"{BROKEN_OFF.parse_cause}; {TAMPERED}",
    ),
    "out of time, once it had collected": (
        VerifierEnded(None, timed_out=True, timeout_s=9.0, stream=BROKEN_OFF),
        False,
        f"{BROKEN_OFF.parse_cause}; no verdict within 9 s",
    ),
    "out of memory, once it had collected": (
        VerifierEnded(1, oom=True, stream=BROKEN_OFF),
        False,
        f"{BROKEN_OFF.parse_cause}; out of memory",
    ),
    "killed, once it had collected": (
        VerifierEnded(137, stream=BROKEN_OFF),
        False,
        f"{BROKEN_OFF.parse_cause}; SIGKILL",
    ),
    "ended by itself, once it had collected": (VerifierEnded(1, stream=BROKEN_OFF), False, BROKEN_OFF.parse_cause),
    "out of time, and a pipe where the work is": (
        VerifierEnded(None, timed_out=True, timeout_s=9.0, waits_at="/app/word"),
        False,
        "tampering: /app/word is a pipe or a device: no verdict within 9 s",
    ),
    "a verdict, then killed": (VerifierEnded(137, stream=UNSOLVED), False, None),
    "a verdict, then out of time": (VerifierEnded(None, timed_out=True, files=wrote(True)), True, None),
    "a verdict, though memory ran out": (VerifierEnded(0, oom=True, files=wrote(False)), False, None),
    "Harbor's 1": (VerifierEnded(0, files=wrote(True)), True, None),
    "Harbor's 1 after a failed download": (VerifierEnded(0, said="curl: (7) x", files=wrote(True)), True, None),
    "Harbor's 0": (VerifierEnded(1, said="1 failed", files=wrote(False)), False, None),
    "Harbor's 0 with assertions after a failed download": (
        VerifierEnded(0, said="curl: (7) x", files=wrote(False, PASSED, FAILED)),
        False,
        None,
    ),
    "Harbor's 0 and pytest's own warning of read-only tests": (
        VerifierEnded(
            1,
            said="PytestCacheWarning: could not create cache path /tests/.pytest_cache: Read-only file system",
            files=wrote(False),
        ),
        False,
        None,
    ),
    "a changed system": (
        VerifierEnded(0, stream=SOLVED, files=wrote(True), system_whole=False),
        False,
        "tampering: the system was changed while the tests ran",
    ),
    "Harbor's 1 that somebody else may have written": (
        VerifierEnded(0, files=wrote(True), logs_whole=False),
        False,
        "tampering: what the verifier wrote is not as it left it",
    ),
    "both say so, and the file was written to again": (
        VerifierEnded(0, stream=SOLVED, files=wrote(True), logs_whole=False),
        False,
        "tampering: what the verifier wrote is not as it left it",
    ),
    "two files that disagree, and the channel": (
        VerifierEnded(
            0, stream=UNSOLVED, files=VerifierReport({}, False, "reward.txt", "x: y; tampering: reward.json says 1")
        ),
        False,
        "tampering: reward.json says 1",
    ),
    "changed tests": (
        VerifierEnded(0, stream=SOLVED, files=wrote(True), tests_whole=False),
        False,
        "tampering: the tests were changed while they ran",
    ),
}


def test_the_table_has_every_outcome_there_is():
    everything = [*AGENT.values(), *SAMPLER.values(), *MACHINE.values(), *FAULTY_VERIFIER.values(), *VERDICTS.values()]
    meanings = {row[1] for row in everything}
    assert len(everything) >= 40
    assert set(StopReason) <= meanings
    assert set(FaultCause) - meanings == {FaultCause.TRAINER}  # no trial meets its trainer


@pytest.mark.parametrize("name", AGENT)
def test_what_the_agent_does_is_a_stop_or_nothing(name):
    stands, reason = AGENT[name]
    assert classify(stands) is reason


@pytest.mark.parametrize("name", [*SAMPLER, *MACHINE, *FAULTY_VERIFIER])
def test_what_the_infrastructure_does_is_a_fault_with_its_cause_or_is_not_ours(name):
    situation, cause = (SAMPLER | MACHINE | FAULTY_VERIFIER)[name]
    meaning = classify(situation)
    assert (meaning and meaning.cause) is cause
    assert meaning is None or isinstance(meaning, InfraFault)


@pytest.mark.parametrize("name", VERDICTS)
def test_a_verdict_is_a_verdict_and_says_what_was_wrong_with_it(name):
    run, outcome, cause = VERDICTS[name]
    report = classify(run)
    assert (report.outcome, report.parse_cause) == (outcome, cause)


def test_a_fault_quotes_the_end_of_what_was_said():
    fault = classify(VerifierEnded(137, said="x" * 5000 + "\nKilled\n"))
    assert fault.detail.startswith("no verdict was written: SIGKILL (exit 137): x")
    assert fault.detail.endswith("Killed")
    assert len(fault.detail) < 700
    setup = classify(bare_zero("E: Unable to locate package curl"))
    assert "set-up failed: E: Unable to locate package curl (exit 0): first line" in setup.detail
    assert "(no output)" in classify(VerifierEnded(0)).detail


def test_which_causes_speak_against_a_task():
    assert {FaultCause.IMAGE, BOOT, LATE, KILLED} == AGAINST_TASK


reports = st.none() | st.builds(
    VerifierReport,
    st.dictionaries(st.sampled_from("abc"), st.sampled_from(AssertionOutcome), max_size=3),
    st.sampled_from([True, False, None]),
    st.just("x"),
    st.none() | st.just("cause"),
)
runs = st.builds(
    VerifierEnded,
    exit_code=st.none() | st.integers(0, 255),
    timed_out=st.booleans(),
    oom=st.booleans(),
    said=st.sampled_from(["", "curl: (6) x", "1 failed"]) | st.text(),
    stream=reports,
    files=reports,
    tests_whole=st.booleans(),
    system_whole=st.booleans(),
    logs_whole=st.booleans(),
    waits_at=st.none() | st.just("/app/word"),
)


@given(runs)
def test_no_pass_without_one_and_no_zero_without_a_verdict(run):
    meaning = classify(run)
    given_verdicts = [report.outcome for report in (run.stream, run.files) if report and report.outcome is not None]
    collected = run.stream is not None and bool(run.stream.assertions)
    if isinstance(meaning, InfraFault):
        assert run.tests_whole
        assert run.system_whole
        assert run.logs_whole
        assert not collected or given_verdicts == [True]
        assert meaning.cause in (BOOT, LATE, KILLED)
        unread = run.files is not None and run.files.outcome is None and run.files.parse_cause
        assert given_verdicts in ([], [False], *([[True]] if unread else []))
        return
    assert meaning.outcome is not None
    whole = run.tests_whole and run.system_whole
    assert given_verdicts or collected or run.waits_at or not (whole and run.logs_whole)
    if meaning.outcome:
        assert whole
        assert run.logs_whole
        assert False not in given_verdicts


@pytest.mark.parametrize(
    ("assertions", "said", "number"),
    [
        ((True, PASSED, PASSED), 1.0, 1.0),
        ((False, PASSED, FAILED), 0.25, 0.25),
        ((True, PASSED, PASSED), 0.5, 0.5),
        ((False, PASSED, FAILED), 1.0, None),
    ],
    ids=["both agree", "both say no", "the script asks for more", "the script says more than its assertions"],
)
def test_the_number_that_a_verifier_wrote_goes_with_its_verdict_unless_it_is_not_believed(assertions, said, number):
    files = VerifierReport({}, said == 1, "reward.txt", None, said)
    verdict = classify(VerifierEnded(0, stream=stream(*assertions), files=files))
    assert (verdict.outcome, verdict.number) == (assertions[0] and said == 1, number)


def test_a_fraction_beside_words_of_a_failed_set_up_is_a_verdict():
    files = VerifierReport({}, False, "reward.txt", None, 0.4)
    assert classify(VerifierEnded(0, said="E: Unable to locate package x", files=files)).number == 0.4


def keys_refused(stderr="''", stdout="''", command="'tmux send-keys -t terminus-2 ls'"):
    """What Harbor says where it cannot type into the agent's terminal."""
    told = f"t__abc: failed to send non-blocking keys: command={command}, return_code=1, stderr={stderr}"
    return HarborEnded("RuntimeError", f"{told}, stdout={stdout}", turns=2, max_turns=5)


NO_SERVER = r"'no server running on /tmp/tmux-0/default\n'"
HARBOR = {
    "left its shell in the midst of its commands": (keys_refused(NO_SERVER), StopReason.GAVE_UP),
    "the same, where both streams are one": (keys_refused("None", NO_SERVER), StopReason.GAVE_UP),
    "ended its session and left another": (keys_refused('"can\'t find pane: terminus-2"'), StopReason.GAVE_UP),
    "killed tmux under way": (keys_refused("'server exited unexpectedly'"), StopReason.GAVE_UP),
    "removed the socket": (
        keys_refused("'error connecting to /tmp/tmux-0/default (No such file)'"),
        StopReason.GAVE_UP,
    ),
    "typed tmux's words into a box that is gone": (
        keys_refused("'container is not running'", command=NO_SERVER),
        FaultCause.SANDBOX,
    ),
    "keys that came too late": (keys_refused("'timed out after 60 s'"), FaultCause.SANDBOX),
    "no tmux to begin with": (
        HarborEnded("RuntimeError", f"Failed to start tmux session. Error: {NO_SERVER}"),
        FaultCause.SANDBOX,
    ),
    "completed": (HarborEnded(None, complete=True, turns=5, max_turns=5), StopReason.COMPLETED),
    "out of turns": (HarborEnded(None, complete=False, turns=5, max_turns=5), StopReason.TURN_LIMIT),
    "left its shell": (HarborEnded(None, complete=False, turns=4, max_turns=5), StopReason.GAVE_UP),
    "not told how": (HarborEnded(None), StopReason.COMPLETED),
    "its verifier failed": (HarborEnded("RewardFileNotFoundError", complete=True), StopReason.COMPLETED),
    "out of time": (HarborEnded("AgentTimeoutError"), StopReason.AGENT_TIMEOUT),
    "out of context": (HarborEnded("ContextLengthExceededError"), StopReason.TOKEN_LIMIT),
    "refused the task": (HarborEnded("AgentSafetyRefusalError"), StopReason.GAVE_UP),
    "no model": (HarborEnded("ServiceUnavailableError"), FaultCause.SAMPLER),
    "no image": (HarborEnded("SandboxBuildFailedError"), FaultCause.IMAGE),
    "an error of Harbor's own": (HarborEnded("AttributeError"), FaultCause.SANDBOX),
    "an error that nobody knows": (HarborEnded("NewError"), FaultCause.SANDBOX),
}


@pytest.mark.parametrize("name", HARBOR)
def test_the_end_of_a_trial_of_harbors_is_the_policys_or_the_infrastructures(name):
    situation, meaning = HARBOR[name]
    found = classify(situation)
    assert (found.cause if isinstance(found, InfraFault) else found) is meaning
