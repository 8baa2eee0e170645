"""Verdicts in real boxes. (Agents that would rather write their own: test_forgery.py.)"""

import asyncio
import time
from dataclasses import replace

import pytest

from components.config import SandboxConfig
from components.errors import FaultCause, InfraFault, StopReason
from components.harness import RunningTime, run_trial, verify_result
from components.records import AssertionOutcome
from components.sandbox import SandboxSpec
from tests.harness.parts import FakePolicy, PlainTask, answer, terse, trajectory

SPEC = SandboxSpec(memory_mb=64, disk_mb=8)
OWN = r"""#!/bin/bash
read -r nonce <&4
say() { printf '{"nonce":"%s",%s}\n' "$nonce" "$1"; }
say '"collected":["made","right"]'
outcome() { if eval "$2"; then echo passed; else echo failed; fi; }
say "\"id\":\"made\",\"outcome\":\"$(outcome made '[[ -f word ]]')\""
say "\"id\":\"right\",\"outcome\":\"$(outcome right '[[ $(<word) == fig ]]' 2>/dev/null)\""
say '"finished":true'
"""


def task(tmp_path, script=OWN):
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test.sh").write_text(script)
    return PlainTask(folder, SPEC)


async def graded(backend, graded_task, *commands, timeout_s=60.0):
    """The report on a box in which `commands` ran as root, and what is left of the box."""
    box = await backend.start(SPEC)
    try:
        for command in commands:
            await box.exec(["/bin/bash", "-c", command], timeout_s=60)
        return (await verify_result(box, graded_task, timeout_s=timeout_s)).report
    finally:
        await box.stop()


async def test_assertions_are_read_from_the_verifiers_own_channel(backend, tmp_path):
    graded_task = task(tmp_path)
    good = await graded(backend, graded_task, "echo fig > word")
    assert good.outcome is True
    assert good.assertions == {"made": AssertionOutcome.PASSED, "right": AssertionOutcome.PASSED}
    half = await graded(backend, graded_task, "echo plum > word")
    assert half.outcome is False
    assert half.assertions == {"made": AssertionOutcome.PASSED, "right": AssertionOutcome.FAILED}


async def test_output_that_hides_a_part_of_a_report_is_no_pass_and_beside_the_channel_does_no_harm(backend, tmp_path):
    # It was a fault: a program under test that says enough could choose not to be graded.
    flood = "head -c 5000000 /dev/zero | tr '\\0' x"
    flooded = task(tmp_path, OWN.replace("say '\"finished\":true'", f"{flood}; say '\"finished\":true'"))
    report = await graded(backend, flooded, "echo fig > word")
    assert (report.outcome, report.parse_cause) == (False, "tampering: a flood has left a hole in the report")
    on_channel = OWN.replace('"$nonce" "$1"; }', '"$nonce" "$1" >&3; }')
    (tmp_path / "tests" / "test.sh").write_text(f"{on_channel}\n{flood}")
    report = await graded(backend, PlainTask(tmp_path / "tests", SPEC), "echo fig > word")
    assert report.outcome is True


async def test_an_image_s_own_search_path_stays_behind_ours(backend, tmp_path):
    script = (
        'python3 -c \'import sys; assert sys.path[1:3] == ["/run/longshell", "/app/lib"], sys.path\' && '
        "echo 1 > /logs/verifier/reward.txt"
    )
    spec = SandboxSpec(memory_mb=64, disk_mb=8, env={"PYTHONPATH": "/app/lib"})
    box = await backend.start(spec)
    done = await verify_result(box, task(tmp_path, script), timeout_s=60)
    assert done.report.outcome is True
    await box.stop()


async def test_a_working_directory_that_is_gone_fails_its_assertions(backend, tmp_path):
    report = await graded(backend, task(tmp_path), "cd /; rm -rf /app; echo x > /app")
    assert report.outcome is False


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("exit 0", FaultCause.VERIFIER_BOOTSTRAP),
        ("exit 3", FaultCause.VERIFIER_BOOTSTRAP),
        ("syntax ((", FaultCause.VERIFIER_BOOTSTRAP),
        ("sleep 60", FaultCause.VERIFIER_TIMEOUT),
        ("echo nan > /logs/verifier/reward.txt", FaultCause.VERIFIER_BOOTSTRAP),
        ("echo > /logs/verifier/reward.txt", FaultCause.VERIFIER_BOOTSTRAP),
        ("uvx pytest; echo 0 > /logs/verifier/reward.txt", FaultCause.VERIFIER_BOOTSTRAP),
    ],
)
async def test_a_missing_verdict_is_a_fault_and_never_a_zero(backend, tmp_path, script, cause):
    timeout_s = 1.0 if cause is FaultCause.VERIFIER_TIMEOUT else 60.0
    with pytest.raises(InfraFault) as raised:
        await graded(backend, task(tmp_path, script), timeout_s=timeout_s)
    assert raised.value.cause is cause


async def test_a_verifier_that_is_cut_off_once_it_has_collected_is_a_zero_that_says_what_it_saw(backend, tmp_path):
    # It was a fault, so an agent whose work is wrong could leave the denominator by a program or a pipe that hangs.
    hanging = task(tmp_path, OWN.replace("say '\"finished\":true'", "sleep 60"))
    report = await graded(backend, hanging, "echo fig > word", timeout_s=2.0)
    assert (report.outcome, set(report.assertions.values())) == (False, {AssertionOutcome.PASSED})
    assert report.parse_cause == "the report breaks off: 2 of 2 assertions reported; no verdict within 2 s"


async def test_the_verifier_has_the_variables_that_its_task_names(backend, tmp_path):
    named = replace(task(tmp_path, 'echo "$VERDICT" > /logs/verifier/reward.txt'), verifier_env={"VERDICT": "1"})
    assert (await graded(backend, named)).outcome is True


async def test_a_verdict_of_zero_is_a_zero(backend, tmp_path):
    report = await graded(backend, task(tmp_path, "echo 0 > /logs/verifier/reward.txt"))
    assert (report.outcome, report.source) == (False, "reward.txt")


async def test_a_foreign_verdict_comes_with_its_ctrf_assertions(backend, tmp_path):
    script = """cat > /logs/verifier/ctrf.json <<'END'
{"results":{"tool":{"name":"pytest"},"summary":{"tests":2},"tests":[
{"name":"test_a.py::test_one","status":"passed","duration":1},{"name":"test_a.py::test_two","status":"failed","duration":1}]}}
END
echo '{"reward": 0}' > /logs/verifier/reward.json"""
    report = await graded(backend, task(tmp_path, script))
    assert report.outcome is False
    assert sorted(report.assertions.values()) == [AssertionOutcome.FAILED, AssertionOutcome.PASSED]


def play(backend, played, policy, time=None, **changes):
    return run_trial(
        played,
        trial_id="t",
        backend=backend,
        trajectory=trajectory(policy),
        config=terse(**{"max_command_s": 60, "patience_s": 60, "echo": False} | changes),
        sandbox=SandboxConfig(),
        agent_timeout_s=100,
        verifier_timeout_s=60,
        time=time,
    )


async def test_a_trial_in_a_real_box_sees_its_shell_and_is_graded(backend, tmp_path):
    policy = FakePolicy(answer("echo fig > word"), answer("cat word"))
    trial = await play(backend, task(tmp_path), policy)
    assert policy.observations == ["write a word\n$ ", "$ ", "fig\n$ "]
    assert trial.stop is StopReason.COMPLETED
    assert trial.report.outcome is True


class HangsAtLast(FakePolicy):
    """The time of its trial is over soon after its last answer, whose command does not end."""

    def __init__(self, *texts, time):
        super().__init__(*texts)
        self._time = time

    async def answer(self, prompt, **limits):
        written = await super().answer(prompt, **limits)
        if not self.texts:
            asyncio.get_running_loop().call_later(0.3, self._time.advance, 1000)
        return written


async def test_an_agent_that_hangs_is_timed_out_and_graded(backend, tmp_path):
    time = RunningTime()
    policy = HangsAtLast(answer("echo fig > word"), answer("sleep 60"), time=time)
    trial = await play(backend, task(tmp_path), policy, time)
    assert trial.stop is StopReason.AGENT_TIMEOUT
    assert trial.report.outcome is True


async def test_an_agent_that_leaves_its_shell_gave_up_and_is_graded(backend, tmp_path):
    trial = await play(backend, task(tmp_path), FakePolicy(answer("echo fig > word; exit")))
    assert trial.stop is StopReason.GAVE_UP
    assert trial.report.outcome is True


async def test_cancelled_trials_leave_no_box(backend, tmp_path):
    played = task(tmp_path)
    policies = [FakePolicy(answer("sleep 60")) for _ in range(8)]
    running = [asyncio.create_task(play(backend, played, policy)) for policy in policies]
    async with asyncio.timeout(100):
        while not all(policy.prompts for policy in policies):
            await asyncio.sleep(0.01)
    for trial in running:
        trial.cancel()
    ended = await asyncio.gather(*running, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ended)
    assert backend._lives == {}


async def test_many_trials_at_once_share_one_core(backend, tmp_path):
    played = task(tmp_path)
    policies = [FakePolicy(answer("echo fig > word"), answer("cat word")) for _ in range(24)]
    started, cpu = time.monotonic(), time.process_time()
    trials = await asyncio.gather(*(play(backend, played, policy) for policy in policies))
    assert all(trial.report is not None and trial.report.outcome for trial in trials)
    assert all(policy.observations[2] == "fig\n$ " for policy in policies)
    print(f"24 trials: {time.monotonic() - started:.2f} s, {time.process_time() - cpu:.2f} s of this process")
