"""Trials whose process dies, at any line, and what goes on of them."""

import asyncio
import itertools
import shutil
import tempfile
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from components.config import HarnessConfig, SandboxConfig
from components.errors import FaultCause, InfraFault, StopReason
from components.gateway import Prompt
from components.harness import AgentLoop, Clock, Progress, RunningTime, Written, run_trial, wording_for
from components.records import Sampling
from components.rollout import Barrier, Interrupted, Journals, Rollout, trial_id
from components.sandbox import Left, Remains, SandboxSpec
from components.sandbox.host import HeldBox, HostBackend, Hosts, LoggedBackend
from components.sandbox.host.server import Host
from components.sandbox.host.wire import Call
from components.tito import TokenHistory, audit, stitch
from tests.harness.parts import END, SPECIALS, ByteTokenizer, FakeTerminal, PlainTask, answer, trajectory
from tests.harness.test_trial import FakeBox
from tests.rollout.parts import config, graded, tasks

CONFIG = HarnessConfig(prompt_style="longshell", return_at_prompt=True)
SCRIPT = [answer("one", "two"), "no JSON", answer("three"), answer(), answer(done=True), answer("four", done=True)]
KEYS = ["one\n", "two\n", "three\n"]
"""Typed before the last answer, whose command is typed too: it confirms."""
TRIAL = "trial"


class Killed(BaseException):
    """The process is gone at this line."""


class Fuse:
    """Kills a process after so many lines that matter."""

    def __init__(self, lines=None):
        self.lines = lines

    def line(self):
        if self.lines is not None:
            self.lines -= 1
            if self.lines < 0:
                raise Killed


class PlainBox:
    isolation = "none"

    def __init__(self, number):
        self.id = f"box{number}"
        self.tty = FakeTerminal()

    async def terminal(self, **_):
        return self.tty

    async def put(self, files):
        pass

    async def stop(self):
        self.tty.closed = True


class PlainBackend:
    name = isolation = "none"
    counts = {}

    def __init__(self):
        self.boxes = {}
        self._numbers = itertools.count()

    async def forget(self, snapshot):
        pass

    async def start(self, spec):
        box = PlainBox(id(self) + next(self._numbers))
        self.boxes[box.id] = box
        return box


class Line:
    """A link to a host of the same process, on which its owner may die before and after every call."""

    def __init__(self, host, fuse):
        self._host, self._fuse = host, fuse

    async def call(self, target, name, *arguments, number=0, **options):
        self._fuse.line()
        value = await self._host._do(Call(1, target, name, arguments, options, number))
        self._fuse.line()
        return value


class Draws:
    """A policy that says the script; the log-probs and the routing of an answer tell which draw it was."""

    def __init__(self, version, numbers, fuse):
        self._version, self._numbers, self._fuse = version, numbers, fuse

    async def answer(self, prompt, *, sampling, max_new_tokens):
        self._fuse.line()
        turn, node = 0, prompt.after
        while node is not None:
            turn, node = turn + 1, node.prompt.after
        ids = np.asarray([*ByteTokenizer().encode(SCRIPT[turn]), SPECIALS[END]], np.int32)
        number = next(self._numbers)
        start = prompt.history.routing_start(self._version)
        routing = np.full((len(prompt) + len(ids) - 1 - start, 1, 1), number % 256, np.uint8)
        return Written(ids, np.full(len(ids), -float(number), np.float32), "stop", routing, start, self._version)


class Owner:
    """One process: what it finds, and the trial that it runs."""

    def __init__(self, folder, host, version, numbers, fuse):
        self.fuse = fuse
        self.host = Hosts({"here": HostBackend(Line(host, fuse), asyncio.run(host._claim()), None)}, None)
        self.interrupted = Interrupted(Journals(folder))
        self.orphans = self.interrupted.find(self.host.held, version)
        self.policy = Draws(version, numbers, fuse)

    async def run(self):
        for box in self.orphans:
            await self.host.discard(box)
        past = self.interrupted.open(TRIAL, 1, RunningTime())
        note = past._journal.note

        def dying(event):
            self.fuse.line()
            note(event)
            self.fuse.line()

        past._journal.note = dying
        box = await LoggedBackend(self.host, past).start(SandboxSpec())
        terminal = await box.terminal(rows=40, columns=160, echo=True)
        told = trajectory(past.answering(self.policy))
        wording = wording_for(CONFIG)
        parts = {"trajectory": told, "terminal": terminal, "wording": wording, "config": CONFIG}
        stop = await AgentLoop(**parts, progress=Progress(), clock=Clock()).run("do it")
        self.fuse.lines = None
        await box.stop()
        return stop, told.turns, box


def draw_of(turn):
    return int(-turn.logprobs[0])


def answers(folder):
    """Which draws a journal holds."""
    kept = Journals(folder).found().get(TRIAL)
    journal = Journals(folder).open(TRIAL, {}) if kept else None
    events = list(journal._past) if journal else []
    return [int(-np.frombuffer(e.blob[4 * e.facts["ids"] :], np.float32, 1)[0]) for e in events if e.kind == "answer"]


class KilledAtAnyLine(RuleBasedStateMachine):
    """One trial, one process after another, and a host that may die too."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.numbers = itertools.count(1)
        self.version = 3
        self.known = []
        """Draws that the journal must still hold."""
        self.start_host()

    def start_host(self):
        self.backend = PlainBackend()
        self.host = Host(self.backend, "", 0, deque())

    def teardown(self):
        self.live(None)
        shutil.rmtree(self.folder)

    def check(self, stop, turns, box):
        assert stop is StopReason.COMPLETED
        assert [ByteTokenizer().decode(turn.completion_ids[:-1]) for turn in turns] == SCRIPT
        assert self.backend.boxes[box.id].tty.sent == [*KEYS, "four\n"]
        samples = stitch(turns, ByteTokenizer(), trial_id=TRIAL)
        assert audit(turns, samples, ByteTokenizer()).drift == 0
        assert all(turn.routing is not None and draw_of(turn) % 256 == turn.routing[-1, 0, 0] for turn in turns)

    def live(self, lines):
        owner = Owner(self.folder, self.host, self.version, self.numbers, Fuse(lines))
        goes_on = TRIAL in owner.interrupted.attempts
        if goes_on:
            assert answers(self.folder) == self.known
        elif self.known:
            assert TRIAL in owner.interrupted.lost
        known = self.known if goes_on else []
        try:
            stop, turns, box = asyncio.run(owner.run())
        except Killed:
            self.known = answers(self.folder)
            assert self.known[: len(known)] == known
            return
        self.check(stop, turns, box)
        assert [draw_of(turn) for turn in turns][: len(known)] == known
        versions = [turn.weight_version for turn in turns]
        assert versions == sorted(versions)
        assert versions[len(known) :] == [self.version] * (len(turns) - len(known))
        owner.interrupted.ended(TRIAL)
        self.known = []

    @rule(lines=st.integers(0, 60))
    def a_process_dies(self, lines):
        self.live(lines)

    @rule()
    def the_host_dies(self):
        self.start_host()

    @rule()
    def the_weights_move_on(self):
        self.version += 1

    @precondition(lambda self: (self.folder / TRIAL).exists())
    @rule(lost=st.integers(1, 400))
    def a_record_is_torn(self, lost):
        path = self.folder / TRIAL
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.truncate(max(0, size - lost))
        self.known = answers(self.folder)

    @invariant()
    def nothing_is_typed_twice(self):
        for box in self.backend.boxes.values():
            assert box.tty.sent == [*KEYS, "four\n"][: len(box.tty.sent)]

    @invariant()
    def no_box_lives_that_nobody_goes_on_with(self):
        assert len(self.host._boxes) <= 1


TestKilledAtAnyLine = KilledAtAnyLine.TestCase
TestKilledAtAnyLine.settings = settings(max_examples=12, stateful_step_count=10, deadline=None)


class GradedView:
    """What a good verifier says, in a view of a box whose shell has ended."""

    id, shell, left, networked = "view", "/bin/bash", Left((), (), ()), False

    async def exec(self, argv, *, timeout_s, secret=None, **_):
        return await FakeBox.exec(self, argv, timeout_s=timeout_s, secret=secret)

    async def get(self, path, *, max_bytes):
        raise FileNotFoundError(path)

    async def put(self, files):
        pass

    async def seal(self, *paths, system):
        pass

    async def finish(self, since):
        return Remains()

    async def stop(self):
        pass


AGENT_S = 1000.0


class Overdue(FakeTerminal):
    """Its trial's time is over as soon as a command hangs."""

    def __init__(self, time):
        super().__init__()
        self._time = time

    async def settle(self, duration_s, *, at_prompt):
        if self._hanging:
            self._time.advance(2 * AGENT_S)
        return await super().settle(duration_s, at_prompt=at_prompt)


class GradedBox(PlainBox):
    def __init__(self, time):
        super().__init__(1)
        self.tty = Overdue(time)

    async def fork_view(self):
        self.tty.closed = True
        return GradedView()


class GradedBackend(PlainBackend):
    def __init__(self, time):
        super().__init__()
        self._time = time

    async def start(self, spec):
        return self.boxes.setdefault("box1", GradedBox(self._time))


class DiesGrading(Line):
    """A link whose owner dies so many lines after its agent has ended."""

    def __init__(self, host, lines):
        super().__init__(host, Fuse())
        self._lines = lines

    async def call(self, target, name, *arguments, number=0, **options):
        if name == "close":
            self._fuse.lines = self._lines
        return await super().call(target, name, *arguments, number=number, **options)


class Plays:
    """Types once, then says what it is given, then thinks for ever, and its trial's time is over."""

    def __init__(self, second, time):
        self._answers = [answer("one"), *second]
        self._time = time

    async def answer(self, prompt, *, sampling, max_new_tokens):
        if not self._answers:
            self._time.advance(2 * AGENT_S)
            await asyncio.sleep(3600)
        ids = np.asarray([*ByteTokenizer().encode(self._answers.pop(0)), SPECIALS[END]], np.int32)
        return Written(ids, np.full(len(ids), -0.5, np.float32), "stop", None, 0, 3)


class NobodyAsks:
    async def answer(self, prompt, *, sampling, max_new_tokens):
        raise AssertionError("the agent had ended")


def graded_trial(folder, host, link, policy, time):
    """One process's part of a trial; its trial, or None when it was killed."""

    async def run():
        hosts = Hosts({"here": HostBackend(link, await host._claim(), None)}, None)
        interrupted = Interrupted(Journals(folder))
        interrupted.find(hosts.held, 3)
        assert interrupted.lost == {}
        past = interrupted.open(TRIAL, 1, time)
        try:
            return await run_trial(
                PlainTask(Path("/nowhere"), SandboxSpec()),
                trial_id=TRIAL,
                backend=LoggedBackend(hosts, past),
                trajectory=trajectory(past.answering(policy)),
                config=CONFIG,
                sandbox=SandboxConfig(),
                agent_timeout_s=AGENT_S,
                verifier_timeout_s=60,
                time=time,
                ending=past,
            )
        except Killed:
            await host._abandon()
            return None

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("second", "stop"),
    [
        ([], StopReason.AGENT_TIMEOUT),
        ([answer("hang")], StopReason.AGENT_TIMEOUT),
        ([answer(done=True)] * 2, StopReason.COMPLETED),
    ],
    ids=["in a draw", "in a command", "by itself"],
)
@pytest.mark.parametrize("lines", [0, 1, 3, 5])
def test_a_trial_that_was_being_graded_is_graded_after_a_kill_and_its_agent_stays_ended(tmp_path, second, stop, lines):
    """It once went on as an agent, in a box whose processes had been ended, where its deadline had passed."""
    time = RunningTime()
    backend = GradedBackend(time)
    host = Host(backend, "", 0, deque())
    assert graded_trial(tmp_path, host, DiesGrading(host, lines), Plays(second, time), time) is None
    (box,) = backend.boxes.values()
    typed = list(box.tty.sent)
    assert graded_trial(tmp_path, host, DiesGrading(host, lines), NobodyAsks(), RunningTime()) is None
    done = graded_trial(tmp_path, host, Line(host, Fuse()), NobodyAsks(), RunningTime())
    assert (done.stop, done.fault, done.report.outcome) == (stop, None, True)
    assert len(done.turns) == 1 + len(second)
    assert box.tty.sent == typed == ["one\n", "hang\n"][: 2 if second[:1] == [answer("hang")] else 1]


def test_a_trial_whose_shell_was_ended_for_no_known_reason_starts_anew(tmp_path):
    interrupted = Interrupted(kept(tmp_path, calls=3))
    assert interrupted.find({"box": held(3, ended=True)}, 3) == {"box"}
    assert interrupted.note(TRIAL).endswith("its agent had been ended, for a reason that is not known")


def held(calls, pristine=True, terminals=1, ended=False):
    return HeldBox(1, "box", "none", {2 + n: calls for n in range(terminals)}, pristine, ended)


def kept(folder, calls, version=3):
    """The journal of a trial that has drawn once and called its terminal so often."""
    journals = Journals(folder)
    past = Interrupted(journals).open(TRIAL, 2, RunningTime())
    past.note("start", "box")
    past.note("terminal", [2, True])
    told = trajectory(Draws(version, itertools.count(1), Fuse()))
    prompt = told.follow(None, [])
    drawn = asyncio.run(told._policy.answer(prompt, sampling=told.sampling, max_new_tokens=99))
    past.drew(prompt, told.sampling, drawn)
    for _ in range(calls):
        past.note("send", [None, True])
    return journals


@pytest.mark.parametrize(
    ("boxes", "version", "cause"),
    [
        ({"box": held(3)}, 3, None),
        ({"box": held(4)}, 3, None),
        ({"box": held(3)}, 7, None),
        ({}, 3, "its box is gone"),
        ({"box": held(5)}, 3, "other calls than are known: 3 are, it had {2: 5}"),
        ({"box": held(2)}, 3, "other calls"),
        ({"box": held(3, pristine=False)}, 3, "other calls"),
        ({"box": held(3, terminals=2)}, 3, "other calls"),
        ({"box": held(3)}, 2, "drawn under version 3"),
    ],
)
def test_a_trial_goes_on_only_where_its_box_has_had_the_calls_that_its_journal_explains(
    tmp_path, boxes, version, cause
):
    interrupted = Interrupted(kept(tmp_path, calls=3))
    orphans = interrupted.find(boxes, version)
    if cause is None:
        assert (interrupted.attempts, interrupted.lost, orphans) == ({TRIAL: 2}, {}, set())
        assert interrupted.note(TRIAL) == "its job ended: it goes on after turn 1"
    else:
        assert (interrupted.attempts, orphans) == ({}, set(boxes))
        assert cause in interrupted.note(TRIAL)
        assert interrupted.note(TRIAL).startswith("starts anew: ")
        assert Journals(tmp_path).found() == {}


def test_a_trial_that_nobody_asks_for_again_is_given_up_with_its_box(tmp_path):
    interrupted = Interrupted(kept(tmp_path, calls=3))
    interrupted.find({"box": held(3)}, 3)
    assert interrupted.give_up() == {"box"}
    assert (interrupted.attempts, interrupted.give_up(), Journals(tmp_path).found()) == ({}, set(), {})


async def test_a_trial_that_was_alive_goes_on_whichever_attempt_it_was(tmp_path):
    name, ran = trial_id("c", 0, "files-0", 2), []
    Interrupted(Journals(tmp_path)).open(name, 2, RunningTime()).note("start", "box")
    interrupted = Interrupted(Journals(tmp_path))
    assert interrupted.find({"box": held(0, terminals=0)}, 0) == set()

    async def run(attempt):
        ran.append((attempt.trial_id, attempt.attempt))
        return graded(attempt.trial_id, attempt.task.ref)

    settings = config(batch=1, oversample=0)
    rollout = Rollout(campaign="c", config=settings, run_trial=run, barrier=Barrier(), interrupted=interrupted)
    (row,) = (await rollout.step(0, 0, tasks(1))).ledger.rows
    assert ran == [(name, 2)]
    assert (row.trial_id, row.attempt, row.detail) == (name, 2, "its job ended: it goes on after turn 0")


async def test_what_an_earlier_process_spent_counts_for_the_deadlines(tmp_path):
    journals, earlier = Journals(tmp_path), RunningTime()
    earlier.advance(90)
    Interrupted(journals).open(TRIAL, 1, earlier).note("start", "box")
    time = RunningTime()
    again, limit = Interrupted(journals).open(TRIAL, 1, time), time.limit(60)

    async def go_on():
        async with limit:
            again.recall("start")
            await asyncio.sleep(30)

    with pytest.raises(TimeoutError):
        await go_on()
    assert limit.expired
    assert 90 <= time.running_s < 170, "they count once"


def test_an_answer_to_another_prompt_is_refused(tmp_path):
    again = Interrupted(kept(tmp_path, calls=0)).open(TRIAL, 2, RunningTime())
    again.recall("start")
    again.recall("terminal")
    with pytest.raises(InfraFault, match="another prompt") as raised:
        again.answer(Prompt(TokenHistory([7]), ()), Sampling())
    assert raised.value.cause is FaultCause.STORE
