"""SFT on trials that passed, by the jobs themselves: of the miniature's base model.

The jobs are run as Ray runs them, by their command, and without it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from components.artifacts import LocalStore
from components.config import CampaignConfig, load
from components.learning.corpus import CORPUS, load_corpus
from components.rollout import load_batch
from tests.jobs.conftest import MINIATURE, SMALL

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
ATTEMPTS = 3
LEARNED = (
    "pool.train_tasks=40",
    "pool.max_subtasks=1",
    "base.tokens=600000",
    "base.demonstrations={trajectories: 600, repeats: 300, habits: "
    "{blind_error_rate: 0.3, other_error_rate: 0.1, early_stop_rate: 0}}",
    "harness.max_turns=4",
    "ppo.critic.warmup=null",
)


class Jobs:
    """The jobs of one campaign, each a process."""

    def __init__(self, folder: Path, name: str, *overrides: str) -> None:
        self.folder, self.name = folder, f"{name}{os.getpid()}"
        self.store = LocalStore(folder / "store")
        self.config: CampaignConfig = load(MINIATURE, [*SMALL, *overrides, f"name={self.name}"])

    def start(self, stage: str, inputs: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        spec = self.folder / f"{self.name}-{stage}.json"
        document = {"stage": stage, "campaign": self.name, "index": 0, "config": self.config.model_dump(mode="json")}
        document |= {"inputs": dict(inputs), "store": self.store.url, "result": f"results/{self.name}/{stage}.json"}
        spec.write_text(json.dumps(document))
        with (self.folder / f"{stage}.log").open("ab") as log:
            return subprocess.Popen([sys.executable, "-m", f"components.jobs.{stage}", spec], cwd=ROOT, stdout=log)

    def run(self, stage: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
        code = self.start(stage, inputs).wait()
        assert code == 0, (self.folder / f"{stage}.log").read_text()[-4_000:]
        return dict(self.store.get_json(f"results/{self.name}/{stage}.json"))


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    return Jobs(
        tmp_path_factory.mktemp("jobs"),
        "own",
        *LEARNED,
        "sft.demonstrations=null",
        f"sft.rejection={{attempts: {ATTEMPTS}}}",
    )


@pytest.fixture(scope="module")
def pool(own: Jobs) -> str:
    return str(own.run("curate", {})["pool"])


@pytest.fixture(scope="module")
def base(own: Jobs, pool: str) -> str:
    return str(own.run("base", {"pool": pool})["checkpoint"])


def streams(made: Jobs, passes: int) -> set[tuple[bytes, bytes]]:
    """Tokens and masks of every stream of the passes in the store, of trials that solved their task."""
    found = set()
    for number in range(passes):
        batch = load_batch(made.store.tree(f"campaigns/{made.name}/rejection/passes/{number:06d}"))
        solved = {t.trial_id for t, reward in zip(batch.trials, batch.rewards, strict=True) if reward.outcome}
        found |= {(s.tokens.tobytes(), s.loss_mask.tobytes()) for s in batch.samples if s.trial_id in solved}
    return found


def test_what_the_base_model_solves_is_what_sft_learns_from(own: Jobs, pool: str, base: str) -> None:
    made = own
    found = made.run("rejection", {"pool": pool, "checkpoint": base})
    assert found["graded"] == found["tried"] == 40 * ATTEMPTS
    assert 0 < found["kept"] <= found["passed"] < found["graded"]
    assert found["kept"] + sum(found["left_out"].values()) == found["tried"]
    assert found["left_out"]["bar"] == found["graded"] - found["passed"]
    samples = load_corpus(made.store.tree(found["samples"]) / CORPUS)
    assert len(samples) == found["streams"]
    known = streams(made, ATTEMPTS)
    assert {(each.tokens.tobytes(), each.loss_mask.tobytes()) for each in samples} <= known, "as they were drawn"

    tuned = made.run("sft", {"pool": pool, "checkpoint": base, "samples": found["samples"]})
    assert tuned["samples"] == {"n": found["streams"]}
    records = [
        made.store.get_json(key)
        for key in sorted(made.store.list(f"campaigns/{made.name}/sft/steps"))
        if key.endswith("record.json")
    ]
    assert records[-1]["metrics"]["sft/loss"] < 0.5, "its own solutions are likely to it already"
    assert made.store.exists(tuned["checkpoint"])
