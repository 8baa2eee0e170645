"""How trajectories are made: harness, sandbox, scheduler, reward."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from components.bounds import LEAST_TEMPERATURE, MOST_TEMPERATURE
from components.config.section import Problems, Section, without_credentials

COMPACTION_TURNS = 3
"""Turns that a compaction takes: summary, questions, answers."""


class CompactionConfig(Section):
    """How a history that nears the token wall is rewritten by the policy itself, in three calls (design 7)."""

    proactive_threshold_tokens: int = Field(16_384, ge=1)
    """A prompt that leaves at most this many tokens free up to the wall is not sent: its history is rewritten first."""
    summary_max_tokens: int = Field(4_096, ge=1)
    """The first call tells what was done; asked with the whole history in sight."""
    questions_max_tokens: int = Field(1_024, ge=1)
    """The second sees the task, the summary and the screen, and asks what the summary leaves open."""
    answers_max_tokens: int = Field(4_096, ge=1)
    """The third sees the whole history again, and answers."""
    margin_tokens: int = Field(1_024, ge=0)
    """For the words of the requests, among them the questions encoded anew."""

    @property
    def reserved_tokens(self) -> int:
        """What the three calls need beyond the history: ordinary answers leave that much free."""
        return self.summary_max_tokens + self.questions_max_tokens + self.answers_max_tokens + self.margin_tokens


class HarnessConfig(Section):
    """The Terminus-2-compatible loop (design 7)."""

    prompt_style: Literal["longshell", "terse", "harbor"] = "longshell"
    """`longshell` explains the whole contract; `terse` gives the task and the screen only, for models of few tokens;
    `harbor` speaks and reads as the Terminus-2 of an installed Harbor does."""
    harbor: str | None = None
    """With prompt_style harbor: the virtual environment that Harbor is installed in. It need not be of our Python."""
    max_turns: int = Field(60, ge=1)
    max_context_tokens: int = Field(86_016, ge=64)
    """Token wall of a trajectory: prompt, history and the next answer."""
    max_turn_tokens: int = Field(8_192, ge=1)
    max_parse_failures: int = Field(3, ge=1)
    """Consecutive answers that cannot be parsed before the trial ends as parse_failures."""
    confirm_completion: bool = True
    """Ask once more before a claim of completion ends the trial."""
    new_output: Literal["history", "stream"] = "history"
    """How new output is told. `history`: by comparing a terminal's buffer of 2,000 lines with what it was, as
    Terminus-2; where that fails, the screen. `stream`: what programs wrote since, for models of few tokens."""
    observation_bytes: int = Field(10_000, ge=16)
    max_command_s: float = Field(60.0, gt=0)
    """Upper bound of one command's duration."""
    return_at_prompt: bool = True
    """Stop waiting for a command's duration as soon as the shell is back at its prompt."""
    patience_s: float = Field(0.0, ge=0)
    """With return_at_prompt: a command is given at least this long to come back, whatever its duration says, so that a
    busy machine does not change what the agent sees."""
    echo: bool = True
    """Whether the terminal shows typed keystrokes, as a real one does."""
    columns: int = Field(160, ge=20)
    rows: int = Field(40, ge=5)
    compaction: CompactionConfig | None = None
    """None: a trajectory ends at the wall, as token_limit."""

    @model_validator(mode="after")
    def _fits(self) -> HarnessConfig:
        problems = []
        if self.max_turn_tokens >= self.max_context_tokens:
            problems.append("max_turn_tokens leaves no room for a prompt within max_context_tokens")
        problems += self._style_problems()
        if self.compaction is not None:
            problems += self._compaction_problems(self.compaction)
        if problems:
            raise Problems(problems)
        return self

    def _style_problems(self) -> list[str]:
        problems = []
        if self.prompt_style == "terse" and self.new_output != "stream":
            problems.append("prompt_style terse tells new output only: set new_output to stream")
        if (self.prompt_style == "harbor") != (self.harbor is not None):
            problems.append("harbor is required with prompt_style harbor, and refused without")
        if self.prompt_style == "harbor" and (self.new_output, self.observation_bytes) != ("history", 10_000):
            problems.append("prompt_style harbor tells output as Terminus-2 does: new_output history, 10000 bytes")
        return problems

    def _compaction_problems(self, compaction: CompactionConfig) -> list[str]:
        """Whether a summary always fits into what is free, and what it leaves fits the wall."""
        reserved, threshold = compaction.reserved_tokens, compaction.proactive_threshold_tokens
        problems = []
        if threshold < reserved:
            problems.append(
                f"compaction.proactive_threshold_tokens {threshold} is less than summary, questions, answers and "
                f"margin need ({reserved}): a summary could be asked for where none fits"
            )
        if reserved + threshold >= self.max_context_tokens:
            problems.append(
                f"compaction: a rewritten history of up to {reserved} tokens leaves less than "
                f"proactive_threshold_tokens {threshold} free of max_context_tokens {self.max_context_tokens}"
            )
        if self.max_turns <= COMPACTION_TURNS:
            problems.append(f"compaction takes {COMPACTION_TURNS} turns, max_turns is {self.max_turns}")
        return problems


class DockerConfig(Section):
    """The engine of `sandbox.backend: docker`."""

    host: str = Field("unix:///var/run/docker.sock", pattern=r"^(unix:///.|tcp://.+:\d+$)")
    """A socket here, or a machine: with `tls`, or over a network of its own (an ssh tunnel); tcp is not encrypted."""
    tls: str | None = None
    """A folder with `ca.pem`, `cert.pem` and `key.pem`: the engine at `tcp://` must be of that authority, and is shown
    that certificate. Whoever may speak to an engine is root on its machine."""
    image: str = "debian:12"
    """What tasks without an image start from. Any that has bash; the engine has it or pulls it."""
    prewarm: int = Field(0, ge=0)
    """Started boxes that are kept ready, of each kind that is in use."""
    build_network: str = "none"
    """The engine's network for what a Dockerfile's RUN runs: `none`, `default`, `host`, or one that was made for it."""
    box_ttl_s: float = Field(86_400.0, gt=0)
    """An older box is removed by whoever sweeps the engine next and cannot see whether its owner lives."""

    @field_validator("host")
    @classmethod
    def _plain(cls, host: str) -> str:
        return without_credentials(host)

    @model_validator(mode="after")
    def _tls_goes_with_tcp(self) -> DockerConfig:
        if self.tls is not None and not self.host.startswith("tcp://"):
            raise ValueError(f"tls is for an engine at tcp://, not at {self.host}")
        if self.tls is not None and not self.tls.startswith("/"):
            raise ValueError(f"tls must be an absolute path, not {self.tls!r}")
        return self


class SandboxConfig(Section):
    """Where commands run (design 6)."""

    backend: Literal["auto", "namespace", "docker", "process"] = "auto"
    """`auto` takes the strongest that works here without an engine, and says which; `process` has no isolation."""
    docker: DockerConfig = DockerConfig()
    allow_unisolated: bool = False
    """Must be set before `process` is used. Every run then warns."""
    cpus: float = Field(1.0, gt=0)
    memory_mb: int = Field(512, ge=32)
    disk_mb: int = Field(256, ge=8)
    pids: int = Field(128, ge=8)
    network: Literal["none", "proxy"] = "none"
    """Of the agent's boxes. `proxy`: HTTP and HTTPS to `hosts`, through a proxy of the backend's, and nothing else."""
    verifier_network: Literal["none", "proxy"] = "none"
    """Of the boxes that verify, for verifiers that install what they run."""
    build_network: Literal["none", "proxy"] = "none"
    """Of what a Dockerfile's RUN runs."""
    hosts: tuple[str, ...] = ()
    """Whom the proxy connects to: `example.org`, `*.example.org`, or `*`: whoever is not of a private network."""
    images: str | None = None
    """Folder with root file systems for FROM (`make image` fills it) and with what was built over them. None: whatever
    FROM names, the box gets the host's own userland."""

    built_mb: int = Field(50_000, ge=0)
    """Disk for what is built for tasks: layers in `images`, images of an engine. Beyond it the longest unused goes, but
    nothing that a box uses, that was asked for within ten minutes, or that a snapshot needs."""
    min_free_mb: int = Field(512, ge=0)
    """No box is started while the disk of a job's state has less than this free; it goes on when there is room."""
    starts_per_s: float = Field(200.0, gt=0)
    """Boxes that all jobs of this user start on this host together; a second's worth may come at once."""

    @model_validator(mode="after")
    def _reachable(self) -> SandboxConfig:
        proxied = "proxy" in (self.network, self.verifier_network, self.build_network)
        problems = []
        if proxied and not self.hosts:
            problems.append("a network of `proxy` reaches nobody without hosts")
        if self.hosts and not proxied:
            problems.append("hosts are named, and no network is `proxy`")
        if self.backend == "docker" and (self.build_network != "none" or self.images is not None):
            problems.append("a docker engine builds (docker.build_network), and has images of its own for FROM")
        if self.images is not None and not self.images.startswith("/"):
            problems.append(f"images must be an absolute path, not {self.images!r}")
        if problems:
            raise Problems(problems)
        return self


class RewardConfig(Section):
    """Verifier report to scalar (paper Eq 20)."""

    credit: Literal["fail_to_pass", "count", "ratio", "binary"] = "fail_to_pass"
    scale: float = Field(20.0, gt=0)
    """S, fixed for the whole campaign."""


class RolloutConfig(Section):
    """The scheduler (design 6)."""

    batch: int = Field(64, ge=1)
    """B: trials a step, one a task."""
    oversample: float = Field(0.09375, ge=0)
    """ς: ⌈(1+ς)B⌉ trials are launched, the first B that complete are admitted; `tail` says what becomes of the rest."""
    tail: Literal["cancel", "retry", "carry"] = "carry"
    """`cancel` forgets it (the paper); `retry` launches its tasks again first; `carry` pauses it with its sandboxes,
    and it goes on under the next weights."""
    max_streak: int = Field(3, ge=1)
    """A task that so many steps in a row have passed over, and that starts anew, is waited for. Not under `cancel`."""
    max_staleness: int = Field(2, ge=1)
    """Under `carry`: chunks drawn under weights that are older than this, in updates, are not trained on, and counted.
    The trainer keeps a snapshot of each version."""
    temperature: float = Field(1.0, ge=LEAST_TEMPERATURE, le=MOST_TEMPERATURE)
    """What is drawn next to greedily has no log-probs to learn from, and servers take it for greedy."""
    agent_timeout_s: float = Field(3_600.0, gt=0)
    verifier_timeout_s: float = Field(900.0, gt=0)
    remote_timeout_s: float = Field(5_400.0, gt=0)
    """Deadline of a whole trial, sandbox included. Past it the infrastructure is at fault."""
    concurrency: int = Field(64, ge=1)
    """Trials alive at once."""
    per_node: int | None = Field(None, ge=1)
    """Sandboxes at once on each node of the Ray cluster, over all of which they are spread. None: all of them are on
    the machine of the leg's rollouts."""
    starts_per_s: float = Field(200.0, gt=0)
    """Token bucket on sandbox creation."""
    reattach_s: float = Field(600.0, ge=0)
    """How long sandboxes outlive a job that is killed, and those of what a leg carries the leg. The next attempt, or
    leg, that comes in time goes on with the trials where they were; what comes later starts them anew."""
    max_attempts: int = Field(2, ge=1)
    """Launches of one task whose trials end in infrastructure faults, before another task takes its place."""
    max_fault_share: float = Field(0.5, gt=0, le=1)
    """A step with more infrastructure faults than this share of the trials it plans stops the leg."""
    max_rejected_share: float = Field(0.02, ge=0, le=1)
    """So many of a step's trials may be rejected, because what was recorded of them is not what was sampled, before the
    leg stops. One alone never stops it."""

    @property
    def versions(self) -> int:
        """How many versions of the weights a batch may be of."""
        return self.max_staleness if self.tail == "carry" else 1

    @model_validator(mode="after")
    def _layered(self) -> RolloutConfig:
        inner = self.agent_timeout_s + self.verifier_timeout_s
        if self.remote_timeout_s < inner:
            raise ValueError(
                f"remote_timeout_s {self.remote_timeout_s:g} is shorter than agent_timeout_s + verifier_timeout_s "
                f"({inner:g})"
            )
        return self
