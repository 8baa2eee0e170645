"""A campaign of a few tasks, run stage by stage through the real jobs on a real Ray head."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from components.artifacts import LocalStore
from components.cluster import Cluster, JobSpec
from components.config import CampaignConfig, load
from tasks.stack.settings import make_token
from tests import services

MINIATURE = Path(__file__).parents[2] / "configs" / "miniature.yaml"
SMALL = (
    "pool.train_tasks=10",
    "pool.heldout_tasks=6",
    "pool.max_subtasks=2",
    "base.tokens=100000",
    "base.demonstrations.trajectories=60",
    "base.demonstrations.repeats=0",
    "sft.tokens=8000",
    "sft.demonstrations.trajectories=20",
    "rl.legs=1",
    "rl.leg_steps=4",
    "rollout.batch=4",
    "rollout.oversample=0.25",
    "rollout.reattach_s=300",
    "ppo.critic.only_steps=1",
    "ppo.critic.warmup={steps: 2, tasks: 5}",
    "evaluation.trials=6",
    "evaluation.leg_trials=4",
    "harness.max_turns=3",
    "sampler.slots=8",
)


class SmallCampaign:
    """Runs stages one after another; results are kept for those that follow."""

    def __init__(self, folder: Path) -> None:
        self.name = f"jobs{os.getpid()}"
        self.config: CampaignConfig = load(MINIATURE, [*SMALL, f"name={self.name}"])
        self.store = LocalStore(folder / "store")
        self.cluster = Cluster(services.ray(), self.store, token=services.token())
        self.lines: list[str] = []

    def variant(self, name: str, *overrides: str) -> SmallCampaign:
        """Another campaign on the same services and in the same store, whose stages may be given this one's results."""
        made = copy.copy(self)
        made.name, made.lines = f"{self.name}-{name}", []
        made.config = load(MINIATURE, [*SMALL, *overrides, f"name={made.name}"])
        return made

    def run(self, stage: str, inputs: Mapping[str, Any], index: int = 0) -> dict[str, Any]:
        spec = JobSpec(stage, self.name, index, self.config.model_dump(mode="json"), dict(inputs))
        submission = self.cluster.submit(spec, {})
        return self.cluster.follow(spec, submission.id, lambda line: self.lines.append(line.text), lambda: None)

    def record(self, step: int) -> dict[str, Any]:
        return dict(self.store.get_json(f"campaigns/{self.name}/rl/steps/{step:06d}/record.json"))


@pytest.fixture(scope="session")
def ray_token() -> Path:
    """The token of every Ray that this process is a driver of: it reads it once."""
    path = services.site().ray_token
    path.parent.mkdir(parents=True, exist_ok=True)
    make_token(path)
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(path)
    return path


@pytest.fixture(scope="session")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> SmallCampaign:
    return SmallCampaign(tmp_path_factory.mktemp("campaign"))


@pytest.fixture(scope="session")
def pool(campaign: SmallCampaign) -> dict[str, Any]:
    return campaign.run("curate", {})


@pytest.fixture(scope="session")
def base(campaign: SmallCampaign, pool: dict[str, Any]) -> dict[str, Any]:
    return campaign.run("base", {"pool": pool["pool"]})


@pytest.fixture(scope="session")
def sft(campaign: SmallCampaign, pool: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    inputs = {"pool": pool["pool"], "checkpoint": base["checkpoint"]}
    return campaign.run("sft", inputs)
