"""How checkpoints are evaluated: profiles (the conditions of a number), suites (the tasks), and who runs them.

Invariant: a profile is a set of conditions that nothing else in a configuration changes, so that two numbers of one
profile, suite and harness may stand beside each other. Where a profile says None, the campaign's own value holds.

Sources: the paper's section 6.1 (`t1_table`) and appendix C (`t1_case`), which contradict each other (docs/recipe.md),
and Harbor's rules of submission (`leaderboard`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from components.config.section import Problems, Section

ProfileName = Literal["miniature", "t1_table", "t1_case", "leaderboard"]
HarnessName = Literal["native", "harbor"]
Headline = Literal["resolved", "verifier_reward"]

HELDOUT = "heldout"
"""The suite of the pool's own held-out tasks."""
UNLIMITED_TURNS = 1_000_000
"""Terminus-2's own default, which nobody reaches: Harbor's leaderboard limits time, not turns."""
UNLIMITED_S = 86_400.0
"""The agent of a task that names no limit is still ended some day."""


@dataclass(frozen=True, slots=True)
class Walls:
    """Deadlines in seconds.

    Attributes:
        agent_s: of the agent.
        verifier_s: of the verifier.
        total_s: of a whole trial, sandbox included; past it the infrastructure is at fault.
        uniform: every task is given exactly these, whatever it asks for. Otherwise they are only upper bounds of what
            the task asks for.
    """

    agent_s: float
    verifier_s: float
    total_s: float
    uniform: bool


@dataclass(frozen=True, slots=True)
class Profile:
    """The conditions of an evaluation. Thinking is off in all of them: our template opens no thinking block.

    Attributes:
        attempts: at each task.
        temperature, top_p, top_k: of every answer.
        max_turns: answers of a trial.
        context_tokens: prompt and answer together.
        max_turn_tokens: of one answer.
        compaction: whether histories are rewritten before the context is full.
        walls: deadlines.
        disk_mb: of a box, at most.
    """

    attempts: int
    temperature: float = 0.1
    top_p: float = 0.95
    top_k: int = 20
    max_turns: int | None = None
    context_tokens: int | None = None
    max_turn_tokens: int | None = None
    compaction: bool | None = None
    walls: Walls | None = None
    disk_mb: int | None = None

    @property
    def harness_limits(self) -> dict[str, int]:
        """Keys of `HarnessConfig` that the profile decides, with their values."""
        limits = {
            "max_turns": self.max_turns,
            "max_context_tokens": self.context_tokens,
            "max_turn_tokens": self.max_turn_tokens,
        }
        return {key: value for key, value in limits.items() if value is not None}


PAPER_WALLS = Walls(agent_s=3_600.0, verifier_s=900.0, total_s=18_000.0, uniform=True)

PROFILES: Mapping[ProfileName, Profile] = {
    # The campaign's own conditions, sampled as the paper samples: what training is watched by.
    "miniature": Profile(attempts=1),
    # Section 6.1, which is what Table 1 claims to have been measured under. It names no limit of one answer.
    "t1_table": Profile(
        attempts=3, max_turns=60, context_tokens=96_000, compaction=True, walls=PAPER_WALLS, disk_mb=10_240
    ),
    # Appendix C, of single cases of the trained model; what it leaves out is section 6.1's.
    "t1_case": Profile(
        attempts=3,
        max_turns=500,
        context_tokens=86_016,
        max_turn_tokens=32_768,
        compaction=True,
        walls=PAPER_WALLS,
        disk_mb=10_240,
    ),
    # At least five attempts, and timeouts as the tasks have them; the paper's uniform hour would not be accepted.
    # Nothing is said of sampling: it is the paper's.
    "leaderboard": Profile(
        attempts=5,
        max_turns=UNLIMITED_TURNS,
        compaction=True,
        walls=Walls(UNLIMITED_S, UNLIMITED_S, 3 * UNLIMITED_S, uniform=False),
    ),
}


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A published benchmark: how many tasks it has, and which number its tables hold."""

    tasks: int
    headline: Headline = "resolved"


BenchmarkName = Literal["terminal-bench-2.1", "terminal-bench-2.0", "lhtb", "tb-hard"]
BENCHMARKS: Mapping[BenchmarkName, Benchmark] = {
    "terminal-bench-2.1": Benchmark(89),
    "terminal-bench-2.0": Benchmark(89),
    # The mean of what its verifiers write, a fraction; the share of resolved tasks is another number.
    "lhtb": Benchmark(46, "verifier_reward"),
    # The hundred tasks of the paper's authors, not another set of that name.
    "tb-hard": Benchmark(100),
}


class SuiteConfig(Section):
    """A folder of Harbor task directories to evaluate on."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    """Names its numbers."""
    path: str
    """Absolute; each subfolder with a `task.toml` is a task."""
    benchmark: BenchmarkName | None = None
    """The published benchmark that the folder holds; None for tasks of one's own. What it lacks of it is told."""

    @model_validator(mode="after")
    def _usable(self) -> SuiteConfig:
        problems = []
        if not self.path.startswith("/"):
            problems.append(f"path {self.path!r} must be absolute: jobs run elsewhere")
        if self.name == HELDOUT:
            problems.append(f"name {HELDOUT} is the pool's own held-out tasks'")
        if problems:
            raise Problems(problems)
        return self


class HarborConfig(Section):
    """The Harbor of `harness: harbor`. It needs a newer Python than ours, and has an environment of its own."""

    python: str | None = None
    """An interpreter that its environment is made with, at least 3.12; None looks for one (uv, pyenv, the path)."""
    venv: str | None = None
    """A virtual environment that holds Harbor, pyte and wcwidth already; None makes one, once."""
    environment: Literal["longshell", "docker"] = "longshell"
    """Whose boxes: ours (`sandbox.backend`), or those that Harbor itself starts with its docker command."""
    verifier: Literal["harbor", "longshell"] = "harbor"
    """Where a task's tests run: in the agent's box, beside whatever it left running, as Harbor does it; or in a fresh
    box over the files that it left, as in training."""
    concurrency: int = Field(4, ge=1)
    """Trials at once; 4 is Harbor's own default."""

    @model_validator(mode="after")
    def _once(self) -> HarborConfig:
        if self.python is not None and self.venv is not None:
            raise ValueError("python makes an environment, venv is one: give one of them")
        if self.verifier == "longshell" and self.environment != "longshell":
            raise ValueError("verifier longshell needs environment longshell: Harbor's own boxes have no fresh view")
        return self


class EvaluationConfig(Section):
    """How checkpoints are evaluated."""

    profile: ProfileName = "miniature"
    """The conditions: attempts, sampling, turns, context, deadlines (docs/evaluation.md)."""
    harness: HarnessName = "native"
    """Who runs the trials: the loop that trains, or a real Harbor's Terminus-2 behind the gateway."""
    harbor: HarborConfig = HarborConfig()
    suites: tuple[SuiteConfig, ...] = ()
    """Evaluated by `flows.evaluate` beside the held-out tasks."""
    trials: int = Field(256, ge=1)
    """Held-out tasks for base, SFT and the final checkpoint."""
    leg_trials: int = Field(64, ge=1)
    """Held-out tasks for the checkpoints between."""

    @property
    def conditions(self) -> Profile:
        """What the profile says."""
        return PROFILES[self.profile]

    def suite(self, name: str) -> SuiteConfig:
        """The suite of this name.

        Raises:
            KeyError: there is none.
        """
        return {suite.name: suite for suite in self.suites}[name]

    @model_validator(mode="after")
    def _distinct(self) -> EvaluationConfig:
        names = [suite.name for suite in self.suites]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"suites: the name {', '.join(twice)} is given twice")
        return self
