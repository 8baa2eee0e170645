"""One trial: a box, an agent in it, a verdict on what it left.

Invariants: a trial ends with a verdict or with a fault, never both; what the agent caused is a StopReason and is
graded; what the infrastructure caused is a fault and has no reward, and so has a trial whose record cannot be right.
The box is gone when `run_trial` returns, raises or is cancelled.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from components.config import HarnessConfig, SandboxConfig
from components.errors import BoxSpent, DriftError, InfraFault, RecordError, StopReason, StoreError
from components.gateway import ChatTemplate, ChatTokenizer, Trajectory, chatml
from components.harness.cleanup import dismiss, uninterrupted
from components.harness.ending import AgentEnded, Ending, Unkept
from components.harness.environment import TrialTask
from components.harness.harbor import read_harbor
from components.harness.loop import AgentLoop, Clock, Progress
from components.harness.prompt import OwnWording, Wording
from components.harness.running_time import RunningTime
from components.harness.verification import verify_result
from components.outcomes import AgentStands, Raised, fault_of, spent_of, stop_of
from components.records import Trial, VerifierReport
from components.sandbox import Sandbox, SandboxBackend


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long the agent and the verifier may take."""

    agent_s: float
    verifier_s: float


def template_for(tokenizer: ChatTokenizer, config: HarnessConfig) -> ChatTemplate:
    """The rendering that goes with the configured prompt style."""
    return ChatTemplate(tokenizer, chatml(wording_for(config).separator))


def wording_for(config: HarnessConfig) -> Wording:
    """The words of the configured prompt style.

    Raises:
        ConfigError: they are Harbor's, and it is not installed where the configuration says.
    """
    if config.prompt_style == "harbor":
        assert config.harbor is not None, "the configuration has been validated"
        return read_harbor(Path(config.harbor))
    return OwnWording(config.prompt_style, config.max_command_s, config.observation_bytes)


async def run_trial(
    task: TrialTask,
    *,
    trial_id: str,
    backend: SandboxBackend,
    trajectory: Trajectory,
    config: HarnessConfig,
    sandbox: SandboxConfig,
    agent_timeout_s: float,
    verifier_timeout_s: float,
    progress: Progress | None = None,
    time: RunningTime | None = None,
    ending: Ending | None = None,
) -> Trial:
    """Runs one attempt at one task and grades it. Cancelling it stops the box and then propagates.

    A deadline of the task's own holds where it is the shorter one. `time` is the clock of the agent's deadline, when
    the trial can be paused; `ending`, what keeps the end of its agent, when another process may go on with it.
    """
    run = _Run(task, trajectory, config, progress or Progress(), time or RunningTime(), ending or Unkept())
    deadlines = Deadlines(
        min(agent_timeout_s, task.agent_timeout_s or agent_timeout_s),
        min(verifier_timeout_s, task.verifier_timeout_s),
    )
    try:
        with run.clock.phase("start"):
            spec = task.sandbox_spec(sandbox)
            box = await backend.start(spec)
        try:
            report = await run.play(box, spec.workdir, deadlines)
        finally:
            with run.clock.phase("stop"):
                stuck = await dismiss(box)
            if stuck is not None:
                run.facts["stop_fault"] = str(stuck)
    except (InfraFault, StoreError, RecordError, DriftError) as error:
        if (fault := fault_of(Raised(error))) is None:
            raise
        return run.ended(trial_id, None, fault)
    return run.ended(trial_id, report, None)


class _Run:
    """The state of one trial while it runs."""

    def __init__(
        self,
        task: TrialTask,
        trajectory: Trajectory,
        config: HarnessConfig,
        progress: Progress,
        time: RunningTime,
        ending: Ending,
    ) -> None:
        self.clock = Clock()
        self.facts: dict[str, Any] = {}
        self._task = task
        self._trajectory = trajectory
        self._config = config
        self._progress = progress
        self._time = time
        self._ending = ending
        self._loop: AgentLoop | None = None
        self._stop: StopReason | None = None

    async def play(self, box: Sandbox, workdir: str, deadlines: Deadlines) -> VerifierReport:
        """The agent's phase, then the verifier's."""
        self.facts |= {"sandbox_id": box.id, "isolation": box.isolation}
        config = self._config
        with self.clock.phase("start"):
            terminal = await box.terminal(rows=config.rows, columns=config.columns, echo=config.echo)
        self._loop = AgentLoop(
            trajectory=self._trajectory,
            terminal=terminal,
            wording=wording_for(config),
            config=config,
            progress=self._progress,
            clock=self.clock,
        )
        try:
            self._stop = await self._end_of(self._loop, deadlines.agent_s)
        finally:
            await uninterrupted(terminal.close())
        try:
            with self.clock.phase("verify"):
                verified = await verify_result(box, self._task, timeout_s=deadlines.verifier_s, workdir=workdir)
        except BoxSpent as spent:
            return spent_of(spent)
        self.facts |= verified.facts()
        return verified.report

    async def _end_of(self, loop: AgentLoop, seconds: float) -> StopReason:
        """Lets the agent play to its end, which is kept."""
        deadline = self._time.limit(seconds)
        try:
            async with deadline:
                stop = await loop.run(self._task.instruction)
        except AgentEnded as earlier:
            return earlier.stop
        except BoxSpent:  # its shell with it; what there is to be graded is seen when a view is wanted
            stop = StopReason.GAVE_UP
        except TimeoutError:
            if not deadline.expired:
                raise
            overdue = stop_of(AgentStands(overdue=True))
            assert overdue is not None, "a deadline ends the agent"
            stop = overdue
        return self._ending.ended(stop)

    def ended(self, trial_id: str, report: VerifierReport | None, fault: InfraFault | None) -> Trial:
        tally: dict[str, Any] = {} if self._loop is None else asdict(self._loop.tally)
        if self._loop is not None and self._loop.compaction_failure is not None:
            tally["compaction_failure"] = self._loop.compaction_failure
        return Trial(
            trial_id=trial_id,
            task=self._task.ref,
            turns=self._trajectory.turns,
            stop=self._stop,
            report=report,
            fault=fault,
            timings_s=dict(self.clock.seconds),
            facts=self.facts | tally,
        )
