"""What Harbor leaves, as our trials: files that three versions left, and others written by hand after them.

`harbor_left/` is of tasks and script of `test_harbor_real.py`, run by Harbor 0.7.0, 0.25.0 and 0.26.0 in our boxes
(0.7.0 by a class made to fit). Of `config` only the task is kept, of trajectories sources and calls.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from components.errors import FaultCause, StopReason
from components.evaluation import aggregate
from components.evaluation.harbor import missing, read_job, remove_snares
from components.records import AssertionOutcome, TaskRef, Trial
from components.reward import ASSERTION_FILES
from tests.evaluation.harbor_files import answer, error, minute, result, write

REF = TaskRef("suite", "count-lines", "d", "text", difficulty="easy")
DONE = "mark_task_complete"
COUNTS = ("turns", "sampled_tokens", "prompt_tokens", "compactions_attempted", "harness")


LEFT = Path(__file__).with_name("harbor_left")
VERSIONS = ("0.7.0", "0.25.0", "0.26.0")


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_version_left_when_it_was_run_is_read_as_what_happened(version: str) -> None:
    found = {left.task: left for left in read_job(LEFT / version)}
    ours = {name: left.trial(name, REF, max_turns=5, verifier_timeout_s=30) for name, left in found.items()}
    assert {name: (one.stop, one.report and one.report.outcome) for name, one in ours.items()} == {
        "solved": (StopReason.COMPLETED, True),
        "never-done": (StopReason.TURN_LIMIT, True),
        "no-verdict": (StopReason.COMPLETED, None),
    }
    fault = ours["no-verdict"].fault
    assert fault is not None
    assert fault.cause is FaultCause.VERIFIER_BOOTSTRAP
    assert "No reward file found" in str(fault)
    counted = {name: [one.facts[key] for key in COUNTS] for name, one in ours.items()}
    assert counted["solved"] == [3, 263, 9_984, 0, "harbor terminus-2 2.0.0"]
    assert counted["never-done"][:2] == [5, 563], "what its prompts held depends on when a screen was looked at"
    assert all(set(one.timings_s) >= {"start", "agent_setup", "agent"} for one in ours.values())
    assert all(seconds > 0 for one in ours.values() for seconds in one.timings_s.values())


def trial(job: Path, **limits: int) -> Trial:
    (found,) = read_job(job)
    return found.trial("t1", REF, max_turns=limits.get("max_turns", 60), verifier_timeout_s=900)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_resolved_trial_of_every_version_is_one_of_ours(tmp_path: Path, version: str) -> None:
    steps = [{"source": "user", "message": "task"}, answer("bash_command"), answer(DONE), answer(), answer(DONE)]
    write(tmp_path / "count-lines__abc1234", result(version), steps, test__stdout_txt="ok")
    (found,) = read_job(tmp_path)
    assert (found.task, found.agent) == ("count-lines", "terminus-2 2.0.0")
    ours = found.trial("t1", REF, max_turns=60, verifier_timeout_s=900)
    assert (ours.stop, ours.fault) == (StopReason.COMPLETED, None)
    assert ours.report is not None
    assert (ours.report.outcome, ours.report.number, ours.report.source) == (True, 1.0, "harbor: reward.json")
    assert ours.timings_s == {"start": 60, "agent_setup": 60, "agent": 300, "verify": 120}
    assert ours.facts["harness"] == "harbor terminus-2 2.0.0"
    score = aggregate([ours])
    assert (score.resolved, score.turns_mean, score.sampled_tokens_mean, score.prompt_tokens_mean) == (1.0, 4, 70, 900)


def test_assertions_beside_harbors_reward_are_read(tmp_path: Path) -> None:
    tests = [{"name": "test_a", "status": "passed"}, {"name": "test_b", "status": "failed"}]
    ctrf = {"results": {"summary": {"tests": 2, "passed": 1, "failed": 1}, "tests": tests}}
    document = result("0.25.0", verifier_result={"rewards": {"reward": 0.0}})
    write(tmp_path / "a", document, ctrf_json=json.dumps(ctrf))
    report = trial(tmp_path).report
    assert report is not None
    assert report.outcome is False
    assert sorted(report.assertions.values()) == [AssertionOutcome.FAILED, AssertionOutcome.PASSED]


@pytest.mark.parametrize(
    ("exception", "rewards", "expected"),
    [
        ("AgentTimeoutError", {"reward": 1.0}, (StopReason.AGENT_TIMEOUT, True)),
        ("AgentTimeoutError", {"reward": 0.0}, (StopReason.AGENT_TIMEOUT, False)),
        ("AgentTimeoutError", None, FaultCause.VERIFIER_BOOTSTRAP),
        ("ContextLengthExceededError", {"reward": 0.0}, (StopReason.TOKEN_LIMIT, False)),
        ("ContextLengthExceededError", None, (StopReason.TOKEN_LIMIT, False)),
        ("VerifierTimeoutError", None, FaultCause.VERIFIER_TIMEOUT),
        ("RewardFileNotFoundError", None, FaultCause.VERIFIER_BOOTSTRAP),
        ("APIConnectionError", {"reward": 0.0}, FaultCause.SAMPLER),
        ("SandboxBuildFailedError", None, FaultCause.IMAGE),
        ("EnvironmentStartTimeoutError", None, FaultCause.SANDBOX),
        ("AttributeError", {"reward": 0.0}, FaultCause.SANDBOX),
        ("CancelledError", None, FaultCause.SANDBOX),
        (None, {"reward": float("nan")}, FaultCause.VERIFIER_BOOTSTRAP),
        (None, {"speed": 0.5, "size": 0.5}, FaultCause.VERIFIER_BOOTSTRAP),
        (None, None, FaultCause.VERIFIER_BOOTSTRAP),
    ],
)
def test_every_end_is_the_policys_or_the_infrastructures_and_a_fault_outweighs_a_reward(
    tmp_path: Path, exception: str | None, rewards: dict[str, float] | None, expected: object
) -> None:
    told = None if exception is None else error(exception)
    verdict = None if rewards is None else {"rewards": rewards}
    write(tmp_path / "a", result("0.25.0", exception_info=told, verifier_result=verdict))
    ours = trial(tmp_path)
    if isinstance(expected, FaultCause):
        assert ours.fault is not None
        assert (ours.fault.cause, ours.report) == (expected, None)
    else:
        assert ours.report is not None
        assert (ours.stop, ours.report.outcome) == expected
    if exception == "AttributeError":
        assert "AttributeError: said" in str(ours.fault)


def test_who_leaves_the_terminal_has_not_resolved_the_task_though_harbor_verifies_nothing(tmp_path: Path) -> None:
    # `exit` in the midst of an answer's commands was a fault of the sandbox, and the task was tried again.
    told = "a: failed to send blocking keys: command='tmux', return_code=1, stderr='no server running on x', stdout=''"
    write(tmp_path / "a", result("0.25.0", exception_info=error("RuntimeError", told), verifier_result=None))
    ours = trial(tmp_path)
    assert ours.report is not None
    assert (ours.stop, ours.report.outcome, ours.report.source) == (StopReason.GAVE_UP, False, "harbor")
    assert "verifies no trial" in str(ours.report.parse_cause)


def test_a_zero_beside_a_failed_set_up_of_the_verifier_is_a_fault_as_everywhere(tmp_path: Path) -> None:
    # Of 3,560 public trials 236 were scored 0 because curl, apt or uv failed inside test.sh.
    document = result("0.25.0", verifier_result={"rewards": {"reward": 0.0}})
    write(tmp_path / "a", document, test__stdout_txt="curl: (6) Could not resolve host: astral.sh\n")
    fault = trial(tmp_path).fault
    assert fault is not None
    assert fault.cause is FaultCause.VERIFIER_BOOTSTRAP


@pytest.mark.parametrize(
    ("steps", "turns", "stop"),
    [
        ([answer(DONE), answer(DONE)], 60, StopReason.COMPLETED),
        ([answer(DONE), answer("bash_command"), answer(DONE)], 60, StopReason.TURN_LIMIT),
        ([answer("bash_command"), answer("bash_command")], 60, StopReason.TURN_LIMIT),
        ([answer("bash_command"), answer(DONE)], 9, StopReason.GAVE_UP),
        (None, 9, StopReason.COMPLETED),
    ],
    ids=["claimed twice", "taken back", "out of turns", "left its shell", "no trajectory to tell"],
)
def test_an_end_without_an_error_is_told_by_the_trajectory(
    tmp_path: Path, steps: list[dict] | None, turns: int, stop: StopReason
) -> None:
    document = result("0.25.0")
    document["agent_result"]["metadata"]["n_episodes"] = turns
    write(tmp_path / "a", document, steps)
    assert trial(tmp_path).stop is stop


def test_what_is_unfinished_damaged_or_uncounted_is_absent(tmp_path: Path) -> None:
    write(tmp_path / "unfinished", result("0.25.0", finished_at=None))
    (tmp_path / "no-result").mkdir()
    write(tmp_path / "torn", {}).joinpath("result.json").write_text('{"finished_at": "20')
    (tmp_path / "result.json").write_text("{}")
    write(tmp_path / "oracle", result("0.25.0", agent_result=None, agent_info={"name": "oracle"}))
    ours = trial(tmp_path)
    assert (ours.facts["turns"], ours.facts["sampled_tokens"], ours.facts["harness"]) == (None, None, "harbor oracle")
    score = aggregate([ours, missing("t2", REF)])
    assert (score.turns_mean, score.faults, score.denominators["all"].resolved) == (None, 1, 0.5)
    assert read_job(tmp_path / "nowhere") == []


@pytest.mark.timeout(30)
def test_what_an_agent_laid_for_whoever_reads_its_folder_is_neither_followed_nor_waited_for(tmp_path: Path) -> None:
    # Under Harbor's own Docker these folders are mounted: a pipe ended nothing and let nothing end.
    outside = tmp_path / "host" / "secret"
    outside.parent.mkdir()
    outside.write_text("hunter2")
    folder = write(tmp_path / "job" / "a", result("0.25.0"), [answer(DONE), answer(DONE)], test__stdout_txt="ok")
    laid = {"verifier/test-stdout.txt": str(outside), "agent/trajectory.json": "../../../host/secret"}
    for place, target in laid.items():
        (folder / place).unlink()
        (folder / place).symlink_to(target)
    os.mkfifo(folder / "verifier" / next(iter(ASSERTION_FILES)))
    (folder / "agent" / "inside").symlink_to("nowhere")
    (found,) = read_job(tmp_path / "job")
    assert (found.said, found.complete, found.files) == ("", None, {})
    assert remove_snares(tmp_path / "job") == sorted(
        f"a/{place}" for place in (*laid, f"verifier/{next(iter(ASSERTION_FILES))}")
    )
    assert remove_snares(tmp_path / "job") == []
    assert outside.read_text() == "hunter2"
    assert (folder / "agent" / "inside").is_symlink(), "it leads nowhere else"


def test_attempts_are_in_the_order_in_which_they_began(tmp_path: Path) -> None:
    for name, began in (("a__2", 5), ("a__1", 6), ("a__3", 4)):
        write(tmp_path / name, result("0.25.0", trial_name=name, started_at=minute(began)))
    assert [found.name for found in read_job(tmp_path)] == ["a__3", "a__2", "a__1"]
