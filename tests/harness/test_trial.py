"""Trials in a box that only remembers what was done to it."""

import asyncio
import json
from pathlib import Path

import pytest

from components.config import SandboxConfig
from components.errors import BoxSpent, DriftError, FaultCause, InfraFault, RecordError, StopReason, StoreError
from components.harness import Progress, dismiss, run_trial
from components.sandbox import ExecResult, Left, Remains, SandboxSpec
from tests.harness.parts import BUDGET, FakePolicy, FakeTerminal, PlainTask, answer, terse, trajectory


class FakeBox:
    """A box whose view says what a good verifier would say."""

    isolation = "fake"
    shell = "/bin/bash"
    left = Left(("changed /usr/bin/less",), (), ("sleep",))

    def __init__(self, backend):
        self.backend = backend
        self.id = f"box-{len(backend.boxes)}"
        self.stopped = 0
        self.shell = FakeTerminal()
        backend.boxes.append(self)

    async def terminal(self, *, rows, columns, echo):
        return self.shell

    async def fork_view(self):
        return FakeBox(self.backend)

    async def put(self, files):
        assert {Path(path).parts[1] for path in files} == {"tests", "run"}

    networked = False

    async def seal(self, *paths, system):
        assert paths == ("/tests", "/run/longshell")
        assert system

    async def finish(self, since):
        return Remains()

    async def get(self, path, *, max_bytes):
        raise FileNotFoundError(path)

    async def exec(self, argv, *, timeout_s, cwd=None, env=None, max_output_bytes=0, merge_stderr=True, secret=None):
        nonce = None if secret is None else secret.decode().strip()
        lines = [] if nonce is None else [{"collected": ["a"]}, {"id": "a", "outcome": "passed"}, {"finished": True}]
        text = "".join(json.dumps({"nonce": nonce, **line}) + "\n" for line in lines)
        return ExecResult(0, text.encode(), b"", False, False, False)

    async def stop(self):
        await asyncio.sleep(self.backend.stop_s)
        self.stopped += 1
        if self.backend.stop_fault is not None:
            raise self.backend.stop_fault


class FakeBackend:
    name = isolation = "fake"

    def __init__(self, *, start_fault=None, stop_fault=None, stop_s=0.0):
        self.start_fault, self.stop_fault, self.stop_s = start_fault, stop_fault, stop_s
        self.boxes = []

    async def start(self, spec):
        if self.start_fault is not None:
            raise self.start_fault
        return FakeBox(self)

    async def close(self):
        return None


async def trial(policy, backend=None, *, progress=None, agent_s=5.0, task=None, **changes):
    return await run_trial(
        task or PlainTask(Path("/nowhere"), SandboxSpec()),
        trial_id="t1",
        backend=backend or FakeBackend(),
        trajectory=trajectory(policy),
        config=terse(**changes),
        sandbox=SandboxConfig(),
        agent_timeout_s=agent_s,
        verifier_timeout_s=5.0,
        progress=progress,
    )


async def test_a_trial_ends_graded_with_its_box_gone_and_its_phases_timed():
    backend, progress = FakeBackend(), Progress()
    done = await trial(FakePolicy(answer("ls")), backend, progress=progress)
    assert done.stop is StopReason.COMPLETED
    assert done.report.outcome is True
    assert [box.stopped for box in backend.boxes] == [1, 1]
    assert backend.boxes[0].shell.closed
    assert set(done.timings_s) == {"start", "sample", "execute", "verify", "stop"}
    assert done.facts["commands"] == 1
    assert done.facts["isolation"] == "fake"
    assert done.facts["tampering"] == ["changed /usr/bin/less"]
    assert done.facts["left_running"] == ["sleep"]
    assert (progress.turns, progress.tokens) == (2, len(done.turns[-1].prompt_ids) + len(done.turns[-1].completion_ids))


async def test_the_shorter_of_the_tasks_deadline_and_the_campaigns_holds():
    hurried = PlainTask(Path("/nowhere"), SandboxSpec(), agent_timeout_s=0.05)
    done = await trial(FakePolicy(answer("hang")), task=hurried, max_command_s=30)
    assert done.stop is StopReason.AGENT_TIMEOUT
    patient = PlainTask(Path("/nowhere"), SandboxSpec(), agent_timeout_s=3_000.0)
    done = await trial(FakePolicy(answer("hang")), task=patient, agent_s=0.05, max_command_s=30)
    assert done.stop is StopReason.AGENT_TIMEOUT


REASONS = {
    StopReason.COMPLETED: ([answer(done=True)], {}),
    StopReason.TURN_LIMIT: ([answer("ls")] * 3, {"max_turns": 2}),
    StopReason.TOKEN_LIMIT: ([answer("ls")] * 30, {"max_context_tokens": 501}),
    StopReason.AGENT_TIMEOUT: ([answer("hang")], {"agent_s": 0.05, "max_command_s": 30}),
    StopReason.PARSE_FAILURES: (["?"] * 3, {}),
    StopReason.GAVE_UP: ([answer("exit")], {}),
    StopReason.COMPACTION_FAILED: ([answer("x" * 120)] * 3 + [""], {"max_context_tokens": 800, "compaction": BUDGET}),
}


@pytest.mark.parametrize("reason", StopReason)
async def test_whatever_the_agent_does_is_graded(reason):
    texts, changes = REASONS[reason]
    backend = FakeBackend()
    done = await trial(FakePolicy(*texts), backend, **changes)
    assert done.stop is reason
    assert done.fault is None
    assert done.report.outcome is True
    assert all(box.stopped for box in backend.boxes)


@pytest.mark.parametrize("where", ["terminal", "view", "verifier"])
async def test_whoever_takes_a_boxs_memory_is_graded_whenever_that_ends_it(where):
    """A policy that would fail could choose to be left out of the denominator."""
    spent = BoxSpent(FaultCause.SANDBOX, "box1 ended: the kernel killed its first process for memory")

    class SpentBox(FakeBox):
        async def fork_view(self):
            if where != "verifier":
                raise spent
            return SpentBox(self.backend)

        async def exec(self, argv, **options):
            raise spent

        async def terminal(self, **options):
            if where == "terminal":
                self.shell.send = self.send
            return self.shell

        async def send(self, keystrokes):
            raise spent

    class SpentBackend(FakeBackend):
        async def start(self, spec):
            return SpentBox(self)

    backend = SpentBackend()
    done = await trial(FakePolicy(answer("swarm")), backend)
    assert done.stop is (StopReason.GAVE_UP if where == "terminal" else StopReason.COMPLETED)
    assert done.fault is None
    assert (done.report.outcome, done.report.parse_cause) == (False, spent.detail)
    assert all(box.stopped for box in backend.boxes)


@pytest.mark.parametrize("where", ["start", "terminal", "policy"])
async def test_a_fault_of_the_infrastructure_has_no_report(where):
    backend = FakeBackend()
    policy = FakePolicy(answer("break")) if where == "terminal" else FakePolicy()
    if where == "start":
        backend.start_fault = InfraFault(FaultCause.IMAGE, "no such base")
    if where == "policy":

        async def down(*args, **kwargs):
            raise InfraFault(FaultCause.SAMPLER, "connection refused")

        policy.answer = down
    done = await trial(policy, backend)
    assert done.report is None
    assert done.stop is None
    cause = {"start": FaultCause.IMAGE, "terminal": FaultCause.SANDBOX, "policy": FaultCause.SAMPLER}[where]
    assert done.fault.cause is cause
    assert len(done.turns) == (where == "terminal")
    assert all(box.stopped for box in backend.boxes)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (RecordError("the chat template refuses the messages"), FaultCause.RECORD),
        (DriftError("a prompt is not what was drawn"), FaultCause.DRIFT),
        (StoreError("an object is lost"), FaultCause.STORE),
    ],
)
async def test_what_cannot_be_recorded_is_a_fault_of_its_trial_and_ends_nothing_else(error, cause):
    """A RecordError of one trial had ended its whole evaluation."""
    policy, backend, drawn = FakePolicy(answer("ls")), FakeBackend(), []
    draw = policy.answer

    async def refuse(*args, **kwargs):
        if drawn:
            raise error
        drawn.append(await draw(*args, **kwargs))
        return drawn[0]

    policy.answer = refuse
    done = await trial(policy, backend)
    assert (done.report, done.stop, done.fault.cause, len(done.turns)) == (None, None, cause, 1)
    assert all(box.stopped for box in backend.boxes)


async def test_a_full_disk_is_told_to_whoever_can_free_it():
    async def full(*args, **kwargs):
        raise StoreError("put: No space left on device")

    policy = FakePolicy()
    policy.answer = full
    with pytest.raises(StoreError):
        await trial(policy)


async def test_a_box_that_does_not_stop_leaves_the_verdict_alone():
    backend = FakeBackend(stop_fault=InfraFault(FaultCause.SANDBOX, "busy"))
    done = await trial(FakePolicy(), backend)
    assert [box.stopped for box in backend.boxes] == [1, 1]  # the agent's, and the verifier's view
    assert done.report.outcome
    assert done.fault is None
    assert done.facts["stop_fault"] == "sandbox: busy"


async def test_cancelling_a_trial_stops_its_box_first_even_when_cancelled_again():
    backend = FakeBackend(stop_s=0.02)
    running = asyncio.create_task(trial(FakePolicy(answer("hang")), backend, max_command_s=30))
    await asyncio.sleep(0.02)
    running.cancel()
    await asyncio.sleep(0.005)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [box.stopped for box in backend.boxes] == [1]


async def test_a_cancellation_is_not_lost_to_a_box_that_does_not_stop():
    stopping, busy = asyncio.Event(), asyncio.Event()

    class Stuck:
        id = "stuck"

        async def stop(self):
            stopping.set()
            await busy.wait()
            raise InfraFault(FaultCause.SANDBOX, "busy")

    dismissing = asyncio.create_task(dismiss(Stuck()))
    await stopping.wait()
    dismissing.cancel()
    await asyncio.sleep(0)
    busy.set()
    with pytest.raises(asyncio.CancelledError):
        await dismissing


async def test_a_timeout_inside_our_own_code_is_not_the_agents():
    async def late(*args, **kwargs):
        raise TimeoutError("a bug")

    policy = FakePolicy()
    policy.answer = late
    with pytest.raises(TimeoutError, match="a bug"):
        await trial(policy)
